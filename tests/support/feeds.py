"""Feeds of listings with their decisions, made of the options of both."""

from __future__ import annotations

from typing import Any

from framework.discovery.listing_feed import ListingFeed
from framework.discovery.new_objects import NewObjects

_OF_OBJECTS = ("selection", "offsets", "numbering_options", "tolerant", "start_entry", "key_of", "split_policy")


def listing_feed(kind: type[ListingFeed] = ListingFeed, **options: Any) -> Any:
    """A feed of that class; what it defers is deferred by the feed."""
    objects = NewObjects(
        defer=lambda native: feed.defer(native),  # noqa: PLW0108 - made below
        longest_pause_seconds=options["poll_interval_seconds"],
        in_order=options.get("order") is not None,
        **{name: options.pop(name) for name in _OF_OBJECTS if name in options},
    )
    feed = kind(objects=objects, **options)
    return feed
