"""The checksum that a store keeps of an object, recomputed from the received bytes: they equal the written bytes.

Only checksums of a whole object are usable, and only when it is read whole: CRC32, CRC32C and CRC64NVME. Each costs
less than a twentieth of what a record costs (docs/concepts/speed.md). Their libraries are imported on demand.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import logging
import zlib
from collections.abc import Callable
from functools import lru_cache

import attrs

log = logging.getLogger(__name__)

Update = Callable[[bytes, int], int]
"""Takes more bytes and the checksum of the bytes before; returns the new checksum."""


@attrs.define
class Checksum:
    """A store's checksum and that of the bytes received so far. Not thread-safe.

    Attributes:
        name: the algorithm.
        expected: the store's checksum.
        value: checksum of the bytes so far.
    """

    name: str
    expected: int
    _update: Update = attrs.field(repr=False)
    value: int = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self.value = self._update(data, self.value)

    def fits(self, data: bytes) -> bool:
        """Return whether it is the checksum of these bytes, whatever was added before."""
        return self._update(data, 0) == self.expected

    @property
    def holds(self) -> bool:
        """Whether the bytes so far match the store's checksum."""
        return self.value == self.expected


def checksum_of(name: str, encoded: str) -> Checksum | None:
    """Decode a store's base64 checksum; None for another algorithm, or if it does not cover the whole object.

    Args:
        name: `crc32`, `crc32c` or `crc64nvme`.
        encoded: big-endian bytes.
    """
    size = _BYTES.get(name)
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):  # "...-3": a checksum over three parts' checksums
        return None
    update = _update_of(name) if size == len(raw) else None
    return None if update is None else Checksum(name, int.from_bytes(raw, "big"), update)


_BYTES = {"crc32": 4, "crc32c": 4, "crc64nvme": 8}


@lru_cache(maxsize=8)
def _update_of(name: str) -> Update | None:
    if name == "crc32":
        return zlib.crc32
    try:
        # google_crc32c comes with google-cloud-storage
        module = importlib.import_module("google_crc32c" if name == "crc32c" else "anycrc")
    except ImportError as error:
        log.info("objects with a checksum of type %s are read without comparing it: %s", name, error)
        return None
    if name == "crc32c":
        extend = module.extend
        return lambda data, value: int(extend(value, data))
    calc: Update = module.Model("CRC64-NVME").calc
    return calc
