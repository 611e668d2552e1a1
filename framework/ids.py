"""Message ids: which record of which object version a message is, in 128 bits, the same on every run.

    bits 127..64   hash of (source name, bucket, key, version, split size)
    bits  63..40   share: 0 when the object is not split
    bits  39..0    record number within the share, counted from 1

A repeated send gives the same ids, so a repeat can be told, and a replay of a topic's tail tells what is already there.
The hash's input and this layout are part of the stored data: a change makes every id in existing topics unknown.
"""

from __future__ import annotations

import struct

import attrs
import xxhash

MAX_SHARE = (1 << 24) - 1
MAX_RECORD = (1 << 40) - 1

# Written before the fields, so that another scheme can never give the same hashes by accident.
_SCHEME = b"iggy-cloud-sources/1\0"


@attrs.frozen(slots=True)
class MessageId:
    """The three parts of an id.

    Attributes:
        object_hash: 64 bits, see `object_hash64`.
        share: 0 when the object is not split.
        record: record number within the share, counted from 1.
    """

    object_hash: int
    share: int
    record: int


def object_hash64(source: str, bucket: str, key: str, version: str, split_size: int = 0) -> int:
    """64 bits that stand for one object version as one source reads it.

    The fields are length-prefixed before they are hashed (XXH3-64): ("ab", "c") and ("a", "bc") differ.

    Args:
        source: the source's name; two sources that write one topic have different ids.
        bucket: the object's bucket.
        key: the object's key, exactly as stored.
        version: the object's version.
        split_size: bytes per share; 0 when the object is not split. Another size counts records in another way.
    """
    return _hash64((source, bucket, key, version), split_size)


def dead_letter_hash64(
    source: str, bucket: str, key: str, version: str, split_size: int = 0, *, whole_object: bool = False
) -> int:
    """64 bits that stand for the dead letters of one object version: never those of its records.

    Args:
        source: as for `object_hash64`, and so are the others.
        bucket: the object's bucket.
        key: its key.
        version: its version.
        split_size: bytes per share; 0 when it is not split.
        whole_object: of letters about the rest of an object, which may stand beside one about the record where it begins.
    """
    return _hash64((source, "dead object" if whole_object else "dead letter", bucket, key, version), split_size)


def _hash64(texts: tuple[str, ...], split_size: int) -> int:
    parts = [_SCHEME]
    for text in texts:
        # surrogatepass: a name that is no valid Unicode (a file's, say) still has one hash of its own
        raw = text.encode("utf-8", "surrogatepass")
        parts += (struct.pack("<I", len(raw)), raw)
    parts.append(struct.pack("<Q", split_size))
    return xxhash.xxh3_64_intdigest(b"".join(parts))


def message_id(object_hash: int, share: int, record: int) -> int:
    """The 128-bit id of one record.

    Raises:
        ValueError: a part does not fit its bits.
    """
    if not (0 <= object_hash < 1 << 64 and 0 <= share <= MAX_SHARE and 0 <= record <= MAX_RECORD):
        raise ValueError(f"no message id for share {share}, record {record}: at most {MAX_SHARE} and {MAX_RECORD}")
    return object_hash << 64 | share << 40 | record


def parse_message_id(message_id: int) -> MessageId:
    """The parts of an id; the inverse of `message_id`. An id made by others gives parts that mean nothing."""
    return MessageId(message_id >> 64, message_id >> 40 & MAX_SHARE, message_id & MAX_RECORD)
