"""The checksums that stores keep: computed in any pieces, and told from those that say nothing of a whole object."""

import base64
import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.storage import checksum
from framework.storage.checksum import checksum_of

# of b"123456789", from the catalogue of parametrised CRC algorithms (reveng.sourceforge.io)
CHECKS = {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}


def encoded(name):
    return base64.b64encode(bytes.fromhex(CHECKS[name])).decode()


@pytest.mark.parametrize("name", CHECKS)
def test_each_is_what_the_catalogue_says_in_any_pieces(name):
    for cut in range(10):
        made = checksum_of(name, encoded(name))
        for part in (b"123456789"[:cut], b"", b"123456789"[cut:]):
            made.add(part)
        assert made.holds
        made.add(b"0")
        assert not made.holds


@given(st.lists(st.binary(max_size=40), max_size=9), st.sampled_from(sorted(CHECKS)), st.integers(0), st.integers(0, 7))
def test_a_flipped_bit_is_seen(parts, name, at, bit):
    whole = checksum_of(name, encoded(name))
    data = bytearray(b"".join(parts) + b"x")
    whole.add(bytes(data))
    pieces = checksum_of(name, encoded(name))
    for part in (*parts, b"x"):
        pieces.add(part)
    assert pieces.value == whole.value
    data[at % len(data)] ^= 1 << bit
    other = checksum_of(name, encoded(name))
    other.add(bytes(data))
    assert other.value != whole.value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("crc32", f"{encoded('crc32')}-3"),
        ("crc32", encoded("crc64nvme")),
        ("crc64nvme", encoded("crc32")),
        ("crc32c", ""),
        ("crc32c", "\xff"),
        ("sha256", "x" * 44),
        ("md5", encoded("crc32")),
    ],
)
def test_what_is_no_checksum_of_a_whole_object_is_none(name, text):
    assert checksum_of(name, text) is None


def test_without_its_library_an_object_is_read_all_the_same(monkeypatch, caplog):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    checksum._update_of.cache_clear()
    monkeypatch.setattr(importlib, "import_module", missing)
    with caplog.at_level("INFO", "framework"):
        assert checksum_of("crc64nvme", encoded("crc64nvme")) is None
        assert checksum_of("crc64nvme", encoded("crc64nvme")) is None
    checksum._update_of.cache_clear()
    assert caplog.text.count("crc64nvme are read without comparing it") == 1
