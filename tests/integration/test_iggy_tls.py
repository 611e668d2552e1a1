"""TLS to Iggy: a proxy that ends TLS in front of the embedded server, and certificates that are right, or wrong in one way."""

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import threading

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from framework.config.iggy_address import IggyAddress
from framework.errors import ConfigError, IggyProtocolError, IggyUnavailableError, SourceError
from framework.iggy.connection import IggyConnection

DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates for servers."""

    def __init__(self, folder, name):
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.pem = folder / f"{name}.pem"
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.pem.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject, key, until=DAY):
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
            .not_valid_before(now - 3 * DAY)
            .not_valid_after(now + until)
        )

    def server(self, *names, until=DAY):
        """The path of a certificate for these names, with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = []
        for name in names:
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                alternatives.append(x509.DNSName(name))
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "iggy")])
        made = self._builder(subject, key.public_key(), until).add_extension(
            x509.SubjectAlternativeName(alternatives), critical=False
        )
        pem = self._folder / f"server-{'-'.join(names)}-{until.days}.pem"
        form = serialization.PrivateFormat.PKCS8
        pem.write_bytes(
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        )
        return pem


@contextlib.contextmanager
def tls_proxy(pem, target):
    """A port that speaks TLS with that certificate, in front of a plain one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    listener = socket.create_server(("127.0.0.1", 0))
    ends = []

    def pump(source, sink):
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            ends.append(client)
            threading.Thread(target=handle, args=(client,), daemon=True).start()

    def handle(client):
        try:
            inner = context.wrap_socket(client, server_side=True)
        except OSError:
            client.close()
            return
        outer = socket.create_connection(target)
        ends.extend((inner, outer))
        threading.Thread(target=pump, args=(inner, outer), daemon=True).start()
        pump(outer, inner)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for end in ends:
            end.close()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "ours")


@pytest.fixture
def plain(iggy_url):
    return IggyAddress.parse(iggy_url)


def connect(plain, port, ca, domain=None, *, validate=True):
    address = attrs.evolve(
        plain,
        port=port,
        tls=True,
        tls_ca_file=ca and str(ca),
        tls_domain=domain,
        tls_validate_certificate=validate,
    )
    return IggyConnection(address, connect_timeout_seconds=5).connect()


@pytest.mark.parametrize(("names", "domain"), [(("127.0.0.1",), None), (("iggy.example",), "iggy.example")])
def test_a_certificate_that_is_right_is_accepted(authority, plain, names, domain):
    with (
        tls_proxy(authority.server(*names), (plain.host, plain.port)) as port,
        connect(plain, port, authority.pem, domain) as connection,
    ):
        assert connection.own_client().client_id >= 0


@pytest.mark.parametrize(
    ("names", "until", "domain", "said"),
    [
        (("other.example",), DAY, "iggy.example", "iggy.example"),
        (("iggy.example",), -DAY, "iggy.example", "expired"),
        (("iggy.example",), DAY, None, "127.0.0.1"),
    ],
    ids=["another name", "expired", "no address in it"],
)
def test_a_certificate_that_is_wrong_is_said_as_that(authority, plain, names, until, domain, said):
    with (
        tls_proxy(authority.server(*names, until=until), (plain.host, plain.port)) as port,
        pytest.raises(SourceError, match=r"certificate of Iggy at .* is not accepted") as caught,
    ):
        connect(plain, port, authority.pem, domain)
    assert said in str(caught.value)
    assert type(caught.value) is (IggyUnavailableError if said == "expired" else IggyProtocolError), "it is renewed"
    assert ("renew it on the server" in str(caught.value)) is (said == "expired")


@pytest.mark.parametrize("known", [True, False])
def test_an_unknown_authority_is_said_as_that(authority, plain, tmp_path, known):
    other = Authority(tmp_path, "other")
    with (
        tls_proxy(authority.server("127.0.0.1"), (plain.host, plain.port)) as port,
        pytest.raises(IggyProtocolError, match=r"is not accepted: .*set tls_ca_file or tls_domain") as caught,
    ):
        connect(plain, port, other.pem if known else None)
    assert ("no tls_ca_file" in str(caught.value)) is not known


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no certificate"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "has no certificate"),
        (b"0\x82\x01\x00", "has no certificate"),
        (None, "cannot be read: No such file"),
    ],
    ids=["empty", "truncated", "DER", "missing"],
)
def test_a_file_without_an_authority_is_named_with_its_option(plain, tmp_path, content, said):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^iggy\.tls\.ca_file, or tls_ca_file in iggy\.url: {path} {said}"):
        connect(plain, plain.port, path)


def test_a_port_without_tls_is_said_as_that(plain):
    with pytest.raises(IggyUnavailableError, match=r"does this port speak TLS|did not answer"):
        connect(plain, plain.port, None)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak():
            for _ in range(2):
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(IggyUnavailableError, match=r"the TLS handshake fails .*: does this port speak TLS"):
            connect(plain, listener.getsockname()[1], None)


@pytest.mark.parametrize("validate", [True, False])
def test_iggy_that_is_away_behind_a_proxy_is_no_matter_of_certificates(authority, plain, validate):
    """With another authority's certificate, where the client does not look at it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        tls_proxy(authority.server("127.0.0.1"), listener.getsockname()) as port,
    ):
        threading.Thread(target=close_each, args=(listener,), daemon=True).start()
        with pytest.raises(IggyUnavailableError, match=r"did not answer \(Disconnected\)") as caught:
            connect(plain, port, authority.pem if validate else None, validate=validate)
        listener.shutdown(socket.SHUT_RDWR)
    assert "certificate" not in str(caught.value)


def close_each(listener):
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_what_only_the_client_refuses_is_said_as_that(authority, plain):
    """A certificate that signed itself: OpenSSL takes it as its own authority, the client does not."""
    key = authority._key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    builder = authority._builder(authority._name, authority._key.public_key())
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    pem = made.sign(authority._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    authority.pem.write_bytes(pem)
    both = authority.pem.with_name("both.pem")
    both.write_bytes(pem + key)
    with (
        tls_proxy(both, (plain.host, plain.port)) as port,
        pytest.raises(
            IggyUnavailableError, match=r"with tls_ca_file = .* the client refuses the certificate: it accepts no"
        ),
    ):
        connect(plain, port, authority.pem)
