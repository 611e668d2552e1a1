"""What decides which objects a source reads, as far as the watermark is bound to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from framework.errors import PositionError
from framework.watermark import Watermark


@attrs.frozen(kw_only=True, slots=True)
class SelectedObjects:
    """The objects that a configuration selects.

    Attributes:
        bucket: the bucket's name.
        prefixes: what is listed of it.
        options: option -> digest of its value.
        oldest_ms: `modified_after` in milliseconds; None: everything, however old.
    """

    bucket: str
    prefixes: Sequence[str]
    options: Mapping[str, str]
    oldest_ms: int | None = None

    def check(self, watermark: Watermark) -> None:
        """Refuses a watermark that may hide objects which were not selected when it rose.

        A prefix more or less is no matter: each has ranges of its own. Nor is a later `modified_after`: it shows nothing new.

        Raises:
            PositionError: it names what changed, and the ways out.
        """
        changed = list(self._changes(watermark))
        if changed:
            raise PositionError(
                f"{', '.join(changed)} changed since the positions of {watermark.objects:,} finished objects were folded, so it "
                f"cannot be told any more which objects are new. Set it back; or, to read what is selected now from the start, "
                f"give the source another [source] name, or run `offsets reset --all`"
            )

    def _changes(self, watermark: Watermark) -> Iterator[str]:
        if watermark.bucket != self.bucket:
            yield f'the bucket ("{watermark.bucket}" then, "{self.bucket}" now)'
            return
        for old in watermark.prefixes:
            for new in self.prefixes:
                if old != new and (old.startswith(new) or new.startswith(old)) and old not in self.prefixes:
                    yield f'the prefix ("{old}" then, "{new}" now)'
        names = sorted({*watermark.selection, *self.options})
        yield from (name for name in names if watermark.selection.get(name) != self.options.get(name))
        if watermark.oldest_ms is not None and (self.oldest_ms is None or self.oldest_ms < watermark.oldest_ms):
            yield "[discovery] modified_after (earlier now)"
