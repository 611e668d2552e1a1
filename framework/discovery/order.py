"""The order in which the objects of a listing are read: `[discovery] order`, such as that of a restored archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from framework.config.key_template import NOTHING_NAMED
from framework.model.objects import NativeObject

if TYPE_CHECKING:
    from framework.config.sections import SourceCommonConfig

SortKey = tuple[str | int, ...]
"""The place of an object among the others of its listing."""


def listing_order(config: SourceCommonConfig) -> Callable[[NativeObject], SortKey] | None:
    """Return the place of an object by the start offset in its key; None to keep the order of the listing."""
    template = config.naming.parsed()
    if config.discovery.order != "start_offset" or template is None:
        return None

    def place(native: NativeObject) -> SortKey:
        match = template.match(native.key) or NOTHING_NAMED
        return match.start_offset or 0, native.key

    return place
