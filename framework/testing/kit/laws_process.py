"""The law of other processes: a task's input can be pickled, and the copy works without the original."""

from __future__ import annotations

import functools
import pickle

from framework.config.iggy_address import IggyAddress
from framework.discovery.object_feed import Assignment
from framework.engine.task_run import TaskRunPlan
from framework.iggy.offset_log.records import LogFacts, TopicIdentity
from framework.model.objects import Anchor, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.testing.kit.law import BATCH, Comparing, LawBrokenError, fill, law
from framework.testing.kit.other_process import ElsewhereError, call_elsewhere
from framework.testing.kit.task_plan import TaskPlan, read_plan
from framework.testing.kit.watch import take_all
from framework.testing.rig import Capability, SourceRig


@law(
    "S1",
    "configuration, positions, assignments and plans pickle, and a task made of them in another process reads the rest",
    Capability.PROCESSES,
)
def travels(rig: SourceRig, comparing: Comparing) -> None:
    """Check a new interpreter that reads every object, the first from its second batch."""
    written = fill(rig)
    with rig.open_iterator(batch_length=BATCH) as iterator:
        batch = iterator.next_batch()
    if batch is None:
        raise LawBrokenError(f"{comparing.law} is broken: nothing was read here")
    with rig.open_iterator(batch_length=BATCH) as lister:
        assignments = take_all(lister.feed)
    begun = Assignment(native=batch.native, entry=batch.entry)
    assignments = [begun if found.native == batch.native else found for found in assignments]
    maker = rig.task_maker()
    _, config = rig.make_task({"batch_length": BATCH})
    plan = TaskPlan(
        make_task=maker,
        config=config,
        entries=[batch.entry],
        assignments=[assignment for assignment in assignments if not assignment.entry.finished],
    )
    parts: dict[str, object] = {
        "the configuration": config,
        "a position": batch.entry,
        "the assignments": assignments,
        "a worker's plan": _worker_plan(maker, plan, batch.entry.topic_partition),
    }
    for name, part in parts.items():
        copy = _copied(comparing, name, part)
        comparing.that(_same(copy, part), f"{name}: the copy is another one: {copy!r}")
    packed = _packed(comparing, "the plan", functools.partial(read_plan, plan))
    try:
        read = call_elsewhere(packed)
    except ElsewhereError as error:
        raise LawBrokenError(f"{comparing.law} is broken: {error} (seed {comparing.seed})") from error
    done = batch.entry.records_done
    for key, records in written.items():
        rest = records[done:] if key == batch.native.key else records
        comparing.same(read.get(key, []), rest, f"the records of {key!r} in another process")


def _worker_plan(maker: object, plan: TaskPlan, topic_partition: TopicPartition) -> object:
    """Return a plan as the engines send it; for a source whose class makes the task."""
    if not isinstance(maker, type):
        return plan.config
    return TaskRunPlan(
        task_class=maker,
        config=plan.config,
        address=IggyAddress(host="127.0.0.1", port=8090),
        epoch=1,
        log_from=0,
        facts=LogFacts(
            anchors={topic_partition: Anchor(4, 2, 9)},
            topics={topic_partition: TopicIdentity(topic_id=1, created_at=2)},
        ),
        entries=plan.entries,
    )


def _same(copy: object, part: object) -> bool:
    if isinstance(part, OffsetManagerEntry):
        return copy == part and type(copy) is type(part)
    return copy == part


def _packed(comparing: Comparing, name: str, part: object) -> bytes:
    try:
        return pickle.dumps(part)
    except Exception as error:
        raise LawBrokenError(
            f"{comparing.law} is broken: {name} does not pickle: {error} (seed {comparing.seed})"
        ) from error


def _copied(comparing: Comparing, name: str, part: object) -> object:
    return pickle.loads(_packed(comparing, name, part))  # noqa: S301 - made here
