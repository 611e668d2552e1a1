"""The lines of one split of an object.

A split owns the lines that begin in its bytes. Its read starts one byte earlier, to see whether a line begins
there, and continues to the end of its last line. A split within one long line owns no lines.
"""

from __future__ import annotations

from typing_extensions import override

from framework.model.objects import ResumePoint
from framework.model.splits import Split
from framework.transformer import InputOptions, ObjectInput
from transformers.compression import PIECE_BYTES, UnpackedStream, detect_compression, is_wide
from transformers.split_input import OnwardInput, head_of


class SplitLines(UnpackedStream):
    """The complete lines of a split as one stream of bytes. Call `seek`, then read.

    An object that is compressed, although its name does not show it, cannot be read from the middle: split 1 owns
    all of it, the other splits own nothing. So it is with UTF-16 and UTF-32, which split 1 refuses.

    Args:
        source: the object.
        split: the split.
        options: whose compression is `none` or `auto`.
        mark: where a line of this split begins; None to search for its first line.
        piece_bytes: approximate bytes per read.
    """

    def __init__(
        self,
        source: ObjectInput,
        split: Split,
        options: InputOptions,
        *,
        mark: ResumePoint | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        start, end = split.window(source.size, mark)
        # Only the first split can be packed: behind byte 0 nothing is unpacked.
        super().__init__(OnwardInput(source, end), options, start=start, piece_bytes=piece_bytes, text=True)
        self._object = source
        self._split = split
        self._is_auto = options.compression == "auto"
        self._begins_line = mark is not None or split.number == 1
        self._at = start  # of the next byte that comes from below
        self._rest = b""
        self._over = False

    def seek(self) -> int | None:
        """Return the offset of the split's first line, None without one; reads up to there, within the split."""
        if self._at >= min(self._split.end, self._object.size):
            return None
        if self._begins_line:
            return self._at
        asked = False
        while self._at < self._split.end - 1 and (piece := super().read_some()):
            if not asked and not self._is_divided():
                return None
            asked = True
            cut = piece.find(b"\n") + 1
            self._at += cut or len(piece)
            if cut:
                self._rest = piece[cut:]
                return self._at if self._at < self._split.end else None
        return None

    def _is_divided(self) -> bool:
        head = head_of(self._object)
        return not is_wide(head) and not (self._is_auto and detect_compression(head, self._object.key) != "none")

    @override
    def read_some(self) -> bytes:
        if self._over:
            return b""
        piece, self._rest = self._rest or super().read_some(), b""
        if self.packed:
            return piece
        before, self._at = self._at, self._at + len(piece)
        # the last line holds the split's last byte: a piece before that byte has no end of it
        cut = piece.find(b"\n", max(0, self._split.end - 1 - before)) + 1
        if cut:
            self._over = True
            return piece[:cut]
        return piece
