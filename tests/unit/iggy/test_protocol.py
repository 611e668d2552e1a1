import socket
import struct
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.iggy import protocol
from framework.iggy.embedded import fields, options
from framework.iggy.embedded.fields import Cursor, RefusedError
from framework.iggy.embedded.service import FolderInUseError, Service, check_loopback
from framework.iggy.protocol import BrokenFrameError, Request

options_blocks = st.lists(
    st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 255), st.binary(max_size=30)), unique_by=lambda o: o[0]
)


def frame(*, size=256, command=5, operation=2, code=1):
    header = bytearray(256)
    struct.pack_into("<I", header, 48, size)
    header[60], header[176] = command, operation
    struct.pack_into("<I", header, 196, code)
    return header


def test_a_request_names_its_command():
    assert Request(frame(code=100, size=300)).code == 100
    assert Request(frame(code=100, size=300)).body_size == 44
    assert Request(frame(operation=160, code=100)).code == protocol.SEND
    assert Request(frame(operation=139)).code == protocol.CREATE_GROUP
    assert Request(frame(operation=199)).code == 0, "which is none of the commands"


@pytest.mark.parametrize("wrong", [{"size": 255}, {"size": 0}, {"size": protocol.MAX_FRAME_SIZE + 1}, {"command": 8}])
def test_a_frame_that_is_no_request_or_too_large_is_refused(wrong):
    with pytest.raises(BrokenFrameError):
        Request(frame(**wrong))


@given(options_blocks)
def test_an_options_block_comes_back_as_it_was(entries):
    assert fields.decode_options(memoryview(fields.encode_options(entries))) == entries


@given(options_blocks.filter(bool), st.data())
def test_an_options_block_cut_anywhere_inside_an_entry_is_refused(entries, data):
    block = fields.encode_options(entries)
    borders = {len(fields.encode_options(entries[:n])) for n in range(len(entries) + 1)}
    cut = data.draw(st.integers(0, len(block)).filter(lambda n: n not in borders))
    with pytest.raises(RefusedError):
        fields.decode_options(memoryview(block[:cut]))


def test_an_option_given_twice_is_refused():
    block = fields.encode_options([("k", 2, b"a"), ("k", 2, b"b")])
    with pytest.raises(RefusedError):
        fields.decode_options(memoryview(block))


@given(st.binary(max_size=30))
def test_a_cursor_never_reads_beyond_the_body(body):
    for read in ("identifier", "name", "optional_partition", "u64"):
        cursor = Cursor(memoryview(body))
        try:
            getattr(cursor, read)()
        except RefusedError:
            continue
        assert cursor.position <= len(body)


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("segment_size", "128 MiB", 128 << 20),
        ("max_topic_size", "10GB", 10 * 10**9),
        ("max_topic_size", "unlimited", options.UNLIMITED),
        ("message_expiry", "2 hours", 2 * 3600 * 10**6),
        ("message_expiry", "never", options.UNLIMITED),
        ("messages_required_to_save", "7", 7),
    ],
)
def test_options_given_as_text_become_numbers(key, text, number):
    admitted = options.admit([(key, fields.STRING_KIND, text.encode())])
    assert options.number(admitted, key) == number
    assert key not in {name for name, _, _ in options.derived(admitted)}


def test_an_update_is_kept_as_it_was_sent_and_read_as_what_it_means():
    sent = [("max_topic_size", fields.STRING_KIND, b"2GB"), ("message_expiry", fields.STRING_KIND, b"1h")]
    kept = options.admit([*sent, ("compression_algorithm", fields.STRING_KIND, b"Gzip")], update=True)
    assert [option for option in kept if option in sent] == sent
    assert options.number(kept, "message_expiry") == 3600 * 10**6
    assert options.number(kept, "max_topic_size") == 2 * 10**9
    assert options.compression_code(kept) == 2


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("segment_size", "1000"),
        ("segment_size", "2 GiB"),
        ("segment_size", "1048577"),
        ("messages_required_to_save", "0"),
        ("message_expiry", "soon"),
        ("durability", "eternal"),
        ("preallocate_segments", "perhaps"),
        ("compression_algorithm", "zip"),
    ],
)
def test_option_values_out_of_range_are_refused(key, text):
    with pytest.raises(RefusedError) as refused:
        options.admit([(key, fields.STRING_KIND, text.encode())])
    assert refused.value.status == fields.INVALID_OPTION_VALUE


def test_unknown_options_and_ones_fixed_at_creation_are_refused():
    for given_options, update in (([("nope", 2, b"1")], False), ([("segment_size", 2, b"2 MiB")], True)):
        with pytest.raises(RefusedError) as refused:
            options.admit(given_options, update=update)
        assert refused.value.status == fields.UNSUPPORTED_OPTION


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_only_loopback_addresses_are_listened_on(host):
    with pytest.raises(ValueError, match="this machine only"):
        check_loopback(host)
    check_loopback("127.0.0.1")
    check_loopback("localhost")


def test_a_folder_has_one_owner_and_the_refusal_names_it(tmp_path):
    first = Service(tmp_path, username="ada", password="iggy")
    first._lock_folder()
    second = Service(tmp_path, username="ada", password="iggy")
    with pytest.raises(FolderInUseError, match=r"served by the process \d+ already"):
        second.run("127.0.0.1", 0)
    for service in (first, second):
        service.close()


@pytest.mark.parametrize(
    ("username", "password", "reason"),
    [
        ("ab", "iggy", r"the user name \(--username\) must have 3 to 50 bytes"),
        ("a" * 51, "iggy", "the user name"),
        ("ada", "ab", r"the password \(IGGY_EMBEDDED_PASSWORD\) must have 3 to 100 bytes"),
        ("ada", "é" * 51, "the password"),
    ],
)
def test_a_name_or_password_that_no_client_can_send_is_refused(tmp_path, username, password, reason):
    """A real server does not start with such a name, and no client could log in with it."""
    with pytest.raises(ValueError, match=reason):
        Service(tmp_path / "data", username=username, password=password).run("127.0.0.1", 0)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kept", ["", "ab\n", "a" * 101 + "\n"])
def test_a_kept_password_that_no_client_can_send_is_named_with_its_file(tmp_path, kept):
    (tmp_path / "password").write_text(kept)
    service = Service(tmp_path, username="ada")
    with pytest.raises(OSError, match=rf"the password in {tmp_path}/password must have 3 to 100 .*: remove the file"):
        service.run("127.0.0.1", 0)
    service = Service(tmp_path, username="ada")
    (tmp_path / "password").write_text("a" * 100 + "\n")
    assert service._folder_password() == "a" * 100
    service.close()


def test_without_a_thread_for_a_client_the_server_goes_on(tmp_path, capfd):
    server = Service(tmp_path, username="ada", password="iggy")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.MonkeyPatch.context() as patch, socket.create_connection(listener.getsockname()) as client:
            patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            server._accept(listener)
            assert client.recv(1) == b"", "it is dropped"
        assert "a client could not be accepted: can't start new thread" in capfd.readouterr().err
        assert not server._connections
        with socket.create_connection(listener.getsockname()):
            server._accept(listener)
            assert len(server._connections) == 1
    server.close()


def test_the_server_imports_nothing_heavy():
    listing = "import sys, framework.iggy.embedded.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "pyarrow", "boto3", "pandas", "apache_iggy", "attrs", "attr", "cattrs", "pyspark", "tenacity"}
    assert not heavy & set(loaded)
