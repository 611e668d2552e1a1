"""A certificate for a server of a test, which is its own authority."""

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed(folder):
    """Write a certificate for 127.0.0.1; return the file with it, and the file that also has its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "ca.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    both = folder / "both.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    both.write_bytes(pem.read_bytes() + key.private_bytes(encoding, form, serialization.NoEncryption()))
    return pem, both
