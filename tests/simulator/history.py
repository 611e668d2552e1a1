"""One history: what people, machines and networks do to a source, chosen by a seed; and what may come of each start.

The source itself is started by `lives`, functions by name (`adapter.LIVES`) that this module knows nothing more of.
"""

import attrs

from tests.simulator import runtime
from tests.simulator.bucket import Bucket, Lie, Version, is_filtered, is_refused, record, tell
from tests.simulator.checker import Facts, Order, ViolationError, check, gather
from tests.simulator.coverage import properties_of
from tests.simulator.iggy import EVICTION_SECONDS, Partition, Server
from tests.simulator.key_lists import KeyList
from tests.simulator.meetings import Meeting, kind_of_cut
from tests.simulator.neighbour import OWN_LOG, WRITER, Neighbour, is_neighbours
from tests.simulator.operator import Operator
from tests.simulator.runtime import Host, Killed, Process, Scheduler, StuckError

WIDTH = 32
"""Bytes of a line, its end included."""

LARGE = (1 << 20) + 100
"""Bytes of a large record: more than a server keeps unsaved."""

MOST_CALM_SECONDS = 900.0

SOURCE = "src"
OFFSETS_TOPICS = ("src-offsets", "other-offsets")
NO_RECORDS = {*OFFSETS_TOPICS, OWN_LOG, "letters"}
RECORDS_TOPICS = ("records", "other-records")
OF_ALL_INSTANCES = {"format", "prefix", "endpoint", "mode", "order", "keyed", "transforms"}
"""Whoever changes these ends every instance first: one that goes on with the other value reads something else."""

MARK = "source src"
"""The consumer group by which a source marks the topics that it writes (docs/reference/iggy-messages.md)."""


@attrs.frozen(kw_only=True)
class Settings:
    """What the configuration says."""

    name: str = SOURCE
    topic: str = "records"
    offsets: str = "src-offsets"
    template: str | None = None
    distribution: str = "object_hash"
    partitions: int = 2
    tasks: int = 1
    headers: str = "provenance"
    format: str = "jsonl"
    chunk_size: int = WIDTH
    split_size: int = 0
    batch_length: int = 3
    batch_bytes: int = 1 << 21
    queue_records: int = 20
    prefetch_objects: int = 2
    linger_time: float = 0.005
    commit_interval: float = 0.3
    poll_interval: float = 0.5
    window: float = 86_400.0
    list_concurrency: int = 1
    letters: bool = False
    bad: bool = False
    transforms: bool = False
    refusing: bool = True
    keyed: bool = False
    min_age: float = 0.0
    engine: str = "local"
    mode: str = "list"
    lookback_keys: int = 1000
    full_listing_interval: float = 5.0
    archived: str = "skip"
    keys: str = "keys.csv"
    recheck: bool = True
    order: str = "listing"


@attrs.define(kw_only=True)
class Plan:
    """What may happen in a history, and how often.

    Attributes:
        settings: the first configuration.
        required: messages that data topics keep in memory at most, before they are saved.
        seconds: how long things happen.
        acts: what people do, with weights.
        act_seconds: between two acts, in the mean.
        faults: what happens at a request, with weights.
        fault_rate: how often.
        snapshot_fault_rate: how often at a part of a snapshot; None: as at every request.
        changes: what may be another way in the configuration of the next life.
        change_rate: how often each.
        keys: names of objects.
        records: of an object at most.
        bad_rate: how often an object holds a bad record.
        large_rate: how often a record is larger than a server keeps unsaved.
        once_rate: lives that end when all is read.
        tuning: limits of the code that are lower than a user's.
        bucket_options, server_options: attributes of both.
        store_slow: how often an answer of the store takes long.
        one_letter: whether a letter may come once only.
        lists: how often a row of the list of keys states its object's content; None: there is no list.
        neighbour: the configuration of a second source; None: there is none.
        meetings: kinds of events (`coverage.EVENTS`) that come one soon after the other: a list each.
    """

    settings: Settings = attrs.field(factory=Settings)
    required: int = 1
    seconds: float = 8.0
    acts: dict = attrs.field(factory=dict)
    act_seconds: float = 0.4
    faults: dict = attrs.field(factory=dict)
    fault_rate: float = 0.0
    snapshot_fault_rate: float | None = None
    changes: tuple = ()
    change_rate: float = 0.0
    keys: tuple = ("a/1", "a/2", "b/1", "b/2")
    records: int = 7
    bad_rate: float = 0.0
    large_rate: float = 0.0
    once_rate: float = 0.3
    tuning: dict = attrs.field(factory=dict)
    bucket_options: dict = attrs.field(factory=dict)
    server_options: dict = attrs.field(factory=dict)
    store_slow: float = 0.0
    prefixes: tuple = ("",)
    page_size: int = 2
    documented: bool = True
    one_letter: bool = False
    lists: float | None = None
    neighbour: Settings | None = None
    meetings: tuple = ()


@attrs.define(eq=False)
class Life:
    """One start of something."""

    kind: str
    process: Process
    settings: Settings
    args: dict
    began: float
    outcome: object = None
    ended: float | None = None
    disturbed: bool = False


def set_options(simulated, values):
    """Other values for attributes; one that is gone would leave histories without what their theme is about."""
    for name, value in values.items():
        getattr(simulated, name)
        setattr(simulated, name, value)


class World(Scheduler):
    """A history under way."""

    def __init__(self, seed, plan, lives, outcome_of, *, verbose=False):
        super().__init__(seed)
        self.plan = plan
        self.lives_by_name, self.outcome_of = lives, outcome_of
        self.verbose = verbose
        self.tolerated = frozenset()
        self.sends_beside = False  # whether records go over a connection of their own
        self.kills_at_rest = True  # not where what expired is known only as long as the server forgets nothing
        self.server_kills = []
        self.store_slow = plan.store_slow
        self.server = Server(self, default_required=1)
        set_options(self.server, plan.server_options)
        self.bucket = self.new_bucket("eu")
        self.buckets = [self.bucket]
        self.hosts = [Host("one"), Host("two")]
        self.spark_host = Host("executor")
        self.settings = plan.settings
        self.prefixes = plan.prefixes
        self.tags = 0
        self.events = []  # (moment, kind)
        self.properties = set()
        self.due = set()
        self.lives = []
        self.main = None
        self.helper = None
        self.calm = False
        self.causes = {}
        self.mended_at = -1.0  # when the last cause went away: a start before may have read what was wrong
        self.must_refuse = ""
        self.ended_by = ""  # the last command that ended that
        self.refused_since = -1.0  # connections that are older may not know yet
        self.operator = Operator(self)
        self.begun_ways = set()  # causes of which a command has changed the log, and may have been killed then
        self.left_logs = {}
        self.by_hand_at = -1
        self.log_since = {}
        self.hand_changes = 0
        self.resets = []
        self.sets = []
        self.free = set()
        self.skipped_in_archive = set()
        self.extra = {}
        self.take_overs = []
        self.lost_hosts = []
        self.formats = {self.settings.format}
        self.splits = set()
        self.key_partitions = set()
        self.divided = set()  # whether objects were divided by key: both, when that changed
        self.filtered = set()  # whether records were filtered: the same
        self.may_filter = plan.settings.transforms or self.may_come("changed transforms")
        self.replays = []
        self.backup = None
        self.log_as_of_us = None  # the moment of the oldest backup that a log came back from
        self.forgotten = []  # (first, last) of what was stored while a log was written that is no more
        self.restart_planned = False
        self.no_faults_until = 0.0
        self.lied_about = set()
        self.ordered_since = None
        self.key_list = KeyList(self, plan.settings.keys, exact=plan.lists) if plan.lists is not None else None
        self.neighbour = Neighbour(self, plan.neighbour) if plan.neighbour is not None else None

    # ---- telling

    def say(self, *words):
        if self.verbose:
            print(f"{self.now:9.3f}", *words, flush=True)

    def event(self, kind, *words):
        """Something of a kind (`coverage.EVENTS`) has happened."""
        self.events.append((self.now, kind))
        self.say(kind, *words)

    def fail(self, rule, text):
        if self.wrong is None and rule not in self.tolerated:
            self.wrong = ViolationError(rule, text)
            self.say("WRONG", rule, text)

    def now_us(self):
        return int((runtime.EPOCH + self.now) * 1e6)

    def happened(self, kind, what, link):
        """A request of a client was stored or answered."""
        if self.must_refuse and kind == "stored" and what.startswith("send ") and self.must_know(link):
            self.fail("NOT REFUSED", f"{link.process.name} sends after {self.must_refuse}")
        self.operator.happened(kind, what, link)
        if kind == "stored" and " snapshot " in what and link.process.name.startswith(("reset", "accept", "set")):
            if self.must_refuse:
                self.must_refuse, self.ended_by = "", link.process.name  # done, whatever becomes of the command
            self.begun_ways.update(self.causes)
        if self.verbose and not what.startswith(("clients", "version", "own")):
            self.say("   ", kind, what, link.process.name)
        if self.calm or not self.plan.fault_rate or self.now < self.no_faults_until:
            return
        rate = self.plan.fault_rate
        if not what.startswith(self.plan.tuning.get("fault_at", "")):
            return
        if self.plan.snapshot_fault_rate is not None and " snapshot " in what:
            rate = self.plan.snapshot_fault_rate
        if self.rng.random() < rate:
            self.fault(self.choose(self.plan.faults), link)

    def must_know(self, link):
        """Whether whoever sends over this connection has looked since there is something to refuse for."""
        if self.operator.is_hidden():
            return False
        leader = link.process.name.partition("/")[0]
        if leader == link.process.name:
            return link.since > self.refused_since
        return any(life.process.name == leader and life.began > self.refused_since for life in self.lives)

    def refuse(self, why):
        """From now on starts must refuse; what runs may not know yet."""
        self.must_refuse, self.refused_since = why, self.now

    def choose(self, weights):
        names = list(weights)
        return self.rng.choices(names, [weights[name] for name in names])[0]

    # ---- objects

    def new_bucket(self, address):
        bucket = Bucket(self, "bucket", address)
        set_options(bucket, self.plan.bucket_options)
        bucket.lies_in_lookups = self.plan.lists is not None
        return bucket

    def make_version(self, key, *, count=None, bad=None, age=0.0):
        rng = self.rng
        self.tags += 1
        count = rng.choice((0, 1, 1, 2, 3, *range(1, self.plan.records + 1))) if count is None else count
        if bad is None:
            bad = {rng.randint(1, count)} if count and rng.random() < self.plan.bad_rate else set()
        lines = []
        for number in range(1, count + 1):
            if number in bad:
                lines.append(record(key, self.tags, number, WIDTH - 1) + b"\n")
            else:
                large = self.plan.large_rate and rng.random() < self.plan.large_rate
                width = LARGE if large else WIDTH - 3
                lines.append(b'"' + record(key, self.tags, number, width) + b'"\n')
        modified_ms = int((runtime.EPOCH + self.now - age) * 1000) // 1000 * 1000
        filtered = set()
        if self.may_filter:
            sound = set(range(1, count + 1)) - bad  # a bad record is none for a transform
            filtered = {number for number in sound if is_filtered(key, self.tags, number)}
            bad = bad | {number for number in sound if self.settings.bad and is_refused(key, self.tags, number)}
        return Version(key, self.tags, modified_ms, count, bad, b"".join(lines), filtered)

    def put(self, key, **more):
        version = self.make_version(key, **more)
        if key in self.bucket.objects:
            self.event("overwritten")
        elif any(one.key == key for one in self.bucket.versions.values()):
            self.event("put again")
        self.bucket.put(version)
        self.say("put", key, version, f"{version.count} records", f"bad {version.bad}" if version.bad else "")
        return version

    def restore(self, version):
        self.bucket.put(version)
        self.event("restored", version.key, version)

    # ---- lives

    def start(self, kind, *, host=None, settings=None, then=None, **args):
        host = host or self.hosts[0]
        settings = settings or self.settings
        ours = settings.name == SOURCE
        self.properties |= properties_of(self.plan, settings)
        process = Process(self, host, f"{'' if ours else WRITER}{kind}{len(self.lives)}")
        process.extra.update(
            source=settings.name,
            server=self.server,
            bucket=self.bucket,
            lists=self.key_list.bucket if self.key_list is not None else None,
            documented=self.plan.documented,
            prefixes=self.prefixes if ours else self.neighbour.prefixes,
            page_size=self.plan.page_size,
            required_to_save={**dict.fromkeys(NO_RECORDS, 1), **self.plan.tuning.get("required", {})},
            required_of_data=self.plan.required,
            pipe_latency=self.pipe_latency,
            spark_loses=0.0 if self.calm else self.plan.tuning.get("spark_loses", 0.0),
            world=self,
        )
        life = Life(kind, process, settings, args, self.now)
        self.lives.append(life)
        if ours and kind != "replay":
            self.formats.add(settings.format)
            self.ordered_since = self.order_of(settings)
            self.divided.add(settings.keyed)
            self.filtered.add(settings.transforms)
        if settings.split_size:
            self.splits.add(settings.split_size)
        if settings.keyed:
            self.key_partitions.add(settings.partitions)
        if args.get("take_over"):
            self.take_overs.append(self.now)
        self.say("start", process, args, settings if self.verbose else "")

        def main():
            error = None
            try:
                self.lives_by_name[kind](settings, **args)
            except Killed:
                raise
            except Exception as failure:  # noqa: BLE001 - how it ended is what is looked at
                error = failure
                if self.verbose:
                    import traceback

                    self.say("ended with", "".join(traceback.format_exception(failure)[-6:]))
            self.at(0.0, lambda: self.ended(life, error, then))

        self.spawn(process, main)
        return life

    def order_of(self, settings):
        """Since when every start reads in the order of start offsets; None when this one does not."""
        if settings.order != "start_offset":
            return None
        return self.now if self.ordered_since is None else self.ordered_since

    def lives_of(self, source):
        """Every life of this source."""
        return [life for life in self.lives if life.settings.name == source]

    def pipe_latency(self):
        rng = self.rng
        if rng.random() < self.plan.tuning.get("slow_pipe", 0.0):
            return rng.uniform(0.1, 3.0)
        return rng.uniform(0.0001, 0.003)

    def ended(self, life, error, then):
        if life.ended is not None:
            return
        life.ended = self.now
        life.process.die()
        life.outcome = self.outcome_of(error)
        self.say("ended", life.process, life.outcome.kind, life.outcome.text)
        self.judge(life)
        if then is not None:
            then(life)

    def kill(self, life):
        if life is not None and life.ended is None:
            life.ended = self.now
            self.event("source killed", life.process)
            life.process.die()

    def lose_host(self, life):
        """No power: its processes end, and nobody tells the server."""
        if life is None or life.ended is not None:
            return
        life.ended = self.now
        self.event("no power", life.process)
        processes = [life.process, *life.process.extra.get("children", ())]
        for link in list(self.server.clients.values()):
            if link.process in processes:
                link.silent, link.over = True, "no power"
                if link.groups:
                    self.at(EVICTION_SECONDS, link.server_notices)
        for process in processes:
            process.die()
        self.lost_hosts.append(self.now)

    # ---- what a start may come to

    def judge(self, life):
        kind, text = life.outcome.kind, life.outcome.text
        if kind == "broken":
            self.fail("BROKEN", text)
        elif kind == "running" and not self.somebody_else(life):
            self.fail("REFUSED", f"nobody else runs: {text}")
        elif kind == "running" and self.was_first(life):
            self.fail("DISPLACED", f"by a later start without leave: {text}")
        elif kind == "list" and (self.key_list is None or not self.key_list.may_end(life)):
            self.fail("REFUSED", f"the list is in order: {text}")
        elif kind == "taken" and not (life.disturbed or (self.take_overs and life.settings.name == SOURCE)):
            self.fail("DISPLACED", f"nobody took it over: {text}")
        elif kind in {"refused", "topic"} and life.settings.name != SOURCE:
            self.fail("REFUSED", f"nothing was done to the neighbour: {text}")
        elif kind == "refused" and life.kind == "set" and self.splits:
            pass  # a position is no place in an object that is read in splits
        elif life.began < self.mended_at and not self.causes:
            pass  # it looked before the cause went away
        elif life.began == self.mended_at and life.settings.offsets != self.settings.offsets and not self.causes:
            pass  # it began in that moment, still with the name of the other log
        elif (kind == "refused" and not self.causes) or (
            kind == "topic"
            and not self.causes
            and not self.grow_topics()
            and life.settings.partitions == self.settings.partitions
            and not self.take_number_of_another(life)
        ):
            self.fail("REFUSED", f"for no reason: {text}")

    def was_first(self, life):
        """Whether it had been at work when those began that it gives way to, and nothing had come in between."""
        lives = self.lives_of(life.settings.name)
        later = [other for other in lives if other.began > life.began + 1.0 and other.ended is None]
        return (
            bool(later)
            and not life.disturbed
            and not any(other.args.get("take_over") for other in lives)
            and not any(at >= life.began for at in self.server_kills)
            and all(other in later or other is life or other.ended is not None for other in lives)
            and all(other.ended is None or other.ended < life.began or other.began > life.began for other in lives)
        )

    def somebody_else(self, life):
        ours = {life.process, *life.process.extra.get("children", ())}
        others = [
            other
            for other in self.lives_of(life.settings.name)
            if other is not life and (other.ended is None or other.ended > life.began - 15)
        ]
        listed = [
            link
            for link in self.server.clients.values()
            if link.process not in ours and link.process.extra.get("source") == life.settings.name
        ]
        if self.lost_hosts and not others and listed:
            lost = max(self.lost_hosts)
            if self.now - lost > 100.0:
                return False
        return bool(others or listed)

    def take_number_of_another(self, life):
        """Follow the error if another start had another number of partitions: its request may be stored late."""
        if all(other.settings.partitions == life.settings.partitions for other in self.lives if other is not life):
            return False
        made = [len(found.partitions) for found in self.data_topics()]
        self.settings = attrs.evolve(self.settings, partitions=max((self.settings.partitions, *made)))
        return True

    # ---- what happens at requests

    def fault(self, name, link):
        getattr(self, "fault_" + name)(link, self.life_of(link.process))

    def fault_kill(self, _, life):
        if life is not None:
            self.kill(life)
            if life in {self.main, self.helper}:
                self.plan_restart()
            elif self.neighbour is not None and life is self.neighbour.main:
                self.neighbour.plan_restart()

    def fault_kill_all(self, _, life):
        """Its tasks end with it, as in a container: what they sent last is in no progress."""
        if life is not None:
            children = list(life.process.extra.get("children", ()))
            self.fault_kill(None, life)
            self.event("source and tasks killed")
            for child in children:
                self.at(0.0, child.die)

    def fault_kill_worker(self, link, life):
        if life is not None and link.process is not life.process:
            self.event("task killed", link.process)
            life.disturbed = True
            self.at(0.0, link.process.die)

    def fault_kill_server(self, *_):
        if self.server.up and not self.calm:
            self.server_kills.append(self.now)
            lost = self.server.kill(self.rng.uniform(0.05, 0.8))
            self.event("server killed", "lost", lost)
            if lost:
                self.event("server forgot")
            if self.rng.random() < self.plan.tuning.get("crash_loop", 0.2):
                self.at(self.rng.uniform(1.0, 2.5), self.fault_kill_server)

    def fault_restart_server(self, *_):
        if self.server.up:
            self.event("server restarted")
            self.server_kills.append(self.now)
            self.server.stop(self.rng.uniform(0.05, 0.5))

    def fault_cut(self, link, life):
        self.event(kind_of_cut(link.under_way), link.process)
        if life is not None:
            life.disturbed = True
        link.cut(silently=self.rng.random() < 0.1 and bool(link.groups))

    def fault_pause(self, link, life):
        seconds = self.rng.uniform(0.1, 8.0)
        self.event("paused", link.process, seconds)
        if life is not None and seconds > 2:
            life.disturbed = True
        link.process.paused_until = self.now + seconds

    def fault_power(self, _, life):
        if life is not None and life is self.main:
            self.lose_host(life)
            self.plan_restart()

    def life_of(self, process):
        for life in reversed(self.lives):
            if life.process is process or process in life.process.extra.get("children", ()):
                return life if life.ended is None else None
        return None

    # ---- the one who looks after the source

    def plan_restart(self, delay=None):
        if self.restart_planned or self.calm:
            return
        self.restart_planned = True
        self.at(self.rng.uniform(0.01, 1.5) if delay is None else delay, self.restart)

    def restart(self):
        self.restart_planned = False
        if self.calm or (self.main is not None and self.main.ended is None):
            return
        if self.helper is not None and self.helper.ended is None:
            self.plan_restart(0.5)
            return
        refused = (
            self.main is not None and self.main.outcome is not None and self.main.outcome.kind in {"refused", "topic"}
        )
        if refused and self.causes:
            self.take_way_out(lambda: self.plan_restart(0.05))
            return
        for name in self.plan.changes:
            if self.rng.random() < self.plan.change_rate:
                self.change(name)
        for name in sorted(self.due):
            self.change(name)
        self.due.clear()
        self.main = self.start(
            "source",
            once=self.rng.random() < self.plan.once_rate,
            take_over=False,
            then=lambda _: self.plan_restart(),
            **({"standby": True} if self.plan.tuning.get("standby") else {}),
        )

    def change(self, name):
        before = self.settings, self.prefixes, self.bucket
        by_key = self.settings.topic == "{{topic}}"  # another number of partitions is then an error of the object
        if name in OF_ALL_INSTANCES or (by_key and name == "fewer_partitions"):
            for life in self.lives_of(SOURCE):
                self.kill(life)
        self.change_to(name)
        if before != (self.settings, self.prefixes, self.bucket):
            self.event(f"changed {name}")

    def change_to(self, name):
        rng, settings = self.rng, self.settings
        evolve = attrs.evolve
        if name == "tasks":
            self.settings = evolve(settings, tasks=rng.randint(1, settings.partitions))
        elif name == "headers":
            self.settings = evolve(settings, headers=rng.choice(("provenance", "none")))
        elif name == "split":
            self.settings = evolve(settings, split_size=rng.choice((0, 2 * WIDTH, 3 * WIDTH)))
        elif name == "batch":
            self.settings = evolve(
                settings, batch_length=rng.randint(1, 5), commit_interval=rng.choice((0.05, 0.3, 1.0))
            )
        elif name == "format" and "format" not in self.causes:
            other = rng.choice((("jsonl", WIDTH), ("bytes", WIDTH), ("bytes", 2 * WIDTH)))
            if (other != (settings.format, settings.chunk_size) and other[0] != settings.format) or other[0] == "bytes":
                self.causes["format"] = settings
                self.settings = evolve(settings, format=other[0], chunk_size=other[1])
        elif name == "more_partitions" and settings.partitions < 4:
            self.add_partition()
        elif name == "fewer_partitions" and settings.partitions > 1:
            self.remove_partition()
        elif name in {"records_topic", "offsets_topic"}:
            self.change_topic(name)
        elif name in {"keyed", "transforms", "prefix", "mode", "order", "reading", "engine", "window", "min_age"}:
            getattr(self, f"change_{name}")()
        elif name == "endpoint" and "endpoint" not in self.causes and any(life.ended for life in self.lives):
            self.causes["endpoint"] = self.bucket
            self.bucket = self.new_bucket(f"us-{len(self.buckets)}")
            self.buckets.append(self.bucket)
            for key in self.plan.keys[:2]:
                self.put(key, age=rng.choice((0.0, 3.0, 30.0)))

    def change_prefix(self):
        if "prefix" not in self.causes:
            self.causes["prefix"] = self.prefixes
            self.prefixes = self.rng.choice([one for one in (("",), ("a/",), ("a/", "b/")) if one != self.prefixes])

    def change_keyed(self):
        self.change_dividing("keyed")

    def change_transforms(self):
        self.change_dividing("transforms")

    def change_dividing(self, name):
        """With or without one of the two; those up to the one that chooses the partition divide objects in another way."""
        if "keying" in self.causes or not self.bucket.objects or not any(life.ended for life in self.lives):
            return
        if name == "keyed" or self.settings.keyed:
            self.causes["keying"] = self.settings
        self.settings = attrs.evolve(self.settings, **{name: not getattr(self.settings, name)})

    def change_mode(self):
        modes = [one for one in ("keys", "keys", "list", "incremental") if one != self.settings.mode]
        self.settings = attrs.evolve(self.settings, mode=self.rng.choice(modes))

    def change_order(self):
        order = self.rng.choice(("listing", "start_offset", "start_offset"))
        self.settings = attrs.evolve(self.settings, order=order)

    def change_reading(self):
        rng = self.rng
        self.settings = attrs.evolve(
            self.settings,
            queue_records=rng.choice((1, 5, 50)),
            prefetch_objects=rng.choice((1, 2, 4)),
            list_concurrency=rng.choice((1, 2)),
            linger_time=rng.choice((0.0, 0.005, 0.05)),
            poll_interval=rng.choice((0.3, 0.6, 1.5)),
        )

    def change_engine(self):
        self.settings = attrs.evolve(self.settings, engine="local" if self.settings.engine == "spark" else "spark")

    def change_window(self):
        self.settings = attrs.evolve(self.settings, window=self.rng.choice((6.0, 15.0, 86_400.0)))

    def change_min_age(self):
        self.settings = attrs.evolve(self.settings, min_age=self.rng.choice((0.0, 1.5)))

    def change_topic(self, name):
        if not self.nothing_runs():
            return
        if name == "offsets_topic" and not self.causes:
            self.rename_log()
        elif name == "records_topic" and self.settings.topic in RECORDS_TOPICS:
            other = RECORDS_TOPICS[self.settings.topic == RECORDS_TOPICS[0]]
            self.settings = attrs.evolve(self.settings, topic=other)
            self.note_unknown_topics()

    def data_topics(self):
        return [one for one in self.server.streams.get("lake", {}).values() if one.name not in NO_RECORDS]

    def add_partition(self):
        self.settings = attrs.evolve(self.settings, partitions=self.settings.partitions + 1)
        for found in self.data_topics():
            found.partitions.append(Partition())

    def grow_topics(self):
        """Topics that were made with the number that was configured before get the rest; whether there were any."""
        small = [one for one in self.data_topics() if len(one.partitions) < self.settings.partitions]
        for found in small:
            while len(found.partitions) < self.settings.partitions:
                found.partitions.append(Partition())
        return bool(small)

    def remove_partition(self):
        partitions = self.settings.partitions - 1
        self.settings = attrs.evolve(self.settings, partitions=partitions, tasks=min(partitions, self.settings.tasks))
        for found in self.data_topics():
            self.causes["partitions"] = None
            self.hand_changes += 1
            whole = self.whole_contents()
            self.forget_records(found.partitions.pop().messages, only=whole)
            self.operator.partition_gone(found.name, len(found.partitions))

    def nothing_runs(self):
        """Whether no life goes on, also none of a worker that outlives its leader."""
        workers = (worker for life in self.lives for worker in life.process.extra.get("children", ()))
        return (
            not any(life.ended is None for life in self.lives)
            and not any(worker.alive for worker in workers)  # also one that is about to connect again
            and not self.server.clients
        )

    def is_marked(self):
        """Whether a data topic says that this source has written it, or must, since a run over its records ended well."""
        return any(MARK in topic.groups for topic in self.data_topics()) or self.ended_with_records()

    def may_be_marked_later(self):
        """Whether a worker that outlives its leader may mark a topic yet, and a start be refused for it, or not."""
        return not self.is_marked() and not self.nothing_runs()

    def ended_with_records(self):
        """Whether a run of this log ended well, with all saved, and records that it sent are still in a topic."""
        since = self.log_since.get(self.settings.offsets, -1)
        done = {
            life.process.name
            for life in self.lives
            if life.settings.offsets == self.settings.offsets and self.saved_all(life)
        }
        return any(
            message.serial > since and message.writer.partition("/")[0] in done
            for topic in self.data_topics()
            for part in topic.partitions
            for message in part.messages
        )

    def saved_all(self, life):
        """Whether it ended well, with all saved."""
        return (
            life.kind == "source"
            and life.outcome is not None
            and life.outcome.kind == "done"
            and not life.disturbed
            and not self.ended_unanswered(life)
            and not any(at >= life.began for at in self.server_kills)
        )

    def ended_unanswered(self, life):
        """Whether its last connection ended during a request, which a stop does not repeat: not all may be saved."""
        processes = (life.process, *life.process.extra.get("children", ()))
        return any(process.extra.get("unanswered") for process in processes)

    def allow_again(self, since=-1):
        """A log that knows nothing of what was sent since then: all of it may come once more."""
        for topic in self.data_topics():
            for part in topic.partitions:
                self.count_again(message for message in part.messages if message.serial > since)

    def count_again(self, messages):
        """What these hold may come once more."""
        for message in messages:
            for key, tag, _ in tell(message.payload):
                self.extra[key, tag] = self.extra.get((key, tag), 0) + 1

    def numbering(self):
        """What the positions of a log were made with."""
        return self.settings.format, self.settings.chunk_size, self.prefixes, self.bucket.address

    def rename_log(self):
        """Another offsets topic: one that is new is refused where the source has written, an older one is taken up."""
        before, name = self.settings, OFFSETS_TOPICS[self.settings.offsets == OFFSETS_TOPICS[0]]
        found, left = self.server.find("lake", name), self.left_logs.get(name)
        known = found is not None and left is not None and bool(found.partitions[0].messages)
        if (known and left["numbering"] != self.numbering()) or (not known and self.may_be_marked_later()):
            return
        self.leave_log()
        self.settings = attrs.evolve(before, offsets=name)
        self.say("offsets topic", name, "known" if known else "new")
        if known:
            self.take_up_log(left)
            self.note_unknown_topics()
            if left["hand_changes"] != self.hand_changes:
                self.causes["offsets"] = before  # it knows topics that are no longer there
        elif self.is_marked():
            self.causes["offsets"] = before
            self.must_refuse = f"another offsets topic, {name}, was named"
        else:
            self.allow_again()  # nothing says that the source was here before

    def name_another_log(self):
        """As an error advises; the damaged one is deleted."""
        for life in self.lives_of(SOURCE):
            self.kill(life)
        self.begun_ways.add("log")
        del self.server.streams["lake"][self.settings.offsets]
        self.log_since[self.settings.offsets] = (
            self.server.serial
        )  # a later one of its name knows nothing of what it knew
        name = OFFSETS_TOPICS[self.settings.offsets == OFFSETS_TOPICS[0]]
        if self.server.find("lake", name) is None:
            self.settings = attrs.evolve(self.settings, offsets=name)
            self.log_since[name] = self.server.serial
        self.say("offsets topic", self.settings.offsets, "in place of a damaged one")

    def leave_log(self):
        self.left_logs[self.settings.offsets] = {
            "serial": self.server.serial,
            "at": self.now,
            "numbering": self.numbering(),
            "hand_changes": self.hand_changes,
        }

    def note_unknown_topics(self):
        """A topic that has our mark, and was written with another log only, may be refused."""
        written = self.written_under(self.settings.offsets)
        unknown = any(MARK in topic.groups and topic.name not in written for topic in self.data_topics())
        if self.left_logs and unknown and not self.causes:
            other = OFFSETS_TOPICS[self.settings.offsets == OFFSETS_TOPICS[0]]
            self.causes["offsets"] = attrs.evolve(self.settings, offsets=other)

    def written_under(self, offsets):
        """Data topics that lives with this offsets topic have written."""
        names = {life.process.name for life in self.lives if life.settings.offsets == offsets}
        since = self.log_since.get(offsets, -1)
        return {
            topic.name
            for topic in self.data_topics()
            for part in topic.partitions
            for message in part.messages
            if message.serial > since and message.writer.partition("/")[0] in names
        }

    def take_up_log(self, left):
        """A log goes on as it was left: what was sent and done by another one since then does not count in it."""
        self.allow_again(left["serial"])
        at_us = int((runtime.EPOCH + left["at"]) * 1e6)
        self.resets = [(begun, None if begun >= at_us else ended, takes) for begun, ended, takes in self.resets]
        for bucket in self.buckets:
            changed = {key for at, key, _ in bucket.became if at >= left["at"]}
            self.free |= {
                version.tag for at, key, version in bucket.became if key in changed and version and at < left["at"]
            }

    def forget_records(self, messages, only=None):
        """People took them away: whatever was there may or may not be sent again; of some contents, if only those are free."""
        for message in messages:
            tags = {tag for _, tag, _ in tell(message.payload)}
            self.free |= tags if only is None else tags & only
            self.count_again([message])

    def whole_contents(self):
        """The contents of which every record is there: only they can be finished."""
        there = {
            place
            for topic in self.data_topics()
            for part in topic.partitions
            for m in part.messages
            for place in tell(m.payload)
        }
        versions = {version.tag: version for bucket in self.buckets for _, _, version in bucket.became if version}
        return {tag for tag, one in versions.items() if all((one.key, tag, number) in there for number in one.good)}

    def take_way_out(self, then):
        """After a refusal that had a cause: what the error advises."""
        cause, before = next(iter(self.causes.items()))
        ways = {
            "format": ["back", "reset"],
            "keying": ["back", "accept", "reset"],
            "prefix": ["back", "reset"],
            "endpoint": ["back", "reset"],
            "partitions": ["accept", "reset"],
            "purge": ["accept", "reset"],
            "log": ["back", "reset"],
            "offsets": ["back", "reset"],
            "expired": ["accept", "reset"],
            "extra partition": ["back"],
            "recreated": ["accept", "reset", *(["back"] if before is not None else [])],
        }[cause]
        if cause == "log" and self.was_sent_since(self.log_lost_at):
            ways = ["reset"]  # the log that is brought back knows nothing of what was sent without it
        if cause in self.begun_ways and cause != "extra partition":
            ways = [way for way in ways if way != "back"]  # the log is of what there is now
        way = self.rng.choice(ways)
        self.say("way out of", cause, way)
        if cause in {"log", "offsets"} and self.must_refuse and self.rng.random() < 0.2:

            def tried(life, refused=self.must_refuse):
                if life.outcome.kind == "done" and self.ended_by == life.process.name:
                    self.fail("NOT REFUSED", f"accepted after {refused}")
                if cause in self.causes:
                    self.go_way_out(way, cause, before, then)
                else:
                    then()  # another way out came to its end meanwhile

            self.helper = self.start("accept", then=tried)  # it does not help
        else:
            self.go_way_out(way, cause, before, then)

    def go_way_out(self, way, cause, before, then):
        if way == "back":
            if cause == "format":
                self.settings = attrs.evolve(self.settings, format=before.format, chunk_size=before.chunk_size)
            elif cause == "keying":
                self.settings = attrs.evolve(self.settings, keyed=before.keyed, transforms=before.transforms)
            elif cause == "prefix":
                self.prefixes = before
            elif cause == "log":
                self.server.streams["lake"][before.name] = before
            elif cause == "offsets":
                self.settings = attrs.evolve(self.settings, offsets=before.offsets)
                if before.offsets in self.left_logs:
                    self.take_up_log(self.left_logs[before.offsets])
            elif cause == "recreated":
                self.server.streams["lake"][before.name] = before
            elif cause == "extra partition":
                del before.partitions[1:]
            else:
                self.bucket = before
            del self.causes[cause]
            self.mended_at = self.now
            self.must_refuse = ""
            if cause == "offsets":
                self.note_unknown_topics()
            then()
        else:
            self.by_hand(way, cause, then)

    def was_sent_since(self, serial):
        return any(
            message.serial > serial and message.payload != b"theirs"
            for topic in self.data_topics()
            for part in topic.partitions
            for message in part.messages
        )

    def by_hand(self, way, cause, then):
        begun = self.now_us()
        if way == "reset":
            self.resets.append((begun, None, lambda _: True))  # it may come to its end and be killed before it says so
        elif way == "accept":
            loses_records = self.causes.keys() != {"partitions"}  # what a partition held half read is sent again
            if loses_records:
                self.accept_losses()  # so may this

        def done(life):
            if life.outcome.kind == "done":
                self.causes.clear()
                self.begun_ways.clear()
                self.must_refuse = ""
                self.by_hand_at = self.server.serial
                self.mended_at = self.now
                if way == "reset":
                    self.resets = [one for one in self.resets if one[0] != begun]
                    self.resets.append((begun, self.now_us(), lambda _: True))
                elif way == "accept" and loses_records:
                    self.accept_losses()
                then()
            elif cause == "log" and "first records of source" in life.outcome.text:
                self.name_another_log()  # what ran has written to the purged one
                self.by_hand(way, cause, then)
            elif life.outcome.kind in {"refused", "topic"}:
                self.fail("NO WAY OUT", f"{way} after {cause}: {life.outcome.text}")
            else:
                self.at(1.0, lambda: self.by_hand(way, cause, then) if cause in self.causes else then())

        if way == "accept" and not {"format", "keying", "partitions"}.isdisjoint(self.causes):
            self.allow_again()  # what was partly read, with the other one or in a partition that is gone, begins once more
        if way == "accept" and cause == "expired":
            self.forget_records(self.causes.get("expired", ()))
        self.helper = self.start(way, then=done)

    def accept_losses(self):
        """From here on nothing is demanded of what was in the bucket so far."""
        self.free |= {version.tag for bucket in self.buckets for _, _, version in bucket.became if version}

    # ---- what people do

    def act(self):
        if self.calm:
            return
        self.at(self.rng.expovariate(1.0 / self.plan.act_seconds), self.act)
        name = self.choose(self.plan.acts)
        getattr(self, "act_" + name)()

    def a_key(self):
        return self.rng.choice(self.plan.keys)

    def act_put(self):
        self.put(self.a_key())

    def act_put_many(self):
        """Several at once, some of them new."""
        for _ in range(self.rng.randint(2, 6)):
            self.act_put()

    def act_list(self):
        self.key_list.rewrite()

    def act_lose_list(self):
        self.key_list.lose()

    def act_lie_of_list(self):
        self.key_list.lie()

    def act_neighbour(self):
        self.neighbour.act()

    def act_old_put(self):
        """With a last-modified from before, as an upload that took long has."""
        most = min(self.settings.window - 2.5, 30.0)
        if most > 0:
            self.event("uploaded late")
            self.put(self.a_key(), age=self.rng.uniform(0.0, most))

    def act_restore(self):
        key = self.a_key()
        earlier = [
            one for one in self.bucket.versions.values() if one.key == key and one is not self.bucket.objects.get(key)
        ]
        if earlier:
            self.restore(self.rng.choice(earlier))

    def act_delete(self):
        key = self.a_key()
        if key in self.bucket.objects:
            self.bucket.delete(key)
            self.event("deleted", key)

    def act_lie(self):
        """A store, or what stands before it, says for a while that an object is not there, or may not be read."""
        self.lie(self.rng.choice(self.plan.tuning.get("lies", ("404", "404", "403", "503"))))

    def lie(self, kind):
        if kind == "403" and (self.settings.bad or self.settings.letters):
            kind = "503"  # where bad objects are skipped, one that may not be read is skipped, too
        key = self.a_key()
        until = self.now + self.rng.uniform(0.1, 2.0)
        self.event(f"wrong {kind}", key, f"until {until:.3f}")
        self.lied_about.add(key)
        self.bucket.lies.append(Lie(kind, key, until))

    def act_stop(self):
        life = self.main
        if life is not None and life.ended is None and "stop" in life.process.extra:
            self.event("stopped", life.process)
            self.spawn(life.process, life.process.extra["stop"], "stop")

    def act_kill(self):
        if self.main is not None and self.main.ended is None:
            self.kill(self.main)
            self.plan_restart()

    def act_second(self):
        if len([life for life in self.lives_of(SOURCE) if life.ended is None]) < 3:
            take_over = self.rng.random() < self.plan.tuning.get("take_over", 0.0)
            self.event("second instance")
            self.start("source", host=self.hosts[1], once=True, take_over=take_over)

    def act_standby(self):
        """An instance that waits for the end of whoever is at work, and takes over; two at most."""
        waiting = [life for life in self.lives_of(SOURCE) if life.ended is None and life is not self.main]
        if len(waiting) < 2:
            self.event("standby")
            self.start(
                "source",
                host=self.hosts[1],
                once=self.rng.random() < 0.3,
                take_over=False,
                standby=True,
            )

    def act_kill_standby(self):
        """One of them is killed, at work or waiting."""
        found = [life for life in self.lives if life.ended is None and life.args.get("standby")]
        if found:
            self.event("standby killed")
            self.kill(self.rng.choice(found))
            if self.main is not None and self.main.ended is not None:
                self.plan_restart()

    def act_clock(self):
        host = self.rng.choice(self.hosts)
        ahead = self.rng.choice((0.0, -120.0, 120.0, self.rng.uniform(-30, 30)))
        # Of the two clocks the earlier one counts: what is new looks too old only if both are ahead (`allowed_lateness`).
        host.clock_ahead = min(ahead, 0.0) if any(bucket.told_ahead_ms > 0 for bucket in self.buckets) else ahead
        self.event("clock stepped", host.name, host.clock_ahead)

    def act_date(self):
        """What answers for the store, a proxy or one of its hosts, has another clock than what dates its objects."""
        ahead = self.rng.choice((0, 0, -3_600_000, 10_000, 3_600_000))
        self.bucket.told_ahead_ms = min(ahead, 0) if any(host.clock_ahead > 0 for host in self.hosts) else ahead
        self.event("dates stepped", self.bucket.told_ahead_ms)

    def act_reset(self):
        """Stop, forget, go on."""
        rng = self.rng
        if self.main is None or self.main.ended is not None or self.restart_planned or self.causes:
            return
        self.kill(self.main)
        key = self.a_key()
        which = rng.choice(({"key": key}, {"prefix": key[:2]}, {}))
        takes = (lambda one: one == key) if "key" in which else (lambda one: one.startswith(which.get("prefix", "")))
        begun = self.now_us()
        self.resets.append((begun, None, takes))

        def done(life):
            ok = life.outcome is not None and life.outcome.kind == "done"
            if ok:
                self.resets = [one for one in self.resets if one[0] != begun]
                self.resets.append((begun, self.now_us(), takes))
            self.plan_restart(0.05)

        self.event("reset")
        self.helper = self.start("reset", then=done, **which)
        self.restart_planned = False

    def act_set(self):
        """Stop, set a position, go on."""
        rng = self.rng
        if self.main is None or self.main.ended is not None or self.restart_planned or self.causes:
            return
        self.kill(self.main)

        def done(life):
            for one in [one for one in self.sets if one.life == life.process.name]:
                if life.outcome is not None and life.outcome.kind == "done":
                    one.ended = self.now_us()
            self.plan_restart(0.05)

        self.event("position set")
        self.helper = self.start("set", then=done, key=self.a_key(), share=rng.choice((0.0, 0.3, 0.6, 0.9, 1.0, None)))
        self.restart_planned = False

    def act_accept(self):
        """Stop, accept what is there, go on: there is nothing to accept, so nothing is lost."""
        if self.may_come("changed format", "changed keyed", "changed transforms", "changed prefix", "changed endpoint"):
            return  # half-read objects, or all, may begin again then
        self.go_by_hand("accepted", "accept")

    def act_replay(self):
        """Stop, send dead letters again under options by which their records are good, go on."""
        if self.plan.required > 1:
            return  # refused, as documented
        found = self.server.find("lake", "letters")
        stored = found.partitions[0].messages if found is not None else ()
        saved = max((life.ended for life in self.lives if self.saved_all(life)), default=0.0)
        saved_us = int((runtime.EPOCH + saved) * 1e6)  # a letter that positions do not cover yet comes once more
        places = {place for one in stored if one.timestamp_us < saved_us for place in tell(one.payload)}
        if self.settings.transforms:
            places = {place for place in places if not is_filtered(*place)}
        replay = [self.now_us(), None, places]

        def done():
            replay[1] = self.now_us()

        if self.go_by_hand(
            "replayed", "replay", done, settings=attrs.evolve(self.settings, format="text", refusing=False)
        ):
            self.replays.append(replay)

    def go_by_hand(self, event, kind, done=lambda: None, **args):
        """Stop the source, run a command, start it again; whether that was possible."""
        if self.main is None or self.main.ended is not None or self.restart_planned or self.causes:
            return False
        self.kill(self.main)

        def ended(life):
            if life.outcome is not None and life.outcome.kind == "done":
                done()
            self.plan_restart(0.05)

        self.event(event)
        self.helper = self.start(kind, then=ended, **args)
        self.restart_planned = False
        return True

    def act_back_up(self):
        """An operator copies the disk of the server."""
        if not self.causes and "lake" in self.server.streams:
            self.backup = {
                "topics": self.server.copy("lake"),
                "at": self.now,
                "serial": self.server.serial,
                "as": self.state_of_names(),
            }
            self.say("backed up")

    def state_of_names(self):
        """What must be now as it was when a backup was made, so that its positions and topics fit."""
        settings = self.settings
        return (
            *self.numbering(),
            settings.keyed,
            settings.transforms,
            settings.topic,
            settings.offsets,
            settings.partitions,
            self.hand_changes,
            self.by_hand_at,
            self.log_since.get(settings.offsets),
            [(name, left["serial"]) for name, left in sorted(self.left_logs.items())],
        )

    def usable_backup(self):
        """The backup, if it fits; else another one is made, and None given."""
        backup = self.backup
        if backup is not None and not self.causes and self.server.up and backup["as"] == self.state_of_names():
            return backup
        self.act_back_up()
        return None

    def bring_back(self, event, topics, backup):
        """The server is stopped, and begins again: it has these topics as they were."""
        self.event(event, "as of", backup["at"])
        self.server_kills.append(self.now)
        self.server.stop(self.rng.uniform(0.05, 0.5))
        self.server.streams["lake"].update(self.server.copy("lake", topics))
        self.mended_at = self.now
        for life in self.lives:
            life.disturbed |= life.ended is None
        if self.settings.offsets in topics:
            self.operator.log_restored(backup["at"])
        self.backup = None

    def act_restore_server(self):
        """With everything as it was."""
        backup = self.usable_backup()
        if backup is None:
            return
        at_us = int((runtime.EPOCH + backup["at"]) * 1e6)
        self.bring_back("server restored", backup["topics"], backup)
        for name in set(self.server.streams["lake"]) - set(backup["topics"]):
            del self.server.streams["lake"][name]
        self.undo_commands(at_us)

    def undo_commands(self, at_us):
        """What commands have done since then is no longer so, or may be."""
        self.resets = [
            (begun, None if ended is not None and ended >= at_us else ended, takes)
            for begun, ended, takes in self.resets
        ]
        for one in self.sets:
            if one.ended is not None and one.ended >= at_us:
                one.ended = None
        for replay in self.replays:
            replay[1] = None

    def act_restore_log(self):
        """With an offsets topic of before: objects that were begun since then are begun again."""
        backup = self.usable_backup()
        if backup is None:
            return
        name, topics = self.settings.offsets, backup["topics"]
        if name not in topics or any(self.was_first_written_after(backup["serial"], one) for one in self.data_topics()):
            return
        self.bring_back("log restored", {name: topics[name]}, backup)
        self.forgotten.append((backup["serial"] + 1, self.server.serial))
        self.take_up_log(backup)
        at_us = int((runtime.EPOCH + backup["at"]) * 1e6)
        self.undo_commands(at_us)
        self.log_as_of_us = min(at_us, self.log_as_of_us or at_us)

    def resets_by_log(self):
        """The resets; one behind a restored log may find its generation sent by a reset that the log has forgotten."""
        if self.log_as_of_us is None:
            return self.resets
        return [(begun, ended and min(ended, self.log_as_of_us), takes) for begun, ended, takes in self.resets]

    def was_first_written_after(self, serial, topic):
        """Whether a topic has our mark, and the offsets topic of that moment may know nothing of it."""
        offsets = self.settings.offsets
        since = self.log_since.get(offsets, -1)
        names = {life.process.name for life in self.lives if life.settings.offsets == offsets}

        def is_known(message):
            forgotten = any(first <= message.serial <= last for first, last in self.forgotten)
            return since < message.serial <= serial and message.writer.partition("/")[0] in names and not forgotten

        messages = [one for part in topic.partitions for one in part.expired + part.messages]
        return MARK in topic.groups and not any(map(is_known, messages))

    def act_restore_topics(self):
        """With data topics of before: what was sent since then is not there, although positions may say so."""
        backup = self.usable_backup()
        if backup is None:
            return
        names = {one.name for one in self.data_topics()} & set(backup["topics"])
        copies = {name: backup["topics"][name] for name in sorted(names)}
        left = {id(one) for topic in copies.values() for part in topic.partitions for one in part.messages}
        gone = [
            message
            for topic in self.data_topics()
            if topic.name in copies
            for part in topic.partitions
            for message in part.messages
            if id(message) not in left
        ]
        if not gone:
            return
        self.bring_back("topics restored", copies, backup)
        self.hand_changes += 1
        self.forget_records(gone)
        self.causes["purge"] = None

    def act_purge_running(self):
        self.operator.purge()

    def act_delete_running(self):
        self.operator.delete()

    def act_partitions(self):
        self.operator.change_partitions()

    def act_purge_log(self):
        self.operator.purge_log()

    def act_delete_log(self):
        self.operator.delete_log()

    def act_partitions_of_log(self):
        self.operator.add_partition_to(self.settings.offsets, "log partitions by hand")

    def act_purge_letters(self):
        self.operator.purge_letters()

    def act_delete_letters(self):
        self.operator.delete_letters()

    def act_partitions_of_letters(self):
        self.operator.add_partition_to("letters", "letters partitions by hand")

    def act_foreign(self):
        """Somebody else writes to our topic."""
        if self.data_topics():
            self.event("foreign messages")
        for found in self.data_topics():
            partition = self.rng.randrange(len(found.partitions))
            new = [(self.rng.getrandbits(128), b"theirs", {}, 0) for _ in range(self.rng.choice((1, 3, 20)))]
            self.server.store("lake", found.name, partition, new)

    def act_archive(self):
        """An object goes to an archive, and is restored after a while."""
        key, seconds = self.a_key(), self.rng.uniform(0.2, 6.0)
        if self.settings.archived == "skip" and key in self.bucket.objects:
            # whoever has listed it before skips it as a failed object: the reference says so of `archived`
            self.skipped_in_archive.add(self.bucket.objects[key].tag)
        self.lied_about.add(key)
        self.bucket.archived[key] = self.now + seconds
        self.event("archived", key, seconds)

    def act_expire(self):
        """Retention deletes the oldest messages of a partition, whether the source runs or not."""
        found = [(topic, number) for topic in self.data_topics() for number in range(len(topic.partitions))]
        if not found or self.causes:
            return
        topic, number = self.rng.choice(found)
        gone = self.server.expire(topic, number, self.rng.randint(1, 8))
        if not gone:
            return
        self.event("expired", f"{topic.name}/{number}", f"{gone[0].offset} to {gone[-1].offset}")
        if not self.is_accounted_for(gone, topic):
            self.causes["expired"] = gone
        for left in self.left_logs.values():
            left["hand_changes"] = -1  # it may not know what of these was the source's

    def is_accounted_for(self, messages, topic):
        """Whether positions surely count these as saved: a source that ran all the time since has saved long ago."""
        life = self.main
        if life is None or life.ended is not None or life.disturbed or self.server.slow:
            return False
        if topic.required_to_save > 1 and self.may_kill_server():
            return False  # it takes the last messages that were counted: then nobody knows the rest
        began = int((runtime.EPOCH + life.began) * 1e6)
        saved = self.now_us() - int((2 * life.settings.commit_interval + 2.0) * 1e6)
        accounted = all(one.payload != b"theirs" and began < one.timestamp_us < saved for one in messages)
        if accounted and topic.required_to_save > 1:
            self.kills_at_rest = False
        return accounted

    def may_kill_server(self):
        return self.plan.fault_rate or self.may_come("server killed", "server forgot")

    def may_come(self, *kinds):
        """Whether a meeting, or a change of the configuration, is of one of these kinds."""
        planned = {kind for meeting in self.plan.meetings for kind in meeting}
        planned.update(f"changed {name}" for name in self.plan.changes)
        return not planned.isdisjoint(kinds)

    def act_purge(self):
        if self.causes or any(life.ended is None for life in self.lives):
            return
        for found in self.data_topics():
            gone = [message for part in found.partitions for message in part.messages]
            if gone:
                self.event("purged", found.name)
                self.hand_changes += 1
                self.forget_records(gone)
                self.server.purge("lake", found.name)
                self.causes["purge"] = None

    def act_recreate(self):
        """Only while nothing runs: a data topic is deleted, and somebody may make it again."""
        found = [topic for topic in self.data_topics() if any(part.messages for part in topic.partitions)]
        if self.causes or not self.nothing_runs() or not found:
            return
        topic = self.rng.choice(found)
        gone = [message for part in topic.partitions for message in part.messages]
        again = self.rng.random() < 0.6
        self.event("topic deleted", topic.name, "and made again" if again else "")
        names = {life.process.name for life in self.lives if life.settings.offsets == self.settings.offsets}
        since = max(self.by_hand_at, self.log_since.get(self.settings.offsets, -1))
        ours = any(
            one.writer.partition("/")[0] in names and one.serial > since and not self.was_reset(one) for one in gone
        )
        self.server.delete_topic("lake", topic.name)
        self.hand_changes += 1
        if again:
            self.forget_records(gone)
            self.server.make_topic("lake", topic.name, len(topic.partitions), required=topic.required_to_save)
        self.causes["recreated"] = None if again else topic  # the log may know it, by its number
        if ours:
            self.must_refuse = f"topic {topic.name} was deleted"

    def was_reset(self, message):
        """Whether the log may know nothing of a message, since its object was reset later."""
        return any(
            (ended is None or message.timestamp_us <= ended) and takes(key)
            for _, ended, takes in self.resets
            for key, _, _ in tell(message.payload)
        )

    def act_lose_log(self):
        """Only while nothing runs: the log is deleted, or somebody renames it in the configuration."""
        if (
            self.causes
            or any(life.ended is None for life in self.lives)
            or self.server.find("lake", self.settings.offsets) is None
            or self.may_be_marked_later()
        ):
            return
        self.lose_log()

    def lose_log(self):
        self.event("log lost")
        gone = self.server.streams["lake"].pop(self.settings.offsets)
        if self.is_marked():
            self.causes["log"] = gone
            self.log_lost_at = self.server.serial
            self.must_refuse = "the log was lost"
        else:
            self.allow_again()  # nothing says that the source was here before
            self.log_since[self.settings.offsets] = self.server.serial

    # ---- from the beginning to the end

    def run(self):
        """Raises `ViolationError`."""
        runtime.enter_world(self)
        try:
            self.begin()
            self.run_until(lambda: self.now >= self.plan.seconds)
            self.settle()
        except StuckError as stuck:
            raise ViolationError("STUCK", str(stuck)) from None
        finally:
            self.close()

    def close(self):
        """Ends whatever still runs, and lets go of it: a thread that does not end as told would keep the whole history."""
        processes = [one for life in self.lives for one in (life.process, *life.process.extra.get("children", ()))]
        for process in processes:
            process.die()
        runtime.enter_world(None)
        for process in processes:
            process.forget()
        self.forget()

    def forget(self):
        super().forget()
        self.server.forget()
        for bucket in self.buckets:
            bucket.forget()
        for other in (self.key_list, self.neighbour, self.operator):
            if other is not None:
                other.forget()
        self.lives.clear()
        self.main = self.helper = self.happened = None

    def begin(self):
        for _ in range(self.rng.randint(0, 4) + self.plan.tuning.get("first_objects", 0)):
            self.put(
                self.a_key(),
                age=self.rng.choice((0.0, 0.0, 30.0, 2 * self.settings.window + 60))
                if self.plan.tuning.get("old_first")
                else 0.0,
            )
        if self.plan.acts:
            self.at(self.rng.expovariate(1.0 / self.plan.act_seconds), self.act)
        if self.may_come("server restored", "log restored", "topics restored"):
            self.at(self.rng.uniform(0.1, 0.5 * self.plan.seconds), self.act_back_up)
        for kinds in self.plan.meetings:
            self.at(self.rng.uniform(0.2, self.plan.seconds - 1.0), Meeting(self, kinds).go_on)
        self.at(10.0, self.watch_silent)
        self.plan_restart(0.0)
        if self.key_list is not None:
            self.key_list.rewrite()
        if self.neighbour is not None:
            self.neighbour.plan_restart()

    def watch_silent(self):
        self.server.evict_silent()
        self.at(10.0, self.watch_silent)

    def run_until(self, condition):
        self.at(0.0, lambda: None)
        super().run(condition)
        if self.wrong is not None:
            raise self.wrong

    def settle(self):
        """Nothing happens any more: what runs may read all there is; a last start of it finds nothing left to do."""
        self.calm = True
        self.say("calm")
        min_age = max(life.settings.min_age for life in self.lives)
        for bucket in self.buckets:
            bucket.lies.clear()
            bucket.archived.clear()
            bucket.lie_rate = {}
            bucket.break_rate = 0.0
            if min_age:
                bucket.told_ahead_ms = 0  # by a clock that stays behind, nothing would ever be old enough
        for host in self.hosts if min_age and self.key_list is not None else ():
            host.clock_ahead = 0.0  # objects of a list have an age by the machine's own clock
        self.server.slow = 0.0
        self.store_slow = 0.0
        self.plan.tuning["slow_pipe"] = 0.0
        if self.key_list is not None:
            self.key_list.come_to_rest()
        if not self.causes and self.finds_by_itself():
            self.run_on()
        if self.neighbour is not None:
            self.run_life_on(self.neighbour.main, self.facts_of_neighbour)
        if min_age:
            self.pass_time(min_age + 2.0)
        if self.settings.mode == "incremental":
            self.pass_time(self.settings.full_listing_interval + 1.0)
        self.stop_all()
        limit = self.now + MOST_CALM_SECONDS
        self.run_until(lambda: all(life.ended is not None for life in self.lives) or self.now > limit)
        if any(life.ended is None for life in self.lives):
            raise ViolationError(
                "STUCK", f"does not stop: {[life.process for life in self.lives if life.ended is None]}"
            )
        for when in ("after a run over everything", "after another one"):
            if self.rng.random() < self.plan.tuning.get("last_kill", 0.2) and self.server.up and self.kills_at_rest:
                self.say("server killed, lost", self.server.kill(0.1))  # what was not safe goes once more
                self.pass_time(0.5)
            self.last_run(limit)
            if self.neighbour is not None:
                self.last_run_of_neighbour(limit)
            self.check(when)

    def stop_all(self):
        for life in self.lives:
            if life.ended is None and life.kind == "source":
                if "stop" in life.process.extra and life.process.paused_until <= self.now:
                    self.spawn(life.process, life.process.extra["stop"], "stop")
                else:
                    self.kill(life)

    def finds_by_itself(self):
        """Whether a source that runs must find everything: of a list only what it names after the last change."""
        return self.settings.mode != "keys" or self.key_list.fresh

    def run_on(self):
        """What runs on must find everything without a restart."""
        self.run_life_on(self.main, self.facts)

    def run_life_on(self, life, facts):
        if life is None or life.args.get("once"):
            return
        limit = self.now + 240.0  # listings that were held up are followed by a pause of ten times as long
        while life.ended is None:
            self.pass_time(2.0)
            if life.ended is not None:
                return
            try:
                self.ask("while it runs on", facts())
            except ViolationError as wrong:
                if wrong.rule not in {"LOST", "LETTER LOST"} or self.now > limit:
                    raise
            else:
                return

    def last_run(self, limit):
        """A run over everything, again and again until one comes to its end."""
        for _ in range(40):
            self.main = self.live("source", limit, once=True, take_over=False)
            outcome = self.main.outcome
            if outcome.kind == "done":
                return
            if outcome.kind in {"refused", "topic"} and self.causes:
                out = []
                self.take_way_out(lambda out=out: out.append(True))
                self.run_until(lambda out=out: out or self.now > limit)
                if not out:
                    raise ViolationError("STUCK", "the way out does not come to its end")
            self.pass_time(3.0)
        raise ViolationError("STUCK", f"never comes to rest: {outcome.kind} {outcome.text}")

    def last_run_of_neighbour(self, limit):
        for _ in range(40):
            life = self.come_to_end(self.neighbour.start("source", once=True, take_over=False), limit)
            if life.outcome.kind == "done":
                return
            self.pass_time(3.0)
        raise ViolationError("STUCK", f"the neighbour never comes to rest: {life.outcome.kind} {life.outcome.text}")

    def live(self, kind, limit, **args):
        """A life to its end."""
        return self.come_to_end(self.start(kind, **args), limit)

    def come_to_end(self, life, limit):
        self.run_until(lambda: life.ended is not None or self.now > limit)
        if life.ended is None:
            raise ViolationError("STUCK", f"{life.process} does not come to its end")
        return life

    def pass_time(self, seconds):
        until = self.now + seconds
        self.at(seconds, lambda: None)
        self.run_until(lambda: self.now >= until)

    def check(self, when):
        """Asks the checker, about each source."""
        self.ask(when, self.facts())
        if self.neighbour is not None:
            self.ask(f"the neighbour, {when}", self.facts_of_neighbour())

    def ask(self, when, facts):
        try:
            check(facts)
        except ViolationError as wrong:
            raise ViolationError(wrong.rule, f"({when}) {str(wrong).split(': ', 1)[1]}") from None

    def facts(self):
        """What the checker goes by, of the source that the history is about."""
        return Facts(
            **self.facts_for(self.prefixes, self.settings, lambda writer: not is_neighbours(writer)),
            resets=self.resets_by_log(),
            sets=self.sets,
            key_partitions=sorted(self.key_partitions),
            some_divided=len(self.divided) > 1,
            some_filtered=False in self.filtered,
            replays=self.replays,
            bad_is_bad=self.formats == {"jsonl"},
            free=self.free | self.skipped_in_archive,
            extra=self.extra,
            named=self.named(),
            order=self.order(),
        )

    def facts_of_neighbour(self):
        """The same of the second source: whatever was done to the other one is no excuse, what the store did is one."""
        neighbour = self.neighbour
        return Facts(
            **self.facts_for(neighbour.prefixes, neighbour.settings, is_neighbours),
            resets=neighbour.resets,
            sets=(),
            key_partitions=(),
            some_divided=False,
            some_filtered=False,
            replays=(),
            bad_is_bad=True,
            free=self.skipped_in_archive,
            extra={},
            named=None,
            order=None,
        )

    def facts_for(self, prefixes, settings, is_writer):
        """What both have: a message is of the source whose process stored it."""
        current = {
            key: version
            for key, version in self.bucket.objects.items()
            if any(key.startswith(prefix) for prefix in prefixes)
        }

        def of_source(messages):
            if self.neighbour is None:
                return messages
            return [message for message in messages if is_writer(message.writer)]

        partitions = [
            (topic.name, number, of_source(part.expired + part.messages))
            for topic in self.data_topics()
            for number, part in enumerate(topic.partitions)
        ]
        became = sorted(
            (
                (int((runtime.EPOCH + at) * 1e6), key, version)
                for bucket in self.buckets
                for at, key, version in bucket.became
            ),
            key=lambda one: one[0],
        )
        letters = None
        if settings.letters:
            letters = dict(self.operator.letters_gone)
            found = self.server.find("lake", "letters")
            for message in of_source(found.partitions[0].messages) if found is not None else ():
                for place in tell(message.payload):
                    letters[place] = letters.get(place, 0) + 1
        if settings.mode == "keys":
            current = self.key_list.demanded(current, gather(partitions), recheck=settings.recheck)
        listed_us = None
        if self.bucket.first_listed is not None:
            listed_us = int((runtime.EPOCH + self.bucket.first_listed) * 1e6)
        return {
            "partitions": partitions,
            "became": became,
            "current": current,
            "first_listed": dict.fromkeys(current, listed_us),
            "split_sizes": sorted(self.splits),
            "width": WIDTH,
            "window_us": int(min(life.settings.window for life in self.lives_of(settings.name)) * 1e6),
            "now_us": self.now_us(),
            "letters": letters,
            "one_letter": self.plan.one_letter,
        }

    def named(self):
        """Keys that may be there; None when a start has listed everything."""
        if self.key_list is None or any(life.settings.mode != "keys" for life in self.lives if life.kind == "source"):
            return None
        return self.key_list.named

    def order(self):
        """By which start offsets objects must follow each other; None when nothing says so."""
        bucket = self.bucket
        unsteady = (
            bucket.break_rate
            or bucket.lie_rate
            or self.resets
            or self.sets
            or self.replays
            or len(self.buckets) > 1
            or "min_age" in self.properties
        )
        if self.ordered_since is None or unsteady:
            return None
        return Order(
            since_us=int((runtime.EPOCH + self.ordered_since) * 1e6),
            listings=[
                tuple(int((runtime.EPOCH + at) * 1e6) for at in one)
                for one in bucket.listings(3.5 if self.plan.store_slow else 0.2)
            ],
            exempt=self.lied_about,
        )
