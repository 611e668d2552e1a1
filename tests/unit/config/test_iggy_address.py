"""Addresses of Iggy servers: what they say, and what they never show."""

import pickle
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.iggy_address import IggyAddress
from framework.engine.local import LocalEngine
from framework.errors import ConfigError
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import source_config


def test_the_plain_form():
    address = IggyAddress.parse("iggy://ann:pw@iggy.example:9000")
    assert (address.host, address.port, address.user, address.password) == ("iggy.example", 9000, "ann", "pw")
    assert (address.tls, address.token, address.embedded_path) == (False, None, None)
    assert address.server == "iggy.example:9000"


def test_the_port_may_be_left_out():
    assert IggyAddress.parse("iggy+tcp://a:b@h").port == 8090


def test_an_ipv6_address_stands_in_brackets():
    address = IggyAddress.parse("iggy://a:b@[::1]:7")
    assert (address.host, address.port, address.server) == ("::1", 7, "[::1]:7")
    assert IggyAddress.parse("iggy://a:b@[fe80::2]").server == "[fe80::2]:8090"


def test_tls():
    address = IggyAddress.parse("iggy+tls://a:b@h:1?tls_ca_file=/etc/my%20ca.pem&tls_domain=iggy.example")
    assert (address.tls, address.tls_ca_file, address.tls_domain) == (True, "/etc/my ca.pem", "iggy.example")


@pytest.mark.parametrize("url", ["iggy://iggypat-s3cr+t/%3D@h:1", "iggy://h:1?token=s3cr%2Bt%2F%3D"])
def test_a_token_in_either_form(url):
    url = url.replace("t/", "t%2F")
    address = IggyAddress.parse(url)
    assert (address.token, address.user, address.password) == ("s3cr+t/=", "", None)


def test_embedded():
    assert IggyAddress.parse("embedded:./iggy data").embedded_path == "./iggy data"


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(text.filter(lambda name: not name.startswith("iggypat-")), text)
def test_user_and_password_are_percent_decoded(user, password):
    address = IggyAddress.parse(f"iggy://{quote(user, safe='')}:{quote(password, safe='')}@h:1")
    assert (address.user, address.password) == (user, password)


def test_a_bare_at_sign_in_a_password_works():
    assert IggyAddress.parse("iggy://a:p@ss@h").password == "p@ss"


@pytest.mark.parametrize("password", ["s3cr?tTail99", "a?b&c=d", "?", "x?#/:@y", "a@b?c@d", "q?tls=1"])
def test_a_bare_question_mark_in_a_password_is_part_of_it(password):
    for url in (f"iggy+tls://ann:{password}@h:1", f"iggy+tls://ann:{password}@h:1?tls_domain=x@y"):
        address = IggyAddress.parse(url)
        assert (address.user, address.password, address.server) == ("ann", password, "h:1")
    assert address.tls_domain == "x@y"


@given(text)
def test_no_mistake_shows_a_piece_of_a_password(password):
    """Whatever is in it, written as it is, without a user's care."""
    marked = f"HUSH{password}HUSH"
    for url in (f"iggy://ann:{marked}@h:1", f"iggy://ann:{marked}@h:x", f"iggy://ann:{marked}@"):
        try:
            shown = repr(IggyAddress.parse(url))
        except ConfigError as error:
            shown = str(error)
        assert "HUSH" not in shown


@pytest.mark.parametrize("scheme", ["iggy+http", "iggy+https", "http", "HTTPS"])
def test_http_is_refused_with_the_reason(scheme):
    with pytest.raises(ConfigError, match="is not supported: HTTP keeps no connection") as caught:
        IggyAddress.parse(f"{scheme}://a:hush@h:3000")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["tcp", "tls", "quic", "ws", "wss"])
def test_a_transport_alone_is_told_its_scheme(scheme):
    with pytest.raises(ConfigError, match=rf"{scheme}:// is no scheme of an Iggy address; write iggy(\+{scheme})?://"):
        IggyAddress.parse(f"{scheme}://a:hush@h:3000")


@pytest.mark.parametrize(
    ("scheme", "transport", "tls", "port"),
    [
        ("iggy", "tcp", False, 8090),
        ("iggy+tls", "tcp", True, 8090),
        ("iggy+quic", "quic", True, 8080),
        ("iggy+ws", "websocket", False, 8092),
        ("iggy+wss", "websocket", True, 8092),
    ],
)
def test_each_scheme_has_its_transport_and_port(scheme, transport, tls, port):
    address = IggyAddress.parse(f"{scheme}://a:hush@iggy.example")
    assert (address.transport, address.tls, address.port) == (transport, tls, port)
    assert str(address) == f"{scheme}://a:***@iggy.example:{port}"
    assert address.in_the_clear is not tls
    assert not address.unchecked


def test_a_certificate_that_nobody_checks_is_known():
    url = "iggy+quic://a:b@{}?tls_validate_certificate=false"
    assert IggyAddress.parse(url.format("iggy.example")).unchecked
    assert not IggyAddress.parse(url.format("127.0.0.1")).unchecked


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "looks like"),
        ("localhost:8090", "looks like"),
        ("iggy:a:hush@h", "looks like"),
        ("iggy://a:hush@", "host is missing"),
        ("iggy://a:hush@h:0", "port is a number"),
        ("iggy://a:hush@h:65536", "port is a number"),
        ("iggy://a:hush@h:\u0664", "port is a number"),
        ("iggy://a:hush@h:" + 5000 * "9", "port is a number"),
        ("iggy://a:hush@::1:90", "in brackets"),
        ("iggy://a:hush@[::1", "in brackets"),
        ("iggy://a:hush@h/stream", "no path"),
        ("iggy://h", "user and password are missing"),
        ("iggy://a@h", "user and password are missing"),
        ("iggy://a:hush@h?token=hush", "not both"),
        ("iggy://iggypat-hush@h?token=hush", "twice"),
        ("iggy://iggypat-@h", "token is empty"),
        ("iggy+tls://a:hush@h?tls_domian=x", "did you mean tls_domain"),
        ("iggy+tls://a:hush@h?tls_domain=x&tls_domain=y", "twice"),
        ("iggy://a:hush@h?tls_domain=x", r"need iggy\+tls"),
        ("iggy+tls://a:b@h?hushhush=1", "unknown option in the address"),
        ("iggy://h?hush", "user and password are missing"),
        ("embedded:", "path of a data folder"),
    ],
)
def test_mistakes_are_named_without_secrets(url, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        IggyAddress.parse(url)
    assert "hush" not in str(caught.value)


def test_every_mistake_at_once():
    with pytest.raises(ConfigError) as caught:
        IggyAddress.parse("iggy://a:hush@h:x/path?nonsense=1")
    assert len(caught.value.mistakes) == 3


@pytest.mark.parametrize("url", ["iggy://ann:hush@h:1", "iggy://iggypat-hush@h:1", "iggy+tls://h?token=hush"])
def test_no_secret_is_ever_shown(url):
    address = IggyAddress.parse(url)
    for shown in (repr(address), str(address), address.login, address.server, f"{address}"):
        assert "hush" not in shown
    assert "***" in repr(address)
    assert "***" in str(address)
    assert pickle.loads(pickle.dumps(address)) == address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("iggy://a:b@127.0.0.1", False),
        ("iggy://a:b@127.8.0.1:1", False),
        ("iggy://a:b@[::1]:1", False),
        ("iggy://a:b@localhost", False),
        ("embedded:x", False),
        ("iggy+tls://a:b@h", False),
        ("iggy://a:b@h", True),
        ("iggy://a:b@10.0.0.1", True),
        ("iggy://a:b@[2001:db8::1]", True),
    ],
)
def test_an_address_knows_whether_others_can_listen(url, expected):
    assert IggyAddress.parse(url).in_the_clear is expected


@pytest.mark.parametrize(
    ("url", "warning"),
    [
        ("iggy://ann:hush@iggy.example:8090", "password and records go to iggy.example:8090 in the clear"),
        ("iggy+tls://ann:hush@iggy.example?tls_validate_certificate=false", "the certificate of"),
        ("iggy://ann:hush@127.0.0.1:8090", None),
    ],
)
def test_a_run_whose_password_others_could_read_says_so(url, warning, caplog, monkeypatch):
    monkeypatch.setattr(LocalEngine, "_run_in_turn", lambda *_: None)
    LocalEngine(MemorySourceTask, source_config(url=url)).run()
    assert [message.startswith(f"[iggy]: {warning}") for message in caplog.messages] == [True] * (warning is not None)
    assert "hush" not in caplog.text
