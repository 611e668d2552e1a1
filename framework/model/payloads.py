"""Payloads as a column: one block of bytes for many records, without a Python object per record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, final, overload

import attrs
from typing_extensions import override

if TYPE_CHECKING:
    import msgspec
    import numpy as np
    from numpy.typing import NDArray

_LINE_FEED = 10
_BRACES = b"{}"


@attrs.frozen(slots=True, eq=False)
class ParsedRows:
    """What a parser has made of each payload of a column, so that nothing parses it again. It never changes.

    Attributes:
        decoder: the parser, to know it by.
        rows: in order.
    """

    decoder: object
    rows: list[Any] = attrs.field(repr=False)


@final
class PayloadColumn(Sequence[bytes]):
    r"""Payloads of text in one block of bytes, each followed by a line feed, none with a line feed inside.

    Ask for it with `type(payloads) is PayloadColumn`: an abstract base makes `isinstance` slow for each small object.

    A sequence of `bytes`: `column[3]` and iteration copy the payloads that you ask for. A slice shares the block and
    copies nothing, so it keeps the whole block in memory. Never changes; threads may share it.

    Use it for formats whose records are lines, or JSON without line breaks. Payloads with arbitrary bytes need a list.

    Args:
        data: the payloads, each followed by `\n`. It must end with one.
        ends: the offset of each of these line feeds; searched for by default.
        base: the offset of the first byte of `data`, in the count of `ends`.
        parsed: what a parser has made of the payloads.

    Attributes:
        data: these bytes.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        ends: NDArray[np.int64] | None = None,
        base: int = 0,
        parsed: ParsedRows | None = None,
    ) -> None:
        self.data = data
        self.parsed = parsed
        self.ends: NDArray[np.int64] = line_feeds(data) if ends is None else ends
        self.base = base
        if len(data) != (int(self.ends[-1]) + 1 - base if len(self.ends) else 0):
            raise ValueError("the last payload of a column must end with a line feed")

    @classmethod
    def join(cls, columns: Sequence[PayloadColumn]) -> PayloadColumn:
        """Return one column with the payloads of all."""
        import numpy as np  # noqa: PLC0415 - loaded when used

        begins = accumulate((len(column.data) for column in columns), initial=0)
        ends = [column.ends + (begin - column.base) for column, begin in zip(columns, begins)]  # noqa: B905
        return cls(b"".join([column.data for column in columns]), np.concatenate(ends), parsed=_joined_rows(columns))

    def with_parsed(self, parsed: ParsedRows | None) -> PayloadColumn:
        """Return the same payloads with what a parser has made of them; without it for None."""
        return PayloadColumn(self.data, self.ends, self.base, parsed)

    @property
    def size_bytes(self) -> int:
        """The sum of the payloads' lengths."""
        return len(self.data) - len(self.ends)

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The offset of each payload, in the count of `ends`."""
        import numpy as np  # noqa: PLC0415 - loaded when used

        begins = np.empty_like(self.ends)
        begins[:1] = self.base
        np.add(self.ends[:-1], 1, out=begins[1:])
        return begins

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The length of each payload."""
        return self.ends - self.begins

    @property
    def first_bytes(self) -> NDArray[np.uint8]:
        """The first byte of each payload, which is the line feed behind it when it is empty."""
        return self._bytes_at(self.begins - self.base)

    @property
    def last_bytes(self) -> NDArray[np.uint8]:
        """The last byte of each payload; anything when it is empty."""
        return self._bytes_at(self.ends - (self.base + 1))

    @cached_property
    def all_braced(self) -> bool:
        """Whether every payload begins with `{` and ends with `}`.

        Then a parser of JSON that reads the column as a whole, and finds as many objects as there are payloads, has found one
        in each: no object crosses a line's end, since JSON has no line feed inside a string, and no `}` before a `{`.
        """
        return bool((self.first_bytes == _BRACES[0]).all() and (self.last_bytes == _BRACES[1]).all())

    def _bytes_at(self, offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
        import numpy as np  # noqa: PLC0415 - loaded when used

        found: NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)[offsets]
        return found

    def ended_with(self, end: bytes) -> bytes:
        """Return the payloads, each followed by `end`, as one piece."""
        return bytes(self.data).replace(b"\n", end)

    @override
    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    @override
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if not isinstance(index, slice):
            number = range(len(self))[index]
            return bytes(self.data[self._begin(number) : int(self.ends[number]) - self.base])
        start, stop, step = index.indices(len(self))
        if step != 1:
            return list(self)[index]
        begin, end = self._begin(start), self._begin(max(start, stop))
        parsed = self.parsed
        if parsed is not None:
            parsed = ParsedRows(parsed.decoder, parsed.rows[start:stop])
        return PayloadColumn(memoryview(self.data)[begin:end], self.ends[start:stop], self.base + begin, parsed)

    def _begin(self, number: int) -> int:
        return int(self.ends[number - 1]) + 1 - self.base if number else 0

    @override
    def __iter__(self) -> Iterator[bytes]:
        lines = bytes(self.data).split(b"\n")
        lines.pop()
        return iter(lines)

    @override
    def __eq__(self, other: object) -> bool:
        if isinstance(other, PayloadColumn):
            return self.data == other.data
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares equal to a list

    @override
    def __repr__(self) -> str:
        return f"<{len(self)}>"


def _joined_rows(columns: Sequence[PayloadColumn]) -> ParsedRows | None:
    """Return the rows of all columns; None when one has none, or those of another parser."""
    parsed = [column.parsed for column in columns if column.parsed is not None]
    if len(parsed) < len(columns) or any(each.decoder is not parsed[0].decoder for each in parsed):
        return None
    return ParsedRows(parsed[0].decoder, list(chain.from_iterable(each.rows for each in parsed)))


def line_feeds(data: bytes | memoryview) -> NDArray[np.int64]:
    """Return the offset of each line feed."""
    import numpy as np  # noqa: PLC0415 - loaded when used

    return np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)


def decode_objects(column: PayloadColumn, decoder: msgspec.json.Decoder[Any]) -> list[Any] | None:
    """Return the JSON object in each payload; None when not each of them surely holds one.

    Args:
        column: the payloads. Nothing is decoded when this decoder has parsed them already.
        decoder: of a type that only an object has.

    Raises:
        DecodeError, RecursionError: one of them is not JSON, or not of the decoder's type.
        UnicodeDecodeError: a text that the decoder builds is not UTF-8.
    """
    parsed = column.parsed
    if parsed is not None and parsed.decoder is decoder:
        return parsed.rows
    if not column.all_braced:
        return None
    rows = decoder.decode_lines(column.data)
    return rows if len(rows) == len(column) else None


def size_of(payloads: Sequence[bytes]) -> int:
    """Return the sum of the payloads' lengths."""
    return payloads.size_bytes if type(payloads) is PayloadColumn else sum(map(len, payloads))


BYTES_TYPES = (bytes, bytearray, memoryview)
"""What a payload may be, before `owned`."""


def owned(payloads: Sequence[bytes]) -> Sequence[bytes]:
    """Return payloads that nothing changes while they wait: copies of those that lie in a buffer, which may be used again.

    The list is another one, too. Payloads of `bytes` are not copied.

    Raises:
        TypeError: one of them is something else than bytes. The text is its type's name.
    """
    if type(payloads) is PayloadColumn:
        data = payloads.data
        if type(data) is bytes or (type(data) is memoryview and type(data.obj) is bytes):
            return payloads
        return PayloadColumn(bytes(data), payloads.ends.copy(), payloads.base, payloads.parsed)
    kinds = set(map(type, payloads))
    if kinds <= {bytes}:
        return payloads if type(payloads) is tuple else list(payloads)
    for kind in kinds:
        if not issubclass(kind, BYTES_TYPES):
            raise TypeError(kind.__name__)
    return list(map(bytes, payloads))


def longest(payloads: Sequence[bytes]) -> int:
    """Return the length of the longest payload; 0 without any."""
    if isinstance(payloads, PayloadColumn):
        return int(payloads.sizes.max(initial=0))
    return max(map(len, payloads), default=0)


def count_within(payloads: Sequence[bytes], max_bytes: int) -> int:
    """Return how many of the first payloads together have at most `max_bytes` bytes."""
    if isinstance(payloads, PayloadColumn):
        return int(payloads.sizes.cumsum().searchsorted(max_bytes, side="right"))
    return bisect_right(list(accumulate(map(len, payloads))), max_bytes)


def column_of(payloads: Sequence[bytes]) -> PayloadColumn | None:
    """Return a list of payloads as a column; None when one of them holds a line feed."""
    column = PayloadColumn(b"\n".join((*payloads, b"")))
    return column if len(column) == len(payloads) else None


def join_payloads(parts: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return all payloads in order: as a column when a part is one, and no payload of the others holds a line feed."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, PayloadColumn) for part in parts):
        columns = [part if isinstance(part, PayloadColumn) else column_of(part) for part in parts]
        made = [column for column in columns if column is not None]
        if len(made) == len(parts):
            return PayloadColumn.join(made)
    return list(chain.from_iterable(parts))
