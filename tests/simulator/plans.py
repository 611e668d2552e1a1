"""Which histories there are: a plan for each seed."""

import random

import attrs

from tests.simulator.coverage import EVENTS, NEEDS, PROPERTIES, all_may_meet, possible_pairs
from tests.simulator.history import WIDTH, Plan, Settings
from tests.simulator.neighbour import OWN_LOG, OWN_TOPIC


def plan_of(seed, theme="all"):
    """The plan of a seed."""
    if theme == "mixed":  # a fifth of them are pairs: a theme of its own finds more mistakes, and no meeting of others
        names = [*sorted(THEMES), *["pairs"] * (len(THEMES) // 4)]
        theme = names[seed % len(names)]
    rng = random.Random(f"{theme}/{seed}")
    return THEMES[theme](rng)


def some(rng, weights, part=0.6):
    """Some of these, each with its weight."""
    return {name: weight for name, weight in weights.items() if rng.random() < part}


def settings_of(rng, **more):
    partitions = rng.choice((1, 2, 2, 3))
    values = {
        "partitions": partitions,
        "tasks": rng.choice((1, 1, 2, 3)),
        "headers": rng.choice(("provenance", "provenance", "none")),
        "batch_length": rng.choice((1, 2, 3, 5)),
        "batch_bytes": rng.choice((WIDTH, 3 * WIDTH, 1 << 21)),
        "queue_records": rng.choice((1, 5, 50)),
        "prefetch_objects": rng.choice((1, 2, 4)),
        "linger_time": rng.choice((0.0, 0.005, 0.05)),
        "commit_interval": rng.choice((0.05, 0.3, 1.0, 3.0)),
        "poll_interval": rng.choice((0.3, 0.6, 1.5)),
        "window": rng.choice((6.0, 15.0, 86_400.0)),
        "list_concurrency": rng.choice((1, 1, 2)),
        **more,
    }
    values["tasks"] = min(values["tasks"], values["partitions"])
    return Settings(**values)


def all_kinds(rng):
    bad = rng.random() < 0.25
    letters = bad and rng.random() < 0.7
    split = rng.choice((0, 0, 0, 2 * WIDTH, 3 * WIDTH))
    acts = {
        "put": 10.0,
        **some(rng, {"old_put": 4, "restore": 4, "delete": 2, "lie": 3, "stop": 1, "kill": 1, "foreign": 1}, 0.5),
    }
    acts |= some(rng, {"second": 1, "clock": 1, "reset": 1, "purge": 0.5, "lose_log": 0.5}, 0.12)
    faults = some(
        rng,
        {"kill": 4, "kill_worker": 2, "kill_server": 4, "cut": 3, "pause": 2, "restart_server": 1, "power": 0.3},
        0.5,
    )
    changes = tuple(some(rng, dict.fromkeys(("tasks", "headers", "split", "batch", "more_partitions"), 1), 0.35))
    changes += tuple(some(rng, dict.fromkeys(("format", "prefix", "endpoint", "fewer_partitions"), 1), 0.07))
    plan = Plan(
        settings=settings_of(rng, split_size=split, bad=bad, letters=letters),
        required=rng.choice((1, 1, 1, 3, 5, 8)),
        seconds=rng.uniform(2.0, 10.0),
        acts=acts,
        act_seconds=rng.choice((0.15, 0.4, 1.0)),
        faults=faults or {"kill": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02, 0.05)),
        changes=changes,
        change_rate=0.4,
        keys=("a/1", "a/2", "b/1", "b/2", "c/1")[: rng.randint(1, 5)],
        records=rng.choice((3, 7, 12)),
        bad_rate=0.5 if bad else 0.0,
        once_rate=rng.choice((0.0, 0.3, 1.0)),
        tuning={
            "snapshot_records": rng.choice((2, 5, 1000)),
            "compact_from": rng.choice((1, 2, 10_000)),
            "compact_share": rng.choice((8, 1000)),
            "slow_pipe": rng.choice((0.0, 0.0, 0.1)),
            "old_first": rng.random() < 0.3,
            "take_over": rng.choice((0.0, 1.0)),
        },
        bucket_options={
            "largest_read": rng.choice((WIDTH, 3 * WIDTH, 1 << 20, 1 << 20)),
            "break_rate": rng.choice((0.0, 0.0, 0.1)),
        },
        server_options={"slow": rng.choice((0.0, 0.1, 0.4)), "slowest": rng.choice((0.3, 1.0, 4.0))},
        store_slow=rng.choice((0.0, 0.1, 0.3)),
        page_size=rng.choice((1, 2, 100)),
        documented=rng.random() < 0.7,
    )
    return rng.choice((*[lambda _, plan: plan] * 6, with_list, with_list, with_order, with_neighbour))(rng, plan)


def with_list(rng, plan):
    """The same with a list of keys, from the beginning or later."""
    changes = tuple(name for name in plan.changes if name != "endpoint")  # a list states contents of one bucket
    switched = rng.random() < 0.4
    return attrs.evolve(
        plan,
        settings=attrs.evolve(
            plan.settings, mode=rng.choice(("keys", "list")) if switched else "keys", recheck=rng.random() < 0.8
        ),
        changes=(*changes, "mode") if switched else changes,
        acts={**plan.acts, "list": 3, **some(rng, {"lose_list": 0.5, "lie_of_list": 0.5}, 0.3)},
        lists=rng.choice((0.0, 0.6, 1.0)),
    )


def with_order(rng, plan):
    """The same with objects in the order of their start offsets."""
    return attrs.evolve(
        plan,
        settings=attrs.evolve(plan.settings, order="start_offset", template="{{key}}/{{start_offset}}"),
        changes=tuple(name for name in plan.changes if name not in {"endpoint", "prefix"}),
        acts={**plan.acts, "put_many": 2},
        keys=START_OFFSETS[: 2 * len(plan.keys)],
    )


def with_neighbour(rng, plan):
    """The same beside another source: only with acts and changes whose ways out concern one source."""
    apart = {"purge", "lose_log", "format", "prefix", "endpoint", "more_partitions", "fewer_partitions"}
    return attrs.evolve(
        plan,
        acts={**{name: weight for name, weight in plan.acts.items() if name not in apart}, "neighbour": 1},
        changes=tuple(name for name in plan.changes if name not in apart),
        neighbour=neighbour_of(rng, plan.settings),
    )


PAIRS = sorted(possible_pairs())
MEETINGS = 3
"""Of a history, each of three events."""


def pairs(rng):
    """Two kinds that may meet, and others that may meet these: some events in a row, some times."""
    first = rng.choice(PAIRS)
    kinds = [*first, *(NEEDS[kind] for kind in first if kind in NEEDS)]
    for kind in rng.sample(PROPERTIES, 2):
        if all_may_meet([*kinds, kind]):
            kinds.append(kind)
    others = rng.sample(EVENTS, len(EVENTS))
    if rng.random() < 0.5:
        others.sort(key=lambda kind: NEEDS.get(kind) not in kinds)  # first those that few histories can have
    for kind in others:
        if all_may_meet([*kinds, kind]) and NEEDS.get(kind, kinds[0]) in kinds:
            kinds.append(kind)
    events = [kind for kind in kinds if kind in EVENTS][: 3 * MEETINGS]
    meetings = [events[at : at + 3] for at in range(0, len(events), 3)]
    for meeting in meetings:
        if rng.random() < 0.2:
            meeting[-1] = meeting[0]
        rng.shuffle(meeting)
    return with_properties(rng, {kind for kind in kinds if kind in PROPERTIES}, meetings)


def with_properties(rng, having, meetings):
    """Sources that have these properties, and none of the others, and events that meet."""
    partitions = rng.choice((2, 3)) if {"tasks", "partition_by"} & having else rng.choice((1, 2, 3))
    bad = bool({"bad records skipped", "dead letters"} & having)
    settings = {
        "partitions": partitions,
        "tasks": rng.randint(2, partitions) if "tasks" in having else 1,
        "engine": "spark" if "spark" in having else "local",
        "headers": "none" if "no headers" in having else "provenance",
        "split_size": rng.choice((2 * WIDTH, 3 * WIDTH)) if "splits" in having else 0,
        "transforms": "transforms" in having,
        "keyed": "partition_by" in having,
        "bad": bad,
        "letters": "dead letters" in having,
        "window": 6.0 if "short window" in having else 86_400.0,
        "min_age": 1.5 if "min_age" in having else 0.0,
        "archived": "wait" if "waits for archived" in having else "skip",
    }
    if "topics by key" in having:
        settings |= {"topic": "{{topic}}", "template": "{{topic}}/{{key}}"}
    if "start offsets" in having:
        settings |= {"order": "start_offset", "template": "{{key}}/{{start_offset}}"}
    if "key list" in having:
        settings |= {"mode": "keys", "recheck": rng.random() < 0.8}
    if "incremental" in having:
        settings |= {"mode": "incremental", "lookback_keys": rng.choice((0, 1, 3)), "full_listing_interval": 2.0}
    plan = plain(
        rng,
        settings=settings,
        meetings=meetings,
        acts={"put": 3, **({"list": 1} if "key list" in having else {})},
        fault_rate=rng.choice((0.0, 0.0, 0.005)),
        keys=START_OFFSETS[:4] if "start offsets" in having else ("a/1", "a/2", "b/1", "b/2")[: rng.randint(1, 4)],
        bad_rate=0.4 if bad else 0.0,
        required=rng.choice((3, 5, 8)) if "forgetting server" in having else 1,
        tuning={
            **(SMALL if "compacted soon" in having else {}),
            "take_over": rng.choice((0.0, 1.0)),
            "standby": rng.random() < 0.2,
        },
        bucket_options={"largest_read": rng.choice((WIDTH, 1 << 20))},
        lists=rng.choice((0.0, 0.6, 1.0)) if "key list" in having else None,
        seconds=rng.uniform(3.0, 8.0),
        once_rate=rng.choice((0.0, 0.3)),
    )
    if "neighbour" in having:
        plan.neighbour = neighbour_of(rng, plan.settings)
    return plan


def plain(rng, *, settings=None, **more):
    """A source, objects that are put, kills; nothing else."""
    values = {
        "settings": settings_of(rng, **(settings or {})),
        "seconds": rng.uniform(2.0, 8.0),
        "acts": {"put": 4.0},
        "act_seconds": rng.choice((0.15, 0.4)),
        "faults": {"kill": 1},
        "fault_rate": rng.choice((0.0, 0.01, 0.03)),
        "keys": ("a/1", "a/2", "b/1")[: rng.randint(1, 3)],
        "records": rng.choice((3, 7, 12)),
        "once_rate": rng.choice((0.0, 0.5)),
        **more,
    }
    return Plan(**values)


SMALL = {"snapshot_records": 2, "compact_from": 1, "compact_share": 1000}


def wrong_answers(rng):
    """Old objects, of which the store says for a while that they are not there."""
    return plain(
        rng,
        settings={"window": 6.0},
        acts={"put": 2, "lie": 3},
        tuning={**SMALL, "old_first": True, "lies": ("404",)},
        bucket_options={"lie_rate": {"404": 0.2}},
    )


def formats(rng):
    return plain(
        rng,
        settings={"commit_interval": rng.choice((0.3, 3.0)), "batch_length": 1, "batch_bytes": WIDTH},
        changes=("format",),
        change_rate=0.8,
        acts={"put": 3},
        act_seconds=0.7,
        fault_rate=rng.choice((0.02, 0.05)),
        bucket_options={"largest_read": WIDTH},
        records=12,
        once_rate=0.0,
    )


def renumbered_tasks(rng):
    """Leaders of several tasks that end together with them, and other options at the next start."""
    plan = formats(rng)
    plan.settings = attrs.evolve(
        plan.settings,
        tasks=rng.choice((2, 3)),
        partitions=3,
        commit_interval=3.0,
        engine=rng.choice(("local", "local", "spark")),
    )
    plan.faults = {"kill_all": 1}
    plan.fault_rate = rng.choice((0.1, 0.3))
    plan.tuning["fault_at"] = "send"
    return plan


def endpoints(rng):
    return plain(
        rng,
        settings={"window": 6.0, "poll_interval": 0.3},
        acts={"put": 1, "stop": 1},
        act_seconds=1.5,
        changes=("endpoint",),
        change_rate=0.6,
        tuning={**SMALL, "old_first": True},
        seconds=rng.uniform(8.0, 16.0),
        once_rate=0.7,
        fault_rate=rng.choice((0.0, 0.002)),
    )


def prefixes(rng):
    return plain(
        rng, settings={"window": 6.0}, changes=("prefix",), change_rate=0.3, tuning={**SMALL, "old_first": True}
    )


def forgetting(rng):
    """A server that forgets tails, once, twice, in a loop; a store that is away at times."""
    return plain(
        rng,
        settings={
            "commit_interval": rng.choice((0.05, 0.3)),
            "batch_length": rng.choice((1, 2, 5)),
            "partitions": rng.choice((1, 2, 2)),
        },
        required=rng.choice((3, 5, 8, 20)),
        acts={"put": 3, "lie": 3},
        faults={"kill": 1, "kill_server": 4},
        fault_rate=rng.choice((0.01, 0.03)),
        tuning={"lies": ("503", "404"), "crash_loop": 0.6, "snapshot_records": rng.choice((2, 1000))},
        records=rng.choice((3, 5)),
    )


def forgetting_tasks(rng):
    """The same with several tasks, of both engines, and a kill between the last runs."""
    plan = forgetting(rng)
    engine = rng.choice(("local", "spark"))
    plan.settings = settings_of(rng, tasks=rng.choice((2, 3)), partitions=3, engine=engine)
    plan.tuning["last_kill"] = 0.8
    return plan


def folding(rng):
    """Several tasks, positions that are folded, overwrites."""
    return plain(
        rng,
        settings={
            "window": 9.0,
            "tasks": rng.choice((2, 3)),
            "partitions": 3,
            "commit_interval": rng.choice((0.05, 0.3)),
        },
        acts={"put": 2, "old_put": 6},
        tuning={**SMALL, "old_first": True},
        seconds=rng.uniform(8.0, 20.0),
    )


def versions(rng):
    """Overwrites in the middle of a read, with older times, and earlier versions that come back."""
    return plain(
        rng,
        acts={"put": 3, "old_put": 3, "restore": 4, "delete": 1},
        act_seconds=rng.choice((0.03, 0.1)),
        settings={"poll_interval": 0.3, "commit_interval": rng.choice((0.3, 3.0)), "batch_length": rng.choice((1, 2))},
        bucket_options={"largest_read": WIDTH, "break_rate": rng.choice((0.1, 0.3))},
        keys=("a/1", "a/2")[: rng.randint(1, 2)],
        records=12,
        server_options={"slow": rng.choice((0.0, 0.3)), "slowest": 1.0},
    )


def restored(rng):
    """Earlier versions come back again and again, and kills in the middle of them."""
    return plain(
        rng,
        acts={"put": 1, "restore": 8},
        act_seconds=rng.choice((0.5, 1.0)),
        settings={
            "poll_interval": 0.3,
            "commit_interval": rng.choice((3.0, 20.0)),
            "batch_length": 1,
            "batch_bytes": WIDTH,
        },
        bucket_options={"largest_read": WIDTH},
        keys=("a/1",),
        records=12,
        faults={"kill": 1},
        fault_rate=rng.choice((0.01, 0.02)),
        once_rate=0.0,
    )


def slow_pipes(rng):
    return plain(
        rng,
        settings={"tasks": rng.choice((2, 3)), "partitions": 3, "commit_interval": 0.05},
        tuning={**SMALL, "slow_pipe": 0.1, "compact_from": 10_000},
        faults={"kill": 1, "pause": 1},
    )


def headers(rng):
    return plain(
        rng,
        settings={"commit_interval": rng.choice((1.0, 3.0)), "batch_length": 1},
        changes=("headers",),
        change_rate=0.6,
        fault_rate=rng.choice((0.01, 0.02, 0.05)),
        bucket_options={"largest_read": WIDTH},
        records=12,
    )


def lost_logs(rng):
    by_key = rng.random() < 0.5
    return plain(
        rng,
        settings={"topic": "{{topic}}", "template": "{{topic}}/{{key}}"} if by_key else {},
        acts={"put": 3, "stop": 2, "lose_log": 2, "foreign": 2},
        once_rate=1.0,
        fault_rate=0.0,
    )


def renamed(rng):
    """Between lives the configuration names other topics, and back; data topics are deleted, and made again."""
    return plain(
        rng,
        settings={"window": rng.choice((6.0, 86_400.0)), "split_size": rng.choice((0, 0, 3 * WIDTH))},
        acts={"put": 4, "stop": 2, "kill": 0.5, **some(rng, {"recreate": 1.5, "lose_log": 0.3, "foreign": 1}, 0.5)},
        changes=tuple(some(rng, {"records_topic": 1, "offsets_topic": 1, "tasks": 1, "more_partitions": 1}, 0.6)),
        change_rate=rng.choice((0.2, 0.5)),
        required=rng.choice((1, 1, 5)),
        faults={"kill": 2, "kill_server": 1, "kill_worker": 1, "kill_all": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        once_rate=rng.choice((0.3, 1.0)),
        tuning={**(SMALL if rng.random() < 0.5 else {})},
        seconds=rng.uniform(4.0, 14.0),
    )


def incremental(rng):
    """Most listings begin behind the highest keys; keys rise, and some are overwritten or come late."""
    return plain(
        rng,
        settings={
            "mode": "incremental",
            "lookback_keys": rng.choice((0, 1, 3)),
            "full_listing_interval": rng.choice((0.8, 2.0, 5.0)),
            "poll_interval": 0.3,
            "window": rng.choice((15.0, 86_400.0)),
            "min_age": rng.choice((0.0, 0.0, 1.5)),
        },
        acts={"put": 6, "lie": 1, **some(rng, {"restore": 1, "delete": 1, "stop": 1, "reset": 0.5}, 0.5)},
        tuning={**(SMALL if rng.random() < 0.5 else {})},
        keys=tuple(f"a/{number}" for number in range(1, 9)),
        faults={"kill": 2, "kill_all": 1, "kill_worker": 1, "cut": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        seconds=rng.uniform(4.0, 12.0),
        page_size=rng.choice((1, 2, 100)),
    )


def archived(rng):
    """Objects that must be restored before they can be read, and are waited for."""
    return plain(
        rng,
        settings={"archived": "wait", "window": rng.choice((3.0, 6.0, 86_400.0)), "poll_interval": 0.3},
        acts={"put": 3, "archive": 3, **some(rng, {"old_put": 1, "stop": 1, "restore": 1}, 0.5)},
        tuning={**SMALL},
        bucket_options={"largest_read": rng.choice((WIDTH, 1 << 20)), "break_rate": rng.choice((0.0, 0.1))},
        fault_rate=rng.choice((0.0, 0.01)),
        seconds=rng.uniform(6.0, 14.0),
    )


def retention(rng):
    """The oldest messages of data topics are deleted, also those behind an anchor."""
    return plain(
        rng,
        settings={"window": rng.choice((6.0, 86_400.0)), "commit_interval": rng.choice((0.05, 0.3, 3.0))},
        acts={"put": 4, "expire": 2, **some(rng, {"stop": 1, "foreign": 1, "kill": 1, "restore": 1}, 0.5)},
        required=rng.choice((1, 1, 3, 8)),
        faults={"kill": 2, "kill_all": 1, "kill_server": 1, "restart_server": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        tuning={**(SMALL if rng.random() < 0.5 else {})},
        seconds=rng.uniform(4.0, 12.0),
    )


def large(rng):
    """A server saves at so many bytes, too: records beyond them, and bounds of few bytes."""
    real = rng.random() < 0.3
    plan = forgetting(rng)
    plan.server_options = {"size_required": 1 << 20 if real else rng.choice((40, 100, 200))}
    if real:
        plan.large_rate, plan.records, plan.seconds = 0.2, 3, 2.0
    return plan


def key_lists(rng):
    """A list names the objects: it grows, is replaced, lost and broken, and says more or less of them; and it is left again."""
    archived = rng.random() < 0.3
    return plain(
        rng,
        settings={
            "mode": "keys",
            "keys": rng.choice(("keys.csv", "keys.csv", "keys.txt")),
            "recheck": rng.random() < 0.8,
            "list_concurrency": rng.choice((1, 2, 4)),
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "window": rng.choice((6.0, 86_400.0)),
            "poll_interval": 0.3,
            "min_age": rng.choice((0.0, 0.0, 0.0, 1.5)),
            "archived": "wait" if archived else "skip",
            "lookback_keys": 1,
            "full_listing_interval": 2.0,
        },
        acts={
            "put": 5,
            "list": 3,
            **({"archive": 1} if archived else {}),
            **some(
                rng,
                {"old_put": 1, "restore": 1, "delete": 1, "lie": 1, "stop": 1, "reset": 0.5}
                | {"lose_list": 0.5, "lie_of_list": 0.5},
                0.4,
            ),
        },
        changes=tuple(some(rng, {"mode": 1, "tasks": 1, "split": 1, "headers": 1, "more_partitions": 1}, 0.25)),
        change_rate=0.4,
        required=rng.choice((1, 1, 5)),
        keys=tuple(f"{letter}/{number}" for letter in "ab" for number in range(1, 4)),
        faults={"kill": 2, "kill_all": 1, "kill_worker": 1, "kill_server": 1, "cut": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        tuning={**(SMALL if rng.random() < 0.5 else {})},
        seconds=rng.uniform(3.0, 8.0),
        bucket_options={"largest_read": rng.choice((WIDTH, 1 << 20))},
        lists=rng.choice((0.0, 0.6, 1.0)),
    )


START_OFFSETS = ("a/100", "b/9", "c/20", "d/3", "f/11", "g/1", "h/2", "i/30", "j/4", "k/12")
"""Keys whose order is neither that of the start offsets nor that of these as texts."""


def start_offsets(rng):
    """Objects are read in the order of the start offsets that their keys name."""
    return plain(
        rng,
        settings={
            "order": "start_offset",
            "template": "{{key}}/{{start_offset}}",
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "prefetch_objects": rng.choice((1, 2, 4)),
            "partitions": rng.choice((1, 2, 2)),
            "poll_interval": rng.choice((0.3, 0.3, 1.5)),
        },
        bucket_options={"largest_read": rng.choice((WIDTH, 1 << 20))},
        page_size=rng.choice((1, 2, 100)),
        acts={"put": 2, "put_many": 2, **some(rng, {"stop": 1, "kill": 1, "lie": 0.5, "delete": 0.5}, 0.4)},
        act_seconds=rng.choice((0.4, 1.0)),
        changes=tuple(some(rng, {"order": 1, "tasks": 1, "batch": 1, "headers": 1}, 0.25)),
        change_rate=0.3,
        required=rng.choice((1, 1, 5, 8)),
        keys=START_OFFSETS,
        faults={"kill": 3, "kill_all": 1, "kill_worker": 1, "kill_server": 2, "cut": 1},
        fault_rate=rng.choice((0.0, 0.01, 0.03)),
        tuning={**(SMALL if rng.random() < 0.3 else {}), "first_objects": rng.choice((0, 6))},
        seconds=rng.uniform(2.0, 5.0),
    )


def neighbour_of(rng, settings):
    """A second source that reads the same objects: its records and its positions lie beside those of the first, or elsewhere."""
    same = ("bad", "letters", "transforms", "min_age", "archived", "window", "partitions")
    return settings_of(
        rng,
        **{name: getattr(settings, name) for name in same},
        topic=rng.choice((settings.topic, settings.topic, OWN_TOPIC)),
        offsets=rng.choice((settings.offsets, settings.offsets, OWN_LOG)),
        split_size=rng.choice((0, settings.split_size)),
    )


def neighbours(rng):
    """Two sources in one stream, which live and die by themselves, over a server that forgets tails."""
    bad = rng.random() < 0.2
    plan = plain(
        rng,
        settings={
            "commit_interval": rng.choice((0.05, 0.3, 3.0)),
            "batch_length": rng.choice((1, 2, 5)),
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "engine": rng.choice(("local", "local", "local", "spark")),
            "bad": bad,
            "letters": bad,
        },
        bad_rate=0.4 if bad else 0.0,
        required=rng.choice((1, 3, 5, 8)),
        acts={"put": 4, "neighbour": 1, **some(rng, {"stop": 1, "reset": 1, "restore": 1, "second": 1}, 0.4)},
        changes=tuple(some(rng, {"tasks": 1, "batch": 1, "headers": 1}, 0.3)),
        change_rate=0.3,
        faults={"kill": 3, "kill_server": 3, "kill_all": 1, "kill_worker": 1, "cut": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        tuning={
            **(SMALL if rng.random() < 0.5 else {"snapshot_records": rng.choice((5, 1000))}),
            "neighbour_prefixes": rng.choice((("",), ("",), ("a/",))),
            "trim_soon": rng.random() < 0.5,
        },
        seconds=rng.uniform(2.0, 5.0),
        records=rng.choice((3, 7)),
    )
    plan.neighbour = neighbour_of(rng, plan.settings)
    return plan


def no_power(rng):
    return plain(rng, faults={"power": 1}, fault_rate=0.01)


def seconds(rng):
    return plain(
        rng,
        acts={"put": 3, "second": 2},
        faults={"kill": 1, "kill_worker": 2, "kill_server": 1},
        settings={"tasks": rng.choice((1, 2, 3)), "partitions": 3},
        fault_rate=rng.choice((0.0, 0.01)),
    )


def partitions(rng):
    return plain(rng, changes=("fewer_partitions", "more_partitions"), change_rate=0.3, once_rate=0.5, fault_rate=0.01)


def resets(rng):
    return plain(
        rng,
        settings={"window": rng.choice((6.0, 86_400.0))},
        acts={"put": 4, "reset": 1, "stop": 1},
        required=rng.choice((1, 5)),
        faults={"kill": 1, "kill_server": 1},
        tuning=dict(SMALL),
    )


def sets(rng):
    acts = {"put": 4, "set": 2, "stop": 1, **some(rng, {"reset": 0.5, "restore": 1, "old_put": 1, "delete": 0.5}, 0.4)}
    bad = rng.random() < 0.2
    return plain(
        rng,
        settings={"window": rng.choice((6.0, 86_400.0)), "bad": bad, "letters": bad and rng.random() < 0.7},
        acts=acts,
        required=rng.choice((1, 5)),
        faults={"kill": 1, "kill_server": 1},
        bad_rate=0.3 if bad else 0.0,
        tuning=dict(SMALL),
    )


def sets_beside(rng):
    """The same beside other instances: one of them may go on with the object while the command looks at it."""
    plan = sets(rng)
    plan.acts |= {"second": 1.5, **some(rng, {"standby": 0.7}, 0.5)}
    plan.tuning["take_over"] = rng.choice((0.0, 1.0))
    return plan


def accepted(rng):
    """`offsets accept-data-loss` where nothing is lost, near kills of everything."""
    return plain(
        rng,
        settings={
            "window": rng.choice((6.0, 86_400.0)),
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "commit_interval": rng.choice((0.05, 0.3, 3.0)),
        },
        acts={"put": 4, "accept": 1.5, **some(rng, {"stop": 1, "foreign": 1, "restore": 1, "reset": 0.5}, 0.4)},
        required=rng.choice((1, 5, 8)),
        changes=tuple(some(rng, {"tasks": 1, "split": 1, "more_partitions": 1}, 0.3)),
        change_rate=0.3,
        faults={"kill": 2, "kill_all": 1, "kill_server": 2, "cut": 1},
        fault_rate=rng.choice((0.0, 0.01, 0.03)),
        tuning=rng.choice(({}, dict(SMALL))),
    )


def replays(rng):
    """Dead letters are sent again, while source, server and replay are killed."""
    keyed = rng.random() < 0.3
    return plain(
        rng,
        settings={
            "letters": True,
            "bad": True,
            "keyed": keyed,
            "transforms": rng.random() < 0.4,
            "split_size": 0 if keyed else rng.choice((0, 0, 2 * WIDTH)),
        },
        acts={"put": 4, "replay": 2.5, **some(rng, {"stop": 1, "restore": 1, "reset": 0.5, "delete": 0.5}, 0.2)},
        bad_rate=0.7,
        faults={"kill": 3, "kill_server": 1, "cut": 2},
        fault_rate=rng.choice((0.0, 0.04, 0.1)),
        tuning={**rng.choice(({}, SMALL)), "fault_at": "send"},
    )


def backups(rng):
    """The server, its offsets topic, or its data topics come back as they were some time ago."""
    bad = rng.random() < 0.2
    which = rng.choice(("server", "log", "topics"))
    return plain(
        rng,
        settings={
            "window": rng.choice((6.0, 86_400.0)),
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "commit_interval": rng.choice((0.05, 0.3, 3.0)),
            "bad": bad,
            "letters": bad,
        },
        bad_rate=0.3 if bad else 0.0,
        acts={
            "put": 4,
            "back_up": 0.3,
            f"restore_{which}": 0.7,
            **some(rng, {"stop": 1, "restore": 1, "reset": 0.5}, 0.3),
            **rng.choice(({}, {"set": 0.5}, {"second": 0.5, "standby": 0.5})),
        },
        changes=tuple(some(rng, {"tasks": 1, "split": 1, "headers": 1}, 0.3)),
        change_rate=0.3,
        required=rng.choice((1, 1, 5, 8)),
        faults={"kill": 3, "kill_all": 1, "kill_server": 1, "pause": 0.5, "kill_worker": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        tuning=rng.choice(({}, dict(SMALL))),
        seconds=rng.uniform(4.0, 12.0),
    )


def by_hand(rng):
    """Topics are purged, deleted or get other partitions while the source runs."""
    letters = rng.random() < 0.4
    which = rng.choice(("data", "data", "log", "log", *(["letters"] if letters else [])))
    acts = {
        "data": {"purge_running": 1, "delete_running": 1, "partitions": 1},
        "log": {"purge_log": 1, "delete_log": 1, "partitions_of_log": 0.5},
        "letters": {"purge_letters": 1, "delete_letters": 1, "partitions_of_letters": 0.5, "replay": 2},
    }[which]
    return plain(
        rng,
        settings={
            "window": rng.choice((6.0, 86_400.0)),
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "commit_interval": rng.choice((0.05, 0.3, 3.0)),
            "engine": rng.choice(("local", "local", "local", "spark")),
            "bad": letters,
            "letters": letters,
        },
        bad_rate=0.6 if letters else 0.0,
        acts={
            "put": 4,
            **some(rng, acts, 0.7),
            **some(rng, {"stop": 1, "kill": 0.5, "foreign": 1, "restore": 1, "second": 0.5, "standby": 0.5}, 0.3),
            **some(rng, {"reset": 0.5, "old_put": 1}, 0.2),
        },
        changes=tuple(some(rng, {"tasks": 1, "split": 1, "headers": 1}, 0.2)),
        change_rate=0.3,
        required=1 if "replay" in acts else rng.choice((1, 1, 1, 5)),
        faults={"kill": 3, "kill_all": 1, "kill_worker": 1, "kill_server": 1, "cut": 1},
        fault_rate=rng.choice((0.0, 0.005, 0.02)),
        tuning=rng.choice(({}, dict(SMALL))),
        seconds=rng.uniform(3.0, 10.0),
        once_rate=rng.choice((0.0, 0.3)),
    )


def letters_by_hand(rng):
    """The topic of dead letters is purged or deleted beside their replay, and objects with bad records come later."""
    plan = replays(rng)
    plan.acts = {"put": 4, "replay": 2, **some(rng, {"purge_letters": 0.2, "delete_letters": 0.2, "restore": 0.3}, 0.3)}
    plan.fault_rate = rng.choice((0.0, 0.0, 0.02))
    plan.tuning |= {"purge_beside_replay": rng.choice((0.1, 0.3)), "first_objects": rng.choice((0, 6))}
    plan.keys = tuple(f"{letter}/{number}" for letter in "ab" for number in range(1, 5))
    plan.once_rate = 1.0
    plan.seconds = rng.uniform(4.0, 10.0)
    return plan


def changed_transforms(rng):
    """Records are filtered, or go to the partitions of their keys, in some lives and not in others."""
    return plain(
        rng,
        settings={
            "keyed": rng.random() < 0.5,
            "transforms": rng.random() < 0.5,
            "partitions": rng.choice((1, 2, 3)),
            "commit_interval": rng.choice((0.3, 3.0)),
            "batch_length": 1,
            "batch_bytes": WIDTH,
        },
        changes=(*rng.choice((("transforms",), ("keyed",), ("keyed", "transforms"))), *some(rng, {"tasks": 1}, 0.3)),
        change_rate=rng.choice((0.2, 0.5)),
        acts={"put": 4, **some(rng, {"stop": 1, "restore": 1, "old_put": 1, "delete": 0.5}, 0.3)},
        act_seconds=rng.choice((0.4, 1.0)),
        required=rng.choice((1, 1, 5)),
        faults={"kill": 3, "kill_all": 1, "kill_worker": 1, "kill_server": 1, "cut": 1},
        fault_rate=rng.choice((0.02, 0.05)),
        records=12,
        once_rate=0.0,
        bucket_options={"largest_read": WIDTH},
        tuning=rng.choice(({}, dict(SMALL))),
    )


def splits(rng):
    partitions = rng.choice((2, 3))
    return plain(
        rng,
        settings={
            "split_size": 3 * WIDTH,
            "partitions": partitions,
            "tasks": rng.choice((1, partitions)),
            "commit_interval": rng.choice((0.3, 3.0)),
            "batch_length": rng.choice((1, 2)),
        },
        required=rng.choice((1, 5, 10)),
        changes=("split",) if rng.random() < 0.3 else (),
        change_rate=0.3,
        acts={"put": 4},
        act_seconds=1.0,
        faults={"kill": 2, "kill_server": 1, "kill_worker": 1},
        fault_rate=rng.choice((0.01, 0.02, 0.05)),
        records=12,
        bucket_options={"largest_read": WIDTH},
    )


def clocks(rng):
    return plain(
        rng, settings={"window": 6.0}, acts={"put": 4, "clock": 3}, tuning=dict(SMALL), store_slow=0.5, fault_rate=0.01
    )


def dates(rng):
    return plain(rng, settings={"window": 6.0}, acts={"put": 4, "date": 3}, tuning=dict(SMALL), fault_rate=0.01)


def take_overs(rng):
    return plain(
        rng,
        acts={"put": 3, "second": 2},
        faults={"kill": 1, "pause": 3, "cut": 1},
        tuning={**SMALL, "take_over": 1.0},
        fault_rate=0.02,
        settings={"tasks": rng.choice((1, 2)), "partitions": 2, "commit_interval": 0.05},
    )


def standbys(rng):
    """Instances that wait for each other's end: after kills, stops, broken connections, and hosts without power."""
    return plain(
        rng,
        acts={"put": 4, "standby": 2, "stop": 1, "kill": 1, "kill_standby": 0.5},
        faults={"kill": 3, "cut": 2, "pause": 1, "kill_server": 1, "restart_server": 1, "power": 0.5, "kill_worker": 1},
        fault_rate=rng.choice((0.0, 0.003, 0.01)),
        settings={"tasks": rng.choice((1, 1, 2)), "partitions": 2, "commit_interval": rng.choice((0.05, 0.3))},
        tuning={**SMALL, "standby": rng.random() < 0.5},
        act_seconds=rng.choice((0.4, 1.5)),
        seconds=rng.uniform(4.0, 40.0),
    )


def dead_letters(rng):
    return plain(
        rng,
        settings={"letters": True, "bad": True, "split_size": rng.choice((0, 0, 2 * WIDTH))},
        bad_rate=0.7,
        required=rng.choice((1, 5, 8)),
        faults={"kill": 1, "kill_server": 2},
        fault_rate=0.02,
    )


def transforms(rng):
    """Transforms that filter records, and cannot handle some."""
    bad = rng.random() < 0.5
    return plain(
        rng,
        settings={
            "transforms": True,
            "bad": bad,
            "letters": bad,
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
            "commit_interval": rng.choice((0.05, 0.3)),
        },
        bad_rate=0.3 if bad else 0.0,
        required=rng.choice((1, 1, 5, 8)),
        acts={"put": 4, "stop": 1},
        faults={"kill": 3, "kill_worker": 1, "kill_server": 2, "cut": 1},
        fault_rate=rng.choice((0.01, 0.03)),
        records=12,
    )


def keyed(rng):
    """Objects whose records go to the partitions of their keys, with several tasks, on both engines, and bad records."""
    bad = rng.random() < 0.4
    partitions = rng.choice((2, 3, 3))
    quiet = bad and rng.random() < 0.3  # nothing is read again, so that each dead letter comes once
    acts = some(rng, {"restore": 1, "old_put": 1, "delete": 0.5, "reset": 0.5, "stop": 0.5, "lie": 1}, 0.3)
    return plain(
        rng,
        settings={
            "keyed": True,
            "partitions": partitions,
            "tasks": rng.choice((1, 1, 1, partitions)),
            "engine": rng.choice(("local", "local", "spark")),
            "transforms": rng.random() < 0.2,
            "bad": bad,
            "letters": bad,
            "commit_interval": rng.choice((0.05, 0.3, 3.0)),
            "batch_length": rng.choice((1, 1, 2, 3)),
        },
        bad_rate=0.4 if bad else 0.0,
        required=1 if quiet else rng.choice((1, 1, 5, 10)),
        changes=tuple(some(rng, {"tasks": 1, "batch": 1, "headers": 1, "more_partitions": 1}, 0.3)),
        change_rate=0.3,
        acts={"put": 4} if quiet else {"put": 4, **acts},
        act_seconds=rng.choice((0.4, 1.0, 3.0)),
        faults={"kill": 3, "kill_server": 1, "kill_worker": 2, "cut": 1, "pause": 0.5},
        fault_rate=0.0 if quiet else rng.choice((0.01, 0.02, 0.05)),
        one_letter=quiet,
        records=rng.choice((12, 40)),
        bucket_options={"largest_read": rng.choice((WIDTH, 3 * WIDTH, 1 << 20)), "break_rate": rng.choice((0.0, 0.1))},
        tuning=rng.choice(({}, dict(SMALL))),
    )


def late_requests(rng):
    """Requests of dead clients that are stored late."""
    return plain(
        rng,
        settings={
            "tasks": rng.choice((1, 1, 2)),
            "partitions": 2,
            "commit_interval": rng.choice((0.05, 0.3)),
            "batch_length": 1,
        },
        acts={"put": 3, "kill": 1},
        act_seconds=0.4,
        faults={"kill": 3, "cut": 3, "kill_worker": 1},
        fault_rate=rng.choice((0.0, 0.02)),
        server_options={"slow": 0.05, "slowest": 2.9, "notices_late": 0.7},
        records=12,
    )


def waiting(rng):
    """Objects that must wait until they are older than others may be that appear late; overwrites in mid-read."""
    return plain(
        rng,
        settings={"window": 6.0, "min_age": rng.choice((0.0, 10.0)), "poll_interval": 0.3},
        acts={"put": 2, "old_put": 4, "stop": 1, "lie": 1},
        tuning={**SMALL, "old_first": True, "lies": ("503",)},
        bucket_options={"largest_read": WIDTH, "read_seconds": rng.choice((0.02, 0.2))},
        seconds=rng.uniform(6.0, 14.0),
        fault_rate=rng.choice((0.0, 0.01)),
    )


def snapshots(rng):
    """Snapshots all the time, in many parts, while workers save."""
    return plain(
        rng,
        settings={"tasks": rng.choice((1, 2, 3)), "partitions": 3, "commit_interval": 0.05, "batch_length": 1},
        tuning={**SMALL, "many_parts": True, "compact_from": rng.choice((1, 10_000, 10_000))},
        bucket_options={"largest_read": WIDTH},
        act_seconds=0.15,
        records=12,
        fault_rate=rng.choice((0.005, 0.02)),
        snapshot_fault_rate=rng.choice((0.05, 0.1)),
        faults={"kill": 4, "kill_server": 1, "cut": 1},
        required=rng.choice((1, 1, 5)),
    )


def on_spark(rng):
    """Jobs that come and go, executors that are lost or only seem so."""
    return plain(
        rng,
        settings={
            "engine": "spark",
            "tasks": rng.choice((1, 2, 3)),
            "partitions": 3,
            "commit_interval": rng.choice((0.05, 0.3)),
            "batch_length": rng.choice((1, 3)),
            "split_size": rng.choice((0, 0, 3 * WIDTH)),
        },
        required=rng.choice((1, 1, 5)),
        faults={"kill": 1, "kill_worker": 3, "pause": 2, "cut": 1, "kill_server": 1},
        fault_rate=rng.choice((0.0, 0.01, 0.03)),
        tuning={**SMALL, "spark_loses": rng.choice((0.0, 0.2))},
        bucket_options={"largest_read": rng.choice((WIDTH, 1 << 20))},
        records=12,
    )


def forgetting_folded(rng):
    """A server that forgets, and positions that are compacted soon."""
    return plain(
        rng,
        settings={"window": 4.0, "commit_interval": 0.05, "poll_interval": 0.3},
        required=rng.choice((5, 20, 100)),
        acts={"put": 4},
        act_seconds=0.4,
        faults={"kill": 1, "kill_server": 4, "restart_server": 1},
        fault_rate=rng.choice((0.005, 0.02)),
        tuning=dict(SMALL),
        seconds=rng.uniform(6.0, 14.0),
    )


THEMES = {
    function.__name__: function
    for function in (
        plain,
        late_requests,
        waiting,
        snapshots,
        on_spark,
        forgetting_folded,
        wrong_answers,
        formats,
        renumbered_tasks,
        endpoints,
        prefixes,
        forgetting,
        forgetting_tasks,
        folding,
        versions,
        restored,
        slow_pipes,
        headers,
        lost_logs,
        renamed,
        incremental,
        archived,
        retention,
        large,
        no_power,
        seconds,
        partitions,
        resets,
        sets,
        sets_beside,
        accepted,
        replays,
        backups,
        by_hand,
        letters_by_hand,
        changed_transforms,
        splits,
        clocks,
        dates,
        take_overs,
        standbys,
        dead_letters,
        transforms,
        keyed,
        key_lists,
        start_offsets,
        neighbours,
        pairs,
    )
} | {"all": all_kinds}
