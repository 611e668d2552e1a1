"""Message ids: 128 bits that identify a record of an object version, the same on every run.

    bits 127..64   hash of (source name, bucket, key, version, generation, split size)
    bits  63..40   number of the split or part: 0 when the object has one position
    bits  39..0    record number, counted from 1: within the split, or else within the object

A repeated send produces the same ids, so duplicates are recognizable. A replay of a topic's tail shows which records
are already there. The hash input and this layout are part of the stored data: after a change, every id in existing
topics is unknown.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Literal

import attrs
import xxhash

if TYPE_CHECKING:
    from framework.model.positions import OffsetManagerEntry

MAX_SPLIT = (1 << 24) - 1
MAX_RECORD = (1 << 40) - 1

# A prefix before the fields: another scheme never produces the same hashes by accident.
_SCHEME = b"iggy-cloud-sources/2\0"

_LENGTH = struct.Struct("<I")
_NUMBERS = struct.Struct("<qQ")


@attrs.frozen(slots=True)
class MessageId:
    """The three parts of an id.

    Attributes:
        object_hash: 64 bits, see `object_hash64`.
        split_number: split number; 0 when the object is not split.
        record: record number within the split, counted from 1.
    """

    object_hash: int
    split_number: int
    record: int


def object_hash64(source: str, bucket: str, key: str, version: str, split_size: int = 0, *, generation: int = 1) -> int:
    """Return the 64-bit hash of an object version, as a source reads it from its first record.

    The fields are length-prefixed before hashing (XXH3-64): ("ab", "c") and ("a", "bc") differ.

    Args:
        source: the source's name; two sources that write to the same topic have different ids.
        bucket: the object's bucket.
        key: the object's key, exactly as stored.
        version: the object's version.
        split_size: of its positions; another size numbers or divides records differently.
        generation: see `OffsetManagerEntry.generation`.
    """
    return _hash64((source, bucket), key, version, split_size, generation)


def entry_hash64(source: str, entry: OffsetManagerEntry) -> int:
    """Return the `object_hash64` of a position."""
    return _hash64((source, entry.bucket), entry.key, entry.version, entry.split_size, entry.generation)


def dead_letter_hash64(
    source: str,
    bucket: str,
    key: str,
    version: str,
    split_size: int,
    *,
    generation: int,
    kind: Literal["dead letter", "dead object", "replayed"],
) -> int:
    """Return the 64-bit hash for the dead letters of an object version, or for records replayed from them.

    It never equals the hash of the object's own records.

    Args:
        source: the source's name, as for `object_hash64`.
        bucket: the object's bucket.
        key: the object's key.
        version: the object's version.
        split_size: of its positions.
        generation: generation of the position.
        kind: dead letters about records, dead letters about the rest of an object, or replayed records.
    """
    return _hash64((source, kind, bucket), key, version, split_size, generation)


def _hash64(names: tuple[str, ...], key: str, version: str, split_size: int, generation: int) -> int:
    # surrogatepass: a name that is not valid Unicode (a file name, say) still has its own hash
    raw_key, raw_version = key.encode("utf-8", "surrogatepass"), version.encode("utf-8", "surrogatepass")
    lengths = _LENGTH.pack(len(raw_key)), _LENGTH.pack(len(raw_version))
    numbers = _NUMBERS.pack(split_size, generation)
    return xxhash.xxh3_64_intdigest(b"".join((_prefix(names), lengths[0], raw_key, lengths[1], raw_version, numbers)))


@functools.lru_cache(maxsize=64)
def _prefix(names: tuple[str, ...]) -> bytes:
    """Return what the hashes of all objects of a bucket begin with."""
    raws = [name.encode("utf-8", "surrogatepass") for name in names]
    return _SCHEME + b"".join([_LENGTH.pack(len(raw)) + raw for raw in raws])


def message_id(object_hash: int, split_number: int, record: int) -> int:
    """Return the 128-bit id of a record.

    Raises:
        ValueError: a part does not fit its bits.
    """
    if not (0 <= object_hash < 1 << 64 and 0 <= split_number <= MAX_SPLIT and 0 <= record <= MAX_RECORD):
        raise ValueError(
            f"no message id for split {split_number}, record {record}: at most {MAX_SPLIT} and {MAX_RECORD}"
        )
    return object_hash << 64 | split_number << 40 | record


def parse_message_id(message_id: int) -> MessageId:
    """Split an id into its parts; the inverse of `message_id`. Ids from other producers give meaningless parts."""
    return MessageId(message_id >> 64, message_id >> 40 & MAX_SPLIT, message_id & MAX_RECORD)
