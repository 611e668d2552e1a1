"""Whether bytes are UTF-8."""

from __future__ import annotations

_CHECKED_BYTES = 1 << 20


def check_utf8(data: bytes | memoryview) -> None:
    """Check that bytes are UTF-8, whatever their length in little memory: text may take four times as much as its bytes.

    Raises:
        UnicodeDecodeError: they are not; its `start` is right.
    """
    if type(data) is bytes and data.isascii():
        return
    at = 0
    while len(data) - at > _CHECKED_BYTES:
        end = at + _CHECKED_BYTES
        while end > at + _CHECKED_BYTES - 4 and data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - inside a character
            end -= 1
        _decode(data, at, end)
        at = end
    _decode(data, at, len(data))


def _decode(data: bytes | memoryview, start: int, end: int) -> None:
    part = data if end - start == len(data) else data[start:end]
    try:
        str(part, "utf-8")
    except UnicodeDecodeError as exc:
        if start:
            exc.start += start
        raise
