"""The selection of a source's objects, as far as its positions depend on it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from framework.errors import PositionError
from framework.offsets.watermark import Watermark


class SelectionScope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objects that a configuration selects. Its fields are its stored form.

    Attributes:
        address: the endpoint of the bucket's store; empty for the vendor's own endpoint, None when unknown.
        bucket: the bucket's name.
        prefixes: the listed prefixes.
        options: option -> digest of its value.
        oldest_ms: `modified_after` in milliseconds; None: objects of any age.
        since_start: whether `oldest_ms` is the time of the source's first start, for `modified_after = "now"`.
        changes_accepted: whether the selection may change from now on (`offsets accept-data-loss`).
    """

    address: str | None = None
    bucket: str
    prefixes: tuple[str, ...]
    options: dict[str, str]
    oldest_ms: int | None = None
    since_start: bool = False
    changes_accepted: bool = False

    def check(self, before: SelectionScope, watermark: Watermark) -> None:
        """Reject a watermark that may hide objects which were not selected when it advanced.

        Adding or removing a prefix is safe: each prefix has its own ranges. A later `modified_after` is safe, too: it
        shows nothing new. While no position was compacted, every object under the watermark has its position, so the
        watermark can be dropped.

        Args:
            before: the selection when positions were last written.
            watermark: the watermark of that time.

        Raises:
            PositionError: names the changes, and the ways to resolve them.
        """
        changed = list(self._changes(before, watermark))
        if changed and watermark.objects and not before.changes_accepted:
            raise PositionError(
                f"{', '.join(changed)} changed since positions of {watermark.objects:,} finished objects were compacted, so it "
                f"is unknown now which objects are new. Set it back; or run `offsets accept-data-loss`, and what is "
                f"selected now is read, also what was finished long ago; or give the source another [source] name"
            )

    def left_of(self, before: SelectionScope, watermark: Watermark) -> Watermark:
        """Return the watermark for this selection, given the watermark of `before`: empty after a relevant change."""
        if any(self._changes(before, watermark)):
            return Watermark(bucket=self.bucket)
        return watermark or replace(watermark, bucket=self.bucket)  # without ranges it is of no bucket yet

    def _moved(self, before: SelectionScope) -> Iterator[str]:
        if before.bucket != self.bucket:
            yield f'the bucket ("{before.bucket}" then, "{self.bucket}" now)'
        elif before.address is not None and self.address is not None and before.address != self.address:
            names = [f'"{address}"' if address else "its vendor's" for address in (before.address, self.address)]
            yield f"the address of the store ({names[0]} then, {names[1]} now)"

    def _changes(self, before: SelectionScope, watermark: Watermark) -> Iterator[str]:
        if not watermark:
            return
        yield from self._moved(before)
        for old in sorted(watermark.prefixes.keys() - set(self.prefixes)):
            for new in self.prefixes:
                if old.startswith(new) or new.startswith(old):
                    yield f'the prefix ("{old}" then, "{new}" now)'
        names = sorted({*before.options, *self.options})
        yield from (name for name in names if before.options.get(name) != self.options.get(name))
        if before.oldest_ms is not None and (self.oldest_ms is None or self.oldest_ms < before.oldest_ms):
            yield "[discovery] modified_after (earlier now)"
