"""Progress of a run: one value, created by the engine, shown by the program."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Progress:
    """Figures of a run so far. Totals count what the listing has shown; they grow during a listing.

    Attributes:
        state: `starting`, `recovering`, `listing`, `sending`, `waiting`, `reconnecting`, `store away`, and at the end
            `done` or `stopped`.
        objects_done: objects finished in this run: read to the end, failed, or gone. Each split counts, here and below.
        objects_total: objects that were new or unfinished.
        bytes_done: listed sizes of the finished objects.
        bytes_total: listed sizes of all objects that were new or unfinished.
        records: records that Iggy has confirmed.
        skipped: bad records that were skipped.
        failed: objects whose rest was skipped.
        vanished: objects deleted between list and read.
        done_before: objects that were finished before this run, as its first complete listing showed.
        archived: how often an object was found archived, and deferred to the next listing.
        kinds: error class -> bad records and objects skipped for it.
        letters: dead letters stored.
        listed: objects of the current or last listing.
        left_out: reason -> objects filtered in the last listing.
        passes: complete listings.
        list_requests: requested pages of listings.
        objects_opened: objects whose bytes were requested.
        retries: retried calls to the store.
        record_bytes: payload bytes that Iggy has confirmed.
        send_requests: confirmed requests that held records.
        queue_records: records waiting to be sent.
        queue_bytes: their payload bytes.
        blocked_seconds: time that a full queue blocked the reader.
        position_commits: deltas written to the offsets topic.
        recoveries: times the connection to Iggy broke and the state was recovered.
        store_away: tasks whose store does not answer: they retry calls, or wait.
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
    done_before: int = 0
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
    store_away: int = 0
    first_record_seconds: float | None = None

    @property
    def iggy_up(self) -> bool:
        """Whether a connection to Iggy can carry records."""
        return self.state not in {"starting", "recovering", "reconnecting"}

    @property
    def began(self) -> bool:
        """Whether there are figures to show: the run reached its first listing."""
        return bool(self.listed or self.passes or self.objects_total or self.objects_done or self.records)
