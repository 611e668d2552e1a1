"""What once went wrong, step by step. Each is told in the simulated world and ends with the checker; none may find anything.

Keys say their partition: `0-x` goes to partition 0.
"""

from tests.simulator.bucket import tell
from tests.simulator.checker import ViolationError
from tests.simulator.history import WIDTH
from tests.simulator.stage import Stage

FOLDING = {"snapshot_records": 2, "compact_from": 1, "compact_share": 1000}
"""Snapshots and folded positions after a few objects."""

SLOWLY = {"largest_read": WIDTH, "read_seconds": 0.2}
"""A store that gives a record at a time."""


def an_object_that_seems_gone(seed, **more):
    """The store says 404 about an old object while it is listed for the first time: a later listing reads it."""
    with Stage(seed, tuning=FOLDING, settings={"window": 6.0}, **more) as stage:
        for key in ("0-a", "0-b", "0-c"):
            stage.put(key, age=100)
        stage.lie("404", "0-b")
        stage.live()
        stage.truth()
        stage.live()
        stage.finish()


def numbering_changed_after_a_kill(seed, **more):
    """An object is half sent, nothing of it was saved, and records are cut in another way: the start stops, or loses nothing."""
    with Stage(
        seed,
        settings={
            "format": "bytes",
            "chunk_size": WIDTH,
            "commit_interval": 20.0,
            "batch_length": 1,
            "batch_bytes": WIDTH,
        },
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("0-a", 9)
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 3)
        stage.kill(life)
        stage.world.causes["format"] = stage.world.settings
        stage.change(chunk_size=2 * WIDTH)
        stage.wait(1)
        stage.live()
        stage.finish()


def another_endpoint(seed, **more):
    """A bucket of the same name elsewhere, with old objects: the start stops, or reads them."""
    with Stage(seed, tuning=FOLDING, settings={"window": 6.0}, **more) as stage:
        stage.put("0-a", age=100)
        stage.put("1-b", age=100)
        stage.live()
        stage.live()
        world = stage.world
        world.causes["endpoint"] = world.bucket
        world.bucket = world.new_bucket("us")
        world.buckets.append(world.bucket)
        stage.put("0-a", age=50)
        stage.put("1-c", age=50)
        if stage.live() == "done":
            world.causes.clear()
        stage.finish()


def two_kills_of_a_forgetting_server(seed, **more):
    """What a first kill took counts as done again after a second one."""
    with Stage(seed, required=5, settings={"batch_length": 5}, **more) as stage:
        stage.put("1-x", 3)
        stage.live()
        stage.kill_server({1: 3})
        stage.foreign(0, 2)
        stage.lie("503", "1-x")
        stage.put("1-a", 5)
        stage.live()
        stage.kill_server({0: 2})
        stage.truth()
        stage.live()
        stage.finish()


def the_same_message_at_the_same_place(seed, **more):
    """After a loss another object's records bring the same record to the same offset: its anchor stands again by chance."""
    with Stage(seed, required=6, settings={"batch_length": 5, "prefetch_objects": 1}, **more) as stage:
        stage.put("1-z", 2)
        stage.live()
        stage.put("1-x", 3)
        stage.live()
        stage.kill_server({1: 5})
        stage.foreign(0, 2)
        stage.lie("503", "1-z")
        stage.put("1-q", 2)
        stage.live()
        stage.live()
        if stage.count(1) >= 5:
            stage.save(1)
        stage.kill_server({0: 2})
        stage.truth()
        stage.live()
        stage.finish()


def overwritten_between_a_snapshots_moments(seed, **more):
    """A version is finished and folded while a snapshot is being made; the next version must not lose against it."""
    with Stage(
        seed,
        tuning={**FOLDING},
        settings={"window": 6.0, "tasks": 2, "poll_interval": 0.3},
        **more,
    ) as stage:
        stage.put("0-x", age=5)
        stage.live()
        stage.put("0-x", age=5)
        for key in ("0-a", "1-a", "1-b", "0-b", "0-c", "1-c"):
            stage.put(key, age=20)
        life = stage.start()
        stage.wait(0.5 + (seed % 10) * 0.2)
        stage.put("0-x", age=5)
        stage.wait(12)
        stage.put("0-x")
        stage.wait(3)
        stage.kill(life)
        stage.wait(1)
        stage.finish()


def overwritten_in_mid_read(seed, **more):
    """A version is half read and overwritten by one with an earlier time: that one is read whole, and all later ones are."""
    with Stage(
        seed,
        settings={
            "commit_interval": 3.0,
            "batch_length": 2,
            "poll_interval": 0.3,
            "queue_records": 2,
            "batch_bytes": WIDTH,
            "tasks": 1 + seed % 2,
        },
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("0-x", 12)
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 2)
        stage.bucket.break_rate = 1.0
        stage.server.slow, stage.server.slowest = 1.0, 2.0
        stage.put("0-x", 12, age=20)
        stage.wait(0.4)
        stage.bucket.break_rate = 0.0
        stage.wait(4)
        stage.server.slow = 0.0
        stage.wait(4)
        stage.put("0-x", 12, age=10)
        stage.wait(8)
        stage.world.run_on()
        stage.kill(life)
        stage.wait(1)
        stage.finish()


def a_worker_that_stands_still(seed, **more):
    """A worker's news come late by the pipe; a snapshot is made meanwhile."""
    with Stage(
        seed,
        tuning={"snapshot_records": 3},
        settings={"tasks": 2, "poll_interval": 0.3, "commit_interval": 0.05},
        **more,
    ) as stage:
        for number in range(4):
            stage.put(f"1-a{number}")
        life = stage.start()
        stage.until(lambda: stage.count(1) >= 12)
        child = next(one for one in life.process.extra["children"] if one.name.endswith("task-0"))
        other = next(one for one in life.process.extra["children"] if one.name.endswith("task-1"))
        world, before = stage.world, stage.count(0)
        stage.put("0-x")
        stage.put("1-x")
        held = []

        def freeze(kind, what, link):
            if (
                kind == "stored"
                and "append src-offsets" in what
                and link.process in (child, other)
                and not held
                and stage.count(0) > before
            ):
                held.append(link.process)
                link.process.paused_until = world.now + 15
                world.say("paused", link.process)

        world.happened = freeze
        for number in range(30):
            stage.put(f"{number % 2}-b{number}")
            stage.wait(0.6)
        stage.wait(3)
        stage.kill(life)
        stage.wait(5)
        stage.finish()


def back_to_the_first_version(seed, **more):
    """v1, v2, and v1 again, all behind the last saved position: each of the three is counted for itself."""
    with Stage(
        seed,
        settings={"commit_interval": 50.0, "batch_length": 4, "poll_interval": 0.3},
        **more,
    ) as stage:
        first = stage.put("0-x", 4)
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 4)
        stage.put("0-x", 4)
        stage.until(lambda: stage.count(0) >= 8)
        stage.world.restore(first)
        stage.until(lambda: stage.count(0) >= 12)
        stage.kill(life)
        stage.wait(1)
        stage.finish()


def headers_switched_on_between_kills(seed, **more):
    """Records without headers, then some with: neither kill repeats any."""
    with Stage(
        seed,
        settings={"headers": "none", "commit_interval": 50.0, "batch_length": 1, "batch_bytes": WIDTH},
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("0-x", 12)
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 4)
        stage.kill(life)
        stage.wait(1)
        stage.change(headers="provenance")
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 8)
        stage.kill(life)
        stage.wait(1)
        stage.finish()


def a_lost_log_with_topics_by_key(seed, **more):
    """The log is gone, and topics are named by keys: the next start says so and sends nothing."""
    with Stage(seed, **more) as stage:
        stage.change(topic="{{topic}}", template="{{topic}}/{{key}}", distribution="object_hash")
        stage.put("x/1")
        stage.put("y/1")
        stage.live()
        lose_log(stage)


def a_lost_log_noticed_at_a_topic_of_nobody(seed, **more):
    """The same, and the first objects that are listed go to a new topic: nothing is written before it is noticed."""
    with Stage(seed, **more) as stage:
        stage.change(topic="{{topic}}", template="{{topic}}/{{key}}", distribution="object_hash")
        stage.put("x/1")
        stage.live()
        stage.bucket.delete("x/1")
        stage.put("z/1")
        stage.world.lose_log()
        kind = stage.live()
        if kind == "done":
            raise ViolationError("UNNOTICED", "the log was lost, and a start went on beside what it had known")
        stage.finish()


def a_lost_log_of_a_shared_topic(seed, **more):
    """The same, with many messages of others behind ours."""
    with Stage(seed, **more) as stage:
        stage.put("0-x")
        stage.put("1-y")
        stage.live()
        for number in (0, 1):
            stage.foreign(number, 40)
        lose_log(stage)


def lose_log(stage):
    stage.world.lose_log()
    if stage.live() == "done":
        stage.world.causes.clear()
    stage.finish()


def a_host_without_power(seed, **more):
    """The host's connections stay in the server's list; two minutes later a start elsewhere works."""
    with Stage(seed, **more) as stage:
        stage.put("0-x")
        life = stage.start()
        stage.wait(3)
        stage.put("0-y")
        stage.world.lose_host(life)
        stage.world.main = None
        stage.wait(150)
        kind = stage.live()
        if kind != "done":
            raise ViolationError("STUCK", f"150 s after the host was lost a start ends with {kind}")
        stage.finish()


def a_second_instance(seed, **more):
    """It is started while workers of the first one begin: it stops, and the first one goes on."""
    with Stage(seed, settings={"tasks": 2}, **more) as stage:
        for number in range(6):
            stage.put(f"{number % 2}-a{number}")
        life = stage.start()
        stage.until(lambda: len(life.process.extra.get("children", ())) >= 2 or life.ended is not None)
        stage.wait((seed % 10) * 0.02)
        second = stage.start(once=True, host=stage.world.hosts[1])
        stage.until(lambda: second.ended is not None, 30)
        stage.wait(3)
        if second.outcome is None or second.outcome.kind != "running" or life.ended is not None:
            raise ViolationError("DISPLACED", f"the first one: {life.outcome}, the second one: {second.outcome}")
        stage.finish()


def written_by(stage, life, only=None):
    """The messages that a life wrote, in all topics or in one."""
    topics = stage.server.streams.get("lake", {})
    parts = [part for name, topic in topics.items() if only in {None, name} for part in topic.partitions]
    return sum(message.writer == life.process.name for part in parts for message in part.messages)


def a_standby_after_a_kill(seed, **more):
    """It writes nothing while it waits; seconds after a kill, or a stop, it goes on where the first one was."""
    with Stage(seed, settings={"batch_length": 1, "batch_bytes": WIDTH}, bucket_options=SLOWLY, **more) as stage:
        first = stage.start()
        stage.wait(2 + seed * 0.1)
        standby = stage.start(standby=True, host=stage.world.hosts[1])
        stage.wait(20)
        stage.put("0-a", 9)
        stage.until(lambda: stage.count(0) >= 4)
        if written_by(stage, standby) or standby.ended is not None or first.ended is not None:
            raise ViolationError("DISPLACED", f"the standby wrote, or ended: {standby.outcome}, {first.outcome}")
        if seed % 2:
            stage.stop(first)
        else:
            stage.kill(first)
        if not stage.until(lambda: stage.count(0) >= 9, 12):
            raise ViolationError("STUCK", "the standby did not take over within 12 s")
        stage.world.main = standby
        stage.finish()


def a_standby_of_a_silent_host(seed, **more):
    """Within little more than a minute it takes over from a host without power."""
    with Stage(seed, **more) as stage:
        first = stage.start()
        stage.wait(3)
        standby = stage.start(standby=True, host=stage.world.hosts[1])
        stage.wait(3)
        stage.world.lose_host(first)
        stage.put("0-y")
        stage.wait(30)
        if written_by(stage, standby):
            raise ViolationError("DISPLACED", "a silent host is not gone before a minute is over")
        if not stage.until(lambda: stage.count(0) == 3, 50):
            raise ViolationError("STUCK", "the standby did not take over within 80 s")
        stage.world.main = standby
        stage.finish()


def two_standbys(seed, **more):
    """One takes over, the other goes on waiting, and takes over when that one is gone."""
    with Stage(seed, **more) as stage:
        at_work = stage.start()
        stage.wait(2)
        waiting = [stage.start(standby=True, host=stage.world.hosts[1]) for _ in range(2)]
        stage.wait(2 + (seed % 10) * 0.1)
        for wanted, key in ((3, "0-a"), (6, "0-b")):
            stage.kill(at_work)
            stage.put(key)
            if not stage.until(lambda wanted=wanted: stage.count(0) == wanted, 40):
                raise ViolationError("STUCK", "no standby took over within 40 s")
            stage.wait(20)
            wrote = [life for life in waiting if written_by(stage, life, "records")]  # a claim may be refused
            ended = [life.outcome for life in waiting if life.ended is not None]
            if len(wrote) != 1 or ended:
                raise ViolationError("DISPLACED", f"{len(wrote)} standbys took over; ended: {ended}")
            (at_work,) = wrote
            waiting.remove(at_work)
        stage.world.main = at_work
        stage.finish()


def a_standby_over_a_restart_of_the_server(seed, **more):
    """The server restarts while it waits: it waits on, and the first one goes on."""
    with Stage(seed, settings={"tasks": 1 + seed % 2}, **more) as stage:
        first = stage.start()
        stage.wait(3)
        standby = stage.start(standby=True, host=stage.world.hosts[1])
        stage.wait(3)
        for _ in range(3):
            stage.world.server_kills.append(stage.world.now)
            stage.server.stop(0.3 + (seed % 7))
            stage.wait(25)
        stage.put("0-a")
        stage.until(lambda: stage.count(0) == 3, 30)
        if first.ended is not None or standby.ended is not None or written_by(stage, standby):
            raise ViolationError("DISPLACED", f"the first one: {first.outcome}, the standby: {standby.outcome}")
        stage.kill(first)
        stage.put("0-b")
        if not stage.until(lambda: stage.count(0) == 6, 30):
            raise ViolationError("STUCK", "the standby did not take over")
        stage.world.main = standby
        stage.finish()


def a_standby_once(seed, **more):
    """Behind a run that ended it finds nothing left, and ends too; before any run it is the run."""
    with Stage(seed, **more) as stage:
        stage.put("0-a")
        if stage.live(standby=True) != "done" or stage.count(0) != 3:
            raise ViolationError("STUCK", "the first one did not run")
        stage.put("0-b")
        first = stage.start(once=True)
        kind = stage.live(standby=True)
        if kind != "done" or first.outcome is None or first.outcome.kind != "done" or stage.count(0) != 6:
            raise ViolationError("STUCK", f"the first one: {first.outcome}, the standby: {kind}")
        stage.finish()


def fewer_partitions(seed, **more):
    """A partition was taken away in which everything was done: there is a way to go on."""
    with Stage(seed, settings={"partitions": 3}, **more) as stage:
        for key in ("0-a", "1-a", "2-a"):
            stage.put(key)
        stage.live()
        stage.bucket.delete("2-a")
        stage.world.remove_partition()
        stage.live()
        stage.finish()


def old_objects_in_a_partition_that_goes(seed, **more):
    """They are half read, and the watermark is above them, when their partition is taken away: accepted, they come again."""
    with Stage(
        seed,
        tuning=FOLDING,
        settings={
            "distribution": "object_hash",
            "partitions": 2,
            "prefetch_objects": 8,
            "window": 6.0,
            "commit_interval": 0.3,
            "batch_length": 1,
            "batch_bytes": WIDTH,
        },
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        for name in "cdefgh":
            stage.put(f"0-{name}", 30, age=100)
        life = stage.start()
        stage.until(lambda: stage.count(1) >= 1)
        stage.wait(0.5)
        stage.kill(life)
        world = stage.world
        world.remove_partition()
        world.by_hand("accept", "partitions", lambda: None)
        stage.until(lambda: not world.causes)
        stage.live()
        stage.finish()


def a_reset_after_a_kill_without_headers(seed, **more):
    """Records without headers were found behind the last position; all is read since: a reset of one object works."""
    with Stage(
        seed,
        settings={"headers": "none", "commit_interval": 50.0, "batch_length": 1, "batch_bytes": WIDTH},
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("0-x", 9)
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 3)
        stage.kill(life)
        stage.wait(1)
        stage.live()
        stage.live()
        reset(stage, "0-x")
        stage.finish()


def reset(stage, key):
    begun = stage.world.now_us()
    kind = stage.live("reset", key=key)
    if kind != "done":
        raise ViolationError("REFUSED", f"a reset of one object: {stage.world.lives[-1].outcome}")
    stage.world.resets.append((begun, stage.world.now_us(), lambda one: one == key))


def given_back_half_read_and_back(seed, **more):
    """v1 is given back half read, v2 is read, v1 is there again, in one life."""
    with Stage(
        seed,
        settings={"batch_length": 2, "poll_interval": 0.3, "queue_records": 2, "batch_bytes": WIDTH},
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        first = stage.put("0-x", 12)
        stage.start()
        stage.until(lambda: stage.count(0) >= 2)
        stage.bucket.break_rate = 1.0
        second = stage.put("0-x", 4)
        stage.wait(0.4)
        stage.bucket.break_rate = 0.0
        stage.until(
            lambda: sum(tag == second.tag for one in stage.part(0).messages for _, tag, _ in tell(one.payload)) >= 4, 20
        )
        stage.world.restore(first)
        stage.wait(8)
        stage.finish()


def a_split_stays_in_its_partition(seed, **more):
    """Another split's position was written first; a kill, then a replay of the first split: all of it lies in one partition."""
    with Stage(
        seed,
        settings={
            "split_size": 3 * WIDTH,
            "tasks": 2,
            "commit_interval": 50.0,
            "batch_length": 1,
            "batch_bytes": WIDTH,
            "distribution": "object_hash",
            "template": None,
        },
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("x", 12)
        for more_records in (1, 2 + seed % 3):
            before = stage.count(0) + stage.count(1)
            life = stage.start()
            stage.until(lambda life=life: len(life.process.extra.get("children", ())) == 2)
            children = life.process.extra["children"]
            children[(seed + before) % 2].paused_until = stage.world.now + 100
            stage.until(lambda before=before, more=more_records: stage.count(0) + stage.count(1) >= before + more, 20)
            stage.kill(life)
            for child in children:
                child.die()
            stage.wait(3)
        stage.finish()


def a_clock_set_back(seed, **more):
    """This machine's clock is set back while a listing is under way: what is put a second later is read, too."""
    with Stage(seed, tuning=FOLDING, settings={"window": 10.0, "poll_interval": 0.3}, **more) as stage:
        stage.put("0-a", age=100)
        world, bucket = stage.world, stage.bucket
        host, page = world.hosts[0], bucket.page

        def page_and_step(*args):
            host.clock_ahead = 0.0  # between the beginning of the listing and its answer
            return page(*args)

        life = stage.start()
        stage.wait(2)
        bucket.page = page_and_step
        for number in range(4):
            host.clock_ahead = 120.0
            stage.put(f"0-c{number}")
            stage.wait(2)
        bucket.page = page
        stage.put("0-b")
        stage.wait(3)
        world.run_on()
        stage.kill(life)
        stage.wait(1)
        stage.finish()


def parts_of_a_late_snapshot(seed, **more):
    """A host hangs in the middle of writing a snapshot; its last part comes between the parts of its successor's."""
    with Stage(
        seed,
        tuning={"many_parts": True, "snapshot_records": 1},
        settings={"bad": True, "prefetch_objects": 1, "batch_length": 1, "batch_bytes": WIDTH, "poll_interval": 0.3},
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        for key in ("0-d", "0-c", "0-b", "0-a"):  # each is read first, and not to its end
            before = stage.count(0)
            stage.put(key, 9, bad={8})
            life = stage.start(once=True)
            stage.until(lambda before=before: stage.count(0) >= before + 2)
            stage.bucket.break_rate = 1.0
            stage.lie("503", key)
            stage.until(lambda life=life: life.ended is not None)
            stage.bucket.break_rate = 0.0
            stage.truth()
        world = stage.world
        first = stage.start()
        world.main = None
        late = stage.hold(first.process, "append src-offsets snapshot", after=1 + seed % 4)
        stage.until(lambda: bool(late), 20)
        if late:
            world.lose_host(first)
        released = []

        def between(kind, what, link):
            if kind == "stored" and what.startswith("append") and link.process is not first.process:
                released.append(what)
                if late and len(released) == 2 + seed // 8 % 4:
                    stage.release(late)

        world.happened = between
        second = stage.start(take_over=True, host=world.hosts[1])
        stage.wait(20)
        stage.kill(second)
        stage.wait(1)
        world.take_overs.append(0)
        stage.server.clients.clear()
        stage.finish()


def a_reset_before_a_loss(seed, **more):
    """A reset, then the server forgets: the reset object is sent again whole, and its old records do not count."""
    with Stage(seed, required=8, settings={"headers": "none", "batch_length": 5}, **more) as stage:
        stage.put("0-x", 4)
        stage.live()
        reset(stage, "0-x")
        stage.put("0-y", 3)
        stage.lie("503", "0-x")
        stage.live()
        stage.kill_server({0: 3})
        stage.truth()
        stage.live()
        stage.finish()


def a_set_before_a_loss(seed, **more):
    """A position is set, then the server forgets what was sent since: that is sent again, and older records do not count."""
    with Stage(seed, required=8, settings={"headers": "none", "batch_length": 2}, **more) as stage:
        stage.put("0-x", 6)
        stage.live()
        stage.foreign(0, 20)
        stage.live()  # saves the records: a kill of the server takes others
        if stage.live("set", key="0-x", share=0.5) != "done" or not stage.world.sets:
            raise ViolationError("REFUSED", f"a set of one object: {stage.world.lives[-1].outcome}")
        stage.world.sets[0].ended = stage.world.now_us()
        stage.live()
        if stage.count(0) != 6 + 20 + 3:
            raise ViolationError("LOST", f"after the set there are {stage.count(0)} messages")
        stage.kill_server({0: 2})
        stage.live()
        stage.finish()


def a_replayed_letter_that_is_forgotten(seed, **more):
    """A dead letter is sent again to a topic that forgets: that is refused, or its record is there in the end."""
    with Stage(seed, required=8, settings={"letters": True, "bad": True}, **more) as stage:
        version = stage.put("0-x", 4, bad={2})
        stage.live()
        stage.save(0)
        stage.change(format="text")
        stage.world.formats.add("text")
        stage.world.causes["topic"] = None
        kind = stage.live("replay")
        stage.world.causes.clear()
        stage.change(format="jsonl")
        if kind == "done":
            if stage.count(0) < 4:
                raise ViolationError("LOST", "the replay said done and sent nothing")
            stage.kill_server({0: 1})
            stage.live()
            stage.change(format="text")
            stage.live("replay")
            stage.change(format="jsonl")
            numbers = {
                number for one in stage.part(0).messages for _, tag, number in tell(one.payload) if tag == version.tag
            }
            if 2 not in numbers:
                raise ViolationError("LOST", f"the replayed record is gone: {numbers}")
        stage.finish()


def a_letter_before_a_loss(seed, **more):
    """A kill takes all records of an object whose bad record has its letter: it keeps that one."""
    with Stage(
        seed,
        required=8,
        settings={"letters": True, "bad": True, "batch_length": 2, "batch_bytes": WIDTH},
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("0-x", 7, bad={5})
        life, stored = stage.start(), []
        stage.world.main = None

        def at_the_letter(kind, what, link):
            if kind == "stored" and what.startswith("send letters") and not stored:
                stored.append(what)
                stage.world.at(0.0, lambda: stage.kill(life))

        stage.world.happened = at_the_letter
        stage.until(lambda: bool(stored))
        stage.wait(1)
        stage.kill_server({0: stage.count(0)})
        stage.live()
        stage.finish()


def a_new_partition_that_is_forgotten(seed, **more):
    """Others write a topic that forgets; the source opens it and sends nothing; a kill takes what stood there."""
    with Stage(seed, required=8, **more) as stage:
        stage.put("0-x", 2)
        stage.live()
        begun = stage.world.now_us()
        stage.live("reset")
        stage.world.resets.append((begun, stage.world.now_us(), lambda _: True))
        stage.bucket.delete("0-x")
        stage.foreign(1, 3)
        stage.live()
        stage.kill_server({0: stage.count(0), 1: 3})
        stage.put("0-y")
        stage.live()
        stage.finish()


def finished_and_forgotten_before_a_run(seed, **more):
    """Several tasks: everything was sent, nothing is safe, a kill takes it: one run over everything brings it back."""
    with Stage(seed, required=8, settings={"tasks": 2}, **more) as stage:
        stage.put("0-x", 3)
        stage.put("1-y", 2)
        stage.live()
        stage.kill_server({0: 3, 1: 2})
        kind = stage.live()
        if kind == "done" and stage.count(0) + stage.count(1) != 5:
            raise ViolationError(
                "LOST", f"a run over everything ended, with {stage.count(0)} and {stage.count(1)} records there"
            )
        stage.finish()


def a_purge_of_what_may_be_forgotten(seed, **more):
    """A topic that forgets is purged while an object is half sent: what is sent next does not stand for what was there."""
    with Stage(
        seed,
        required=100,
        settings={"batch_length": 1, "batch_bytes": WIDTH, "queue_records": 1, "commit_interval": 0.05},
        bucket_options=SLOWLY,
        **more,
    ) as stage:
        stage.put("0-x", 60)
        life = stage.start()
        stage.until(lambda: stage.count(0) >= 6)
        stage.wait(0.1)  # progress is stored
        stage.world.operator.purge()
        stage.until(lambda: life.ended is not None, 20)
        if life.outcome is None or life.outcome.kind != "refused":
            raise ViolationError("NOT NOTICED", f"a purge, and records sent after it: {life.outcome}")
        stage.finish()


SCENARIOS = {
    function.__name__: function
    for function in (
        an_object_that_seems_gone,
        old_objects_in_a_partition_that_goes,
        numbering_changed_after_a_kill,
        another_endpoint,
        two_kills_of_a_forgetting_server,
        the_same_message_at_the_same_place,
        overwritten_between_a_snapshots_moments,
        overwritten_in_mid_read,
        a_worker_that_stands_still,
        back_to_the_first_version,
        headers_switched_on_between_kills,
        a_lost_log_with_topics_by_key,
        a_lost_log_noticed_at_a_topic_of_nobody,
        a_lost_log_of_a_shared_topic,
        a_host_without_power,
        a_second_instance,
        a_standby_after_a_kill,
        a_standby_of_a_silent_host,
        two_standbys,
        a_standby_over_a_restart_of_the_server,
        a_standby_once,
        fewer_partitions,
        a_reset_after_a_kill_without_headers,
        given_back_half_read_and_back,
        a_split_stays_in_its_partition,
        a_clock_set_back,
        parts_of_a_late_snapshot,
        a_reset_before_a_loss,
        a_set_before_a_loss,
        a_replayed_letter_that_is_forgotten,
        a_letter_before_a_loss,
        a_new_partition_that_is_forgotten,
        finished_and_forgotten_before_a_run,
        a_purge_of_what_may_be_forgotten,
    )
}
