"""Topic options: which keys a topic may carry, their defaults, and the settings the topic's replies show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from framework.iggy.embedded import fields
from framework.iggy.embedded.fields import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection

Option = tuple[str, int, bytes]
"""Key, kind and value of one option, as on the wire."""

UNLIMITED = 2**64 - 1
_SIZE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _SIZE_UNITS |= {_letter + "b": 1000**_power, _letter + "ib": 1024**_power}
_TIME_UNITS = {"us": 1, "ms": 1000, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_TIME_UNITS |= {"sec": 10**6, "min": 60 * 10**6, "hour": 3600 * 10**6, "day": 86400 * 10**6, "week": 604800 * 10**6}
_COMPRESSION = {"none": 1, "gzip": 2}
_DURABILITY = ("replicated", "persisted")
_NAMES: dict[str, Collection[str]] = {
    "compression_algorithm": _COMPRESSION,
    "consumer_offset_durability": _DURABILITY,
    "durability": _DURABILITY,
}
_RANGES = {
    "messages_required_to_save": (1, 16 << 20),
    "segment_size": (1 << 20, 1 << 30),
    "size_of_messages_required_to_save": (0, 1 << 30),
}


def _u32(value: int) -> tuple[int, bytes]:
    return fields.UINT32_KIND, fields.U32.pack(value)


def _u64(value: int) -> tuple[int, bytes]:
    return fields.UINT64_KIND, fields.U64.pack(value)


def _text(value: str) -> tuple[int, bytes]:
    return fields.STRING_KIND, value.encode()


DEFAULTS: dict[str, tuple[int, bytes]] = {
    "compression_algorithm": _text("none"),
    "consumer_offset_durability": _text("replicated"),
    "durability": _text("replicated"),
    "max_topic_size": _u64(UNLIMITED),
    "message_expiry": _u64(UNLIMITED),
    "messages_required_to_save": _u32(1024),
    "preallocate_segments": (fields.BOOL_KIND, b"\0"),
    "segment_size": _u64(1 << 30),
    "size_of_messages_required_to_save": _u64(1 << 20),
}
"""Every topic option and what it is when the client does not say, in its canonical kind.

They are stored and shown again. Only `segment_size` changes what this server does: it keeps everything until it is
asked to delete, and a confirmed message is always on the disk.
"""

_UPDATABLE = frozenset({"compression_algorithm", "max_topic_size", "message_expiry"})


def admit(options: list[Option], *, update: bool = False) -> list[Option]:
    """Return `options` without those that mean "the server's default".

    In their canonical kinds at creation; in an update as they were sent, as a real server stores them.

    Raises:
        RefusedError: A key is unknown (or, in an update, fixed at creation), or a value cannot be understood.
    """
    admitted: list[Option] = []
    for key, kind, value in options:
        if key not in DEFAULTS or (update and key not in _UPDATABLE):
            raise RefusedError(fields.UNSUPPORTED_OPTION)
        canonical = _canonical(key, kind, value)
        if canonical is not None:
            admitted.append((key, kind, value) if update else (key, *canonical))
    return sorted(admitted)


def derived(options: list[Option]) -> list[Option]:
    """Return the defaults of every key that `options` does not set."""
    given = {key for key, _, _ in options}
    return [(key, *default) for key, default in DEFAULTS.items() if key not in given]


def number(options: list[Option], key: str) -> int:
    """Return the number that the option `key` has, given or by default."""
    return int.from_bytes(_effective(options, key), "little")


def compression_code(options: list[Option]) -> int:
    """Return the topic's compression as its code: 1 none, 2 gzip."""
    return _COMPRESSION[str(_effective(options, "compression_algorithm"), "utf-8")]


def _effective(options: list[Option], key: str) -> bytes:
    given = [_canonical(key, kind, value) for name, kind, value in options if name == key]
    _, value = given[0] if given and given[0] is not None else DEFAULTS[key]
    return value


def _canonical(key: str, kind: int, value: bytes) -> tuple[int, bytes] | None:
    """Return the value in the key's own kind, or None for zero, which means the default."""
    text = str(value, "utf-8", "replace").strip().lower() if kind == fields.STRING_KIND else None
    default_kind, _ = DEFAULTS[key]
    if default_kind == fields.STRING_KIND:
        return _text(_known(text, _NAMES[key]))
    if default_kind == fields.BOOL_KIND:
        on = value not in (b"", b"\0") if text is None else _known(text, ("false", "true")) == "true"
        return fields.BOOL_KIND, bytes((on,))
    amount = int.from_bytes(value, "little") if text is None else _parse_number(key, text)
    low, high = _RANGES.get(key, (0, UNLIMITED))
    if key == "segment_size" and amount == 0:
        return None
    if not low <= amount <= high or (key == "segment_size" and amount % 512):
        raise RefusedError(fields.INVALID_OPTION_VALUE)
    if default_kind == fields.UINT32_KIND:
        return _u32(amount)
    return _u64(amount) if amount else None


def _known(name: str | None, names: Collection[str]) -> str:
    if name is None or name not in names:
        raise RefusedError(fields.INVALID_OPTION_VALUE)
    return name


def _parse_number(key: str, text: str) -> int:
    """Return a byte size (`128 MiB`) or, for `message_expiry`, a time in microseconds (`7 days`)."""
    if text in ("never", "none", "unlimited", "never_expire", "disabled"):
        return UNLIMITED
    if text in ("default", "server_default"):
        return 0
    units = _TIME_UNITS if key == "message_expiry" else _SIZE_UNITS
    match = re.fullmatch(r"(\d{1,20})\s*([a-z]*)", text, re.ASCII)
    if match is None:
        raise RefusedError(fields.INVALID_OPTION_VALUE)
    amount, unit = int(match[1]), match[2]
    if unit not in units:
        unit = unit.removesuffix("s")
    if unit not in units:
        raise RefusedError(fields.INVALID_OPTION_VALUE)
    return amount * units[unit]
