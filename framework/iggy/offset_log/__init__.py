"""The offsets log: a source's positions and watermark, in one partition of an Iggy topic.

    records     the values that records hold: claims, counts, anchors, what a snapshot knows
    codec       the kinds of records as bytes; `json_forms` has the JSON of their values, `framing` the message around it
    log         appending, following, reading
    state       the records applied in the order of the log: claim, opening, begin, open, progress, snapshot
    loading     the state at the end of a log
    fencing     one writer at a time: look, claim, fence, open; `running_instances` only looks
    partition_replay  reading a data partition beyond its anchor, and taking it over
    lost_log    a log that was purged, deleted or renamed; lost_partitions: partitions that the server no longer has
    snapshots   the state, written to the log, and the log truncated before it

docs/concepts/positions.md has the invariants and why they hold.
"""
