"""`[iggy]`: `url`, or `address` with the options beside it, the contradictions between them, and what messages show."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.loading import structure
from framework.errors import ConfigError
from s3_source.task import S3SourceConfig

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(lambda some: "${" not in some)
"""Not what names a variable or a file."""


def read(environment=None, **iggy):
    iggy = {"url": "iggy://h:1", "stream": "s", "topic": "t", **iggy}
    iggy = {name: value for name, value in iggy.items() if value is not None}
    sections = {"source": {"name": "n"}, "s3": {"bucket": "lake"}, "input": {"format": "jsonl"}, "iggy": iggy}
    return structure(sections, S3SourceConfig, environment=environment or {}).iggy


def mistake(environment=None, **iggy):
    with pytest.raises(ConfigError) as caught:
        read(environment, **iggy)
    return str(caught.value)


@given(text, text)
def test_both_are_taken_as_they_are(username, password):
    address = read(username=username, password=password).server()
    assert (address.user, address.password, address.host, address.port) == (username, password, "h", 1)


def test_a_password_of_the_environment_needs_no_encoding():
    iggy = read({"P": "p@ss/w:rd%41?#"}, url="iggy+tls://h:1?tls_domain=x", username="ann", password="${env:P}")
    assert iggy.server().password == "p@ss/w:rd%41?#"
    assert (iggy.server().tls, iggy.server().tls_domain) == (True, "x")
    assert "p@ss" not in repr(iggy)
    assert "p@ss" not in repr(attrs.evolve(iggy, stream="other"))


SECRET = {"password": "hunter22"}
LOGIN = {"username": "ann", **SECRET}
PARTS = {"url": None, "address": "h:1"}


@pytest.mark.parametrize(
    ("iggy", "said"),
    [
        ({"username": "ann"}, "password: missing; username and password belong together"),
        (SECRET, "username: missing; username and password belong together"),
        (
            {**LOGIN, "url": "iggy://b:c@h"},
            "url, username, password: both say who logs in; leave one of the two out",
        ),
        (
            {**LOGIN, "url": "iggy://h?token=x"},
            "url, username, password: both say who logs in; leave one of the two out",
        ),
        ({"token": "hunter22", "url": "iggy://a:b@h"}, "url, token: both say who logs in; leave one of the two out"),
        (
            {**LOGIN, "url": "embedded:./x", "tls": {"enabled": True}},
            "url, username, password, tls.enabled: embedded: takes no login, no transport and no TLS; leave them out",
        ),
        ({**LOGIN, "url": "iggy://h:port"}, "url: the port is a number from 1 to 65535"),
        (
            {**LOGIN, "token": "hunter22"},
            "username, password, token: give either user and password or an access token, not both",
        ),
        ({**LOGIN, "address": "h:1"}, "url, address: both name the server; leave one of the two out"),
        (
            {"url": None},
            "url: missing; give url, or address with username and password, or address with token",
        ),
        (PARTS, "address: who logs in is missing; add username and password, or token"),
        ({**LOGIN, **PARTS, "address": "iggy://h:1"}, "address: must be host:port; an address with a scheme"),
        ({**LOGIN, **PARTS, "address": "a:hunter22@h:1"}, "address: must be host:port; the login belongs into"),
        ({**LOGIN, **PARTS, "address": "h:0"}, "address: the port is a number from 1 to 65535"),
        ({**LOGIN, **PARTS, "address": "::1"}, "address: an IPv6 address stands in brackets"),
        ({**LOGIN, **PARTS, "address": "h:1/s"}, "address: an Iggy address has no path"),
        (
            {**LOGIN, "tls": {"enabled": True}},
            "url, tls.enabled: url begins with iggy://, which contradicts enabled; leave enabled out",
        ),
        ({**LOGIN, "url": "iggy+tls://h", "tls": {"enabled": False}}, "url, tls.enabled: url begins with iggy+tls://"),
        ({**LOGIN, **PARTS, "tls": {"ca_file": "ca.pem"}}, "tls.ca_file: no effect without TLS; set enabled = true"),
        (
            {**LOGIN, "url": "iggy+quic://h", "tls": {"enabled": False}},
            "url, tls.enabled: QUIC is always encrypted; leave enabled out",
        ),
        (
            {**LOGIN, **PARTS, "transport": "quic", "tls": {"enabled": False}},
            "transport, tls.enabled: QUIC is always encrypted; leave enabled out",
        ),
        (
            {**LOGIN, **PARTS, "transport": "quic", "tls": {"ca_file": "x"}},
            "tls.ca_file: over QUIC the official client",
        ),
        ({**LOGIN, "url": "iggy+quic://h?tls_ca_file=x"}, "url: tls_ca_file: over QUIC the official client"),
        (
            {**LOGIN, "url": "iggy+ws://h", "transport": "quic"},
            "url, transport: url begins with iggy+ws://, which contradicts transport; leave it out",
        ),
        ({**LOGIN, **PARTS, "transport": "http"}, 'transport = "http": must be "tcp" or "quic" or "websocket"'),
        ({**LOGIN, "url": "iggy+ws://h", "tls": {"enabled": True}}, "url, tls.enabled: url begins with iggy+ws://"),
        (
            {**LOGIN, "url": "iggy+tls://h?tls_validate_certificate=false", "tls": {"validate_certificate": True}},
            "url, tls.validate_certificate: url contains tls_validate_certificate too",
        ),
        (
            {**LOGIN, **PARTS, "tls": {"enabled": True, "ca_file": "x", "validate_certificate": False}},
            "tls.ca_file, tls.validate_certificate: a certificate that is not checked needs no ca_file",
        ),
        ({**LOGIN, "url": "iggy+tls://h?tls_validate_certificate=no"}, "url: tls_validate_certificate must be true"),
        ({**LOGIN, **PARTS, "tls": {"validate_certificate": False}}, "tls.validate_certificate: no effect without TLS"),
        (
            {**LOGIN, "url": "iggy+tls://h?tls_ca_file=x", "tls": {"ca_file": "y"}},
            "url, tls.ca_file: url contains tls_ca_file too; leave one of the two out",
        ),
    ],
    ids=str,
)
def test_contradictions_name_both_options(iggy, said):
    found = mistake(**iggy)
    assert found.startswith(f"[iggy] {said}")
    assert "hunter22" not in found


@pytest.mark.parametrize(
    ("iggy", "said"),
    [
        ({"tls": True}, "iggy.tls: must be a section, [iggy.tls]"),
        ({"tls": {"enabeld": True}}, "[iggy.tls] enabeld: unknown option; did you mean enabled?"),
        ({"tls": {"enabled": "true"}}, '[iggy.tls] enabled = "true": must be true or false'),
        ({"token": ""}, "[iggy] token = ***: must not be empty"),
    ],
)
def test_wrong_options_of_tls_and_token(iggy, said):
    assert mistake(**{**LOGIN, **iggy} if "token" not in iggy else iggy) == said


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("h:1", "h", 1), ("h", "h", 8090), ("[::1]:9", "::1", 9), ("10.0.0.1", "10.0.0.1", 8090)],
)
def test_an_address_in_parts_is_the_same_as_in_a_url(address, host, port):
    parts = read(**LOGIN, url=None, address=address).server()
    assert (parts.host, parts.port, parts.user, parts.password) == (host, port, "ann", "hunter22")
    assert parts == read(**LOGIN, url=f"iggy://{address}").server()
    assert "hunter22" not in repr(parts)


@pytest.mark.parametrize("tls", [{"validate_certificate": True}, {"enabled": False, "validate_certificate": True}])
def test_the_default_written_out_changes_nothing(tls):
    assert read(**LOGIN, **PARTS, tls=tls).server() == read(**LOGIN, **PARTS).server()


@given(text)
def test_a_token_is_taken_as_it_is(token):
    for place in ({}, PARTS):
        address = read(token=token, **place).server()
        assert (address.token, address.user, address.password) == (token, "", None)


@pytest.mark.parametrize(
    ("transport", "tls", "url"),
    [
        ("tcp", {}, "iggy://h"),
        ("tcp", {"enabled": True}, "iggy+tls://h"),
        ("quic", {}, "iggy+quic://h"),
        ("quic", {"validate_certificate": False}, "iggy+quic://h?tls_validate_certificate=false"),
        ("websocket", {}, "iggy+ws://h"),
        ("websocket", {"enabled": True, "domain": "x"}, "iggy+wss://h?tls_domain=x"),
    ],
)
def test_a_transport_is_the_same_beside_an_address_and_in_a_url(transport, tls, url):
    parts = read(**LOGIN, url=None, address="h", transport=transport, tls=tls).server()
    assert parts == read(**LOGIN, url=url).server()
    assert (parts.transport, parts.port) == (transport, {"tcp": 8090, "quic": 8080, "websocket": 8092}[transport])
    assert str(parts).startswith(url.partition("h")[0])


def test_tls_beside_a_url_or_an_address():
    tls = {"ca_file": "ca.pem", "domain": "iggy.example"}
    beside = read(**LOGIN, url="iggy+tls://h:1", tls=tls).server()
    assert (beside.tls, beside.tls_ca_file, beside.tls_domain) == (True, "ca.pem", "iggy.example")
    assert beside == read(**LOGIN, **PARTS, tls={"enabled": True, **tls}).server()
    assert not read(**LOGIN, **PARTS, tls={"enabled": False}).server().tls


@pytest.mark.parametrize("password", ["iggy", "topic", "user", "address", "password"])
def test_a_password_that_is_an_ordinary_word_blacks_out_no_names(password):
    """Masked, `[***] topik` would tell the reader what the password is."""
    said = mistake({"P": password}, url="iggy://iggy:${env:P}@h:1", topik="x")
    assert said == "[iggy] topik: unknown option; did you mean topic?"
    said = mistake({"P": password}, url="iggy://iggy:${env:P}@:1")
    assert said == "[iggy] url: the host is missing"


def test_an_address_without_a_secret_is_shown():
    assert mistake(url="embedded:") == (
        "[iggy] url: embedded: needs the path of a data folder, as in embedded:./iggy-data"
    )


def test_any_other_secret_is_masked():
    assert "hunter22" not in mistake({"P": "hunter22"}, url="iggy://hunter22:${env:P}@h:1?hunter22=1")
