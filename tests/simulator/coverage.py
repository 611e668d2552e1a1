"""Which kinds of events and which properties of sources have met in histories: each pair of them should, often.

Two events meet when little time passes between them; an event meets a property, and two properties each other, in one history.
"""

from itertools import combinations, combinations_with_replacement, product

NEAR_SECONDS = 2.0
"""A source that has to start again does so within that time, and recovers."""

EVENTS = (
    # processes and their hosts
    "source killed",
    "source and tasks killed",
    "task killed",
    "paused",
    "no power",
    "stopped",
    "clock stepped",
    "second instance",
    "standby",
    "standby killed",
    "neighbour ended",
    # Iggy
    "server killed",
    "server forgot",
    "server restarted",
    "send cut",
    "acknowledgement lost",
    "other request cut",
    "send late",
    "append late",
    "foreign messages",
    "expired",
    "purged",
    "topic deleted",
    "log lost",
    "server restored",
    "log restored",
    "topics restored",
    # people, while the source runs
    "purged running",
    "topic deleted running",
    "partitions by hand",
    "log purged",
    "log deleted",
    "log partitions by hand",
    "letters purged",
    "letters deleted",
    "letters partitions by hand",
    # the store
    "overwritten",
    "uploaded late",
    "restored",
    "deleted",
    "put again",
    "archived",
    "wrong 404",
    "wrong 403",
    "wrong 503",
    "dates stepped",
    "list written",
    "list lost",
    "list unavailable",
    # commands
    "reset",
    "position set",
    "accepted",
    "replayed",
    # configuration
    "changed tasks",
    "changed headers",
    "changed split",
    "changed batch",
    "changed reading",
    "changed engine",
    "changed window",
    "changed min_age",
    "changed format",
    "changed prefix",
    "changed endpoint",
    "changed more_partitions",
    "changed fewer_partitions",
    "changed records_topic",
    "changed offsets_topic",
    "changed mode",
    "changed order",
    "changed keyed",
    "changed transforms",
)

PROPERTIES = (
    "tasks",
    "spark",
    "no headers",
    "splits",
    "transforms",
    "partition_by",
    "bad records skipped",
    "dead letters",
    "topics by key",
    "incremental",
    "key list",
    "start offsets",
    "waits for archived",
    "min_age",
    "short window",
    "forgetting server",
    "compacted soon",
    "neighbour",
)

NEEDS = {
    "task killed": "tasks",
    "server forgot": "forgetting server",
    "list written": "key list",
    "list lost": "key list",
    "list unavailable": "key list",
    "neighbour ended": "neighbour",
    "changed order": "start offsets",
    "changed mode": "key list",
    "replayed": "dead letters",
    "letters purged": "dead letters",
    "letters deleted": "dead letters",
    "letters partitions by hand": "dead letters",
}
"""Event -> the property without which it does not come."""

APART = {
    "neighbour": (  # their ways out concern both sources
        "purged",
        "topic deleted",
        "log lost",
        "changed format",
        "changed prefix",
        "changed endpoint",
        "changed more_partitions",
        "changed fewer_partitions",
        "changed records_topic",
        "changed offsets_topic",
        "expired",
        "partition_by",
        "topics by key",
        "server restored",
        "log restored",
        "topics restored",
        "purged running",
        "topic deleted running",
        "partitions by hand",
        "log purged",
        "log deleted",
        "log partitions by hand",
        "letters purged",
        "letters deleted",
        "letters partitions by hand",
        "replayed",
        "changed keyed",
        "changed transforms",
    ),
    "key list": ("changed endpoint", "incremental"),  # a list states contents of one bucket
    "start offsets": ("changed endpoint", "changed prefix", "topics by key", "key list", "incremental"),
    "partition_by": ("splits", "changed split", "position set", "changed format"),
    "topics by key": ("changed records_topic",),
    "bad records skipped": ("wrong 403", "dead letters"),  # an object that may not be read is skipped, too
    "dead letters": ("wrong 403",),
    "transforms": ("changed format",),  # chunks hold several records, of which the transform refuses all or none
    "position set": ("changed format", "changed prefix", "changed endpoint"),
    "changed keyed": ("splits", "changed split", "position set", "changed format", "topics by key"),
    "changed transforms": ("bad records skipped", "dead letters", "changed format"),
    "accepted": ("changed format", "changed keyed", "changed transforms", "changed prefix", "changed endpoint"),
    "replayed": (
        "changed format",
        "changed fewer_partitions",
        "forgetting server",
        "archived",  # its letters stay
        "waits for archived",
    ),
}
"""Kind -> kinds that it cannot meet, or of which the checker cannot tell what should come of both."""


_APART = {
    kind: {*APART.get(kind, ()), *(one for one in APART if kind in APART[one])} for kind in (*EVENTS, *PROPERTIES)
}


def possible_pairs():
    """Every pair that may meet, the names of each in the order of the alphabet; an event also meets its own kind."""
    pairs = [*combinations_with_replacement(EVENTS, 2), *combinations(PROPERTIES, 2)]
    pairs += product(EVENTS, PROPERTIES)
    return {tuple(sorted(pair)) for pair in pairs if all_may_meet(pair)}


def all_may_meet(kinds):
    """Whether all of these, and what they need, can come in one history."""
    kinds = {*kinds, *(NEEDS[kind] for kind in kinds if kind in NEEDS)}
    return all(kinds.isdisjoint(_APART[kind]) for kind in kinds)


def properties_of(plan, settings):
    """What is so in a history all the time, or in one life of its source."""
    having = {
        "tasks": settings.tasks > 1,
        "spark": settings.engine == "spark",
        "no headers": settings.headers == "none",
        "splits": settings.split_size > 0,
        "transforms": settings.transforms,
        "partition_by": settings.keyed,
        "bad records skipped": settings.bad and not settings.letters,
        "dead letters": settings.letters,
        "topics by key": settings.topic == "{{topic}}",
        "incremental": settings.mode == "incremental",
        "key list": settings.mode == "keys",
        "start offsets": settings.order == "start_offset",
        "waits for archived": settings.archived == "wait",
        "min_age": settings.min_age > 0,
        "short window": settings.window < 60,
        "forgetting server": plan.required > 1,
        "compacted soon": plan.tuning.get("compact_from") == 1,
        "neighbour": plan.neighbour is not None,
    }
    return {name for name, has in having.items() if has}


def pairs_met(events, properties):
    """The pairs of a history.

    Args:
        events: (moment, kind), in order.
        properties: that it had.
    """
    met = set(combinations(sorted(properties), 2))
    met |= {tuple(sorted((kind, one))) for kind in {kind for _, kind in events} for one in properties}
    for place, (at, kind) in enumerate(events):
        for other_at, other in events[place + 1 :]:
            if other_at > at + NEAR_SECONDS:
                break
            met.add(tuple(sorted((kind, other))))
    return met


def report(histories_of, most):
    """In how many histories pairs met; and those that did in fewer than so many.

    Args:
        histories_of: pair -> histories in which it met.
        most: of the pairs to name.
    """
    counts = {pair: histories_of[pair] for pair in sorted(possible_pairs())}
    ordered = sorted(counts.values())
    tenth, half = ordered[len(ordered) // 10], ordered[len(ordered) // 2]
    never = f"{len(counts)} pairs, of which {ordered.count(0)} never met; a tenth of them in at most {tenth} histories"
    seldom = [f"{count:6}  {one} + {other}" for (one, other), count in counts.items() if count < most]
    return [f"{never}, half in at most {half}", *seldom]
