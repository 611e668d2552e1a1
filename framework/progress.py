"""How far a run is: one value, made by the engine, shown by the program."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Progress:
    """Figures of a run so far. Totals are what the listing has shown up to now; they grow while a pass is under way.

    Attributes:
        state: what the run is doing: `starting`, `recovering`, `listing`, `sending`, `waiting`, `reconnecting`, and at the end
            `done` or `stopped`.
        objects_done: objects finished in this run: read to the end, failed, or gone. Of a split one each share counts, here and
            below.
        objects_total: objects that were new or unfinished.
        bytes_done: listed sizes of the finished ones.
        bytes_total: listed sizes of all that were new or unfinished.
        records: records that Iggy has confirmed.
        skipped: bad records left out.
        failed: objects whose rest was left out.
        vanished: objects deleted between list and read.
        archived: times that an object was found archived, and left for the next pass.
        kinds: error class -> bad records and objects that were left out for it.
        letters: dead letters stored.
        listed: objects of the current or last listing.
        left_out: reason -> objects left out by the filters in the last listing.
        passes: complete listings.
        list_requests: pages of listings asked for.
        objects_opened: objects of which bytes were asked for.
        retries: calls to the store that were tried again.
        record_bytes: payload bytes that Iggy has confirmed.
        send_requests: confirmed requests that held records.
        queue_records: records waiting to be sent.
        queue_bytes: their payload bytes.
        blocked_seconds: how long the reader was held back by a full queue.
        position_commits: deltas written to the offsets topic.
        recoveries: times the connection to Iggy broke and the state was recovered.
        first_record_seconds: from the start to the first confirmed record; None before.
    """

    state: str = "starting"
    objects_done: int = 0
    objects_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    records: int = 0
    skipped: int = 0
    failed: int = 0
    vanished: int = 0
    archived: int = 0
    kinds: dict[str, int] = attrs.field(factory=dict)
    letters: int = 0
    listed: int = 0
    left_out: dict[str, int] = attrs.field(factory=dict)
    passes: int = 0
    list_requests: int = 0
    objects_opened: int = 0
    retries: int = 0
    record_bytes: int = 0
    send_requests: int = 0
    queue_records: int = 0
    queue_bytes: int = 0
    blocked_seconds: float = 0.0
    position_commits: int = 0
    recoveries: int = 0
    first_record_seconds: float | None = None
