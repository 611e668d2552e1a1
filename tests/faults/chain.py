"""One growing topic: objects are put, the source reads them, something breaks, it goes on; in the end the checker counts.

A chain is made from a seed: same seed, same objects, options and faults. Moments are the machine's own, so a failure comes
again often, not always; what it leaves behind is kept.
"""

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import attrs

from tests.faults.checker import COUNTED, check, check_generations, identity
from tests.faults.content import BY_KEY, CHUNK, FORMS, TRANSFORMS, Ledger
from tests.faults.reader import Tap
from tests.integration.program_rig import OwnServer, Program
from tests.support.gcs import no_outside_google, running_fake_gcs
from tests.support.s3 import no_outside_aws, running_moto, running_seaweedfs

ROUND_SECONDS = 90.0
"""Longer than any round takes on a slow machine; then it hangs."""

SPARK_SECONDS = 300.0
"""Of a round, where others have 90: a driver that was killed starts JVM, application, executors and their Python again. That
took 12 s to the first record on two quiet cores, and 40 to 80 s with fifteen other processes waiting for them. A listing that
took 3 s for the same reason is made again after 31. It is the load, then: the product waits no longer than it says (once, a
listing's wait for cores counted as its time, and rounds took two minutes on a quiet machine)."""

LOOK_SECONDS = 0.002

REST_SECONDS = 0.02
"""The same while nothing is going to strike: looks take from the source and its server the cores that they work with."""

MEMORY = Path("/dev/shm")
"""Servers keep their data here where there is such a thing. What dies is processes, never the machine, so what was written
to a file is there whatever holds the file; and a disk would spend the time on being asked for certainty."""

SPLIT = 20_011
BLOCK_SPLIT = 1_301
"""For objects of Avro or Parquet alone, which are smaller."""
LETTERS = "dead"
EVIDENCE_LINES = 400_000
CONFIGURATION = 2
"""The exit code for a mistake in the configuration: the harness's own."""


@contextlib.contextmanager
def nothing_outside():
    """Whoever asks a server of the world ends at a port where nobody listens: google-auth asks Google where an account may go."""
    kept, os.environ["HTTPS_PROXY"] = os.environ.get("HTTPS_PROXY"), "http://127.0.0.1:9"
    try:
        yield
    finally:
        del os.environ["HTTPS_PROXY"]
        if kept is not None:
            os.environ["HTTPS_PROXY"] = kept


DAMAGED = "the partition is damaged"
"""What a source says of a server that did not come back whole."""


class BrokenServerError(Exception):
    """A server did not come back whole from a kill: nothing that a source does can mend that."""


class HungError(Exception):
    """Something did not come to its end within the time of a round."""


@attrs.define
class Tally:
    """What a row has come to.

    Attributes:
        rounds: faults that struck while work was open, each of which is a round.
        missed: faults that came too late or too early, and were tried again.
        amid: those of `rounds` that struck when records of the same round were there already, and others were not.
        servers: rounds by kind of server.
        kinds: rounds by kind of fault.
        ended: times the program ended with an error of its own and was started again.
        vanished: confirmed messages that killed servers had forgotten.
        broken: servers that did not come back whole from a kill: they did not start, or gave no message behind some place of a
            partition, which the program told. The chain ends there.
    """

    rounds: int = 0
    missed: int = 0
    amid: int = 0
    servers: dict = attrs.field(factory=dict)
    kinds: dict = attrs.field(factory=dict)
    ended: int = 0
    vanished: int = 0
    broken: int = 0
    records: int = 0
    lost: int = 0
    repeated: int = 0
    mixed: int = 0
    wrong: int = 0
    hung: int = 0
    evidence: list = attrs.field(factory=list)

    @property
    def good(self):
        return not (self.lost or self.repeated or self.mixed or self.wrong or self.hung)

    def struck(self, kind, server, *, effective, amid):
        if not effective:
            self.missed += 1
            return
        self.rounds += 1
        self.amid += amid
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.servers[server] = self.servers.get(server, 0) + 1

    def add(self, verdict):
        for what in COUNTED:
            setattr(self, what, getattr(self, what) + getattr(verdict, what))


class Rig:
    """What chains share: stores and servers, each started when it is first asked for, and where results go.

    Attributes:
        fresh: whether programs load their modules at each start, and may be killed while they do; else they are forks
            (`tests.support.preloaded`).
    """

    def __init__(self, out, *, seed, keep=False):
        self.out = out
        self.keep = keep
        self.seed = seed
        self.fresh = True
        self.work = Path(tempfile.mkdtemp(prefix="faults-", dir=MEMORY if MEMORY.is_dir() else None))
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(no_outside_aws())
        self._stack.enter_context(no_outside_google())
        self._stack.enter_context(nothing_outside())
        self._stores = {}
        self._servers = {}
        self._cluster = None

    def store(self, kind):
        if kind not in self._stores:
            folder = self.new_folder(kind)
            running = {"moto": running_moto, "seaweedfs": running_seaweedfs}.get(kind)
            self._stores[kind] = self._stack.enter_context(running(folder) if running else running_fake_gcs())
        return self._stores[kind]

    def server(self, kind):
        """A server for chains that do not kill it."""
        if kind not in self._servers:
            server = OwnServer(self.new_folder("iggy") / kind, kind)
            self._stack.callback(server.kill)
            self._servers[kind] = server.start()
        return self._servers[kind]

    def cluster(self):
        """A standalone cluster of Spark with two workers."""
        if self._cluster is None:
            from tests.support.spark_cluster import SparkCluster

            cluster = SparkCluster(self.new_folder("spark"))
            self._stack.callback(cluster.stop)
            cluster.start()
            self._cluster = cluster
        return self._cluster

    def new_folder(self, name):
        """Another one each time: what failed to start once may be started again."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))

    def close(self):
        self._stack.close()
        if not self.keep:  # what is kept stands in the working folder
            shutil.rmtree(self.work, ignore_errors=True)


class Chain:
    """Rounds over one topic.

    Args:
        rig: what it runs on.
        tally: what it adds to.
        row: the row's name.
        number: of the chain in its row.
        kind: `embedded` or `real`.
        own_server: whether it may kill the server.
        store: `moto`, `seaweedfs` or `fake-gcs-server`.
        defaults: whether the data topic is made beforehand with the server's defaults, which lose confirmed tails.
        tasks: so many of them in every run; 0: one, or two.
        engine: `local`, or `spark` on this machine.
        transforms: whether records are filtered and changed.
        transport: how the source reaches Iggy.
        by_key: whether a field chooses the partition of each record.
        archive: whether the objects are an archive of a topic, which is restored in the order of the numbers in their keys.
        split: the only form of objects, which are all read in splits; None: by chance, and of any form.
        whole: whether no object is read in splits and no record is bad, so that every position can be set by hand.
        changes: sections of the configuration.
    """

    def __init__(
        self,
        rig,
        tally,
        row,
        number,
        *,
        kind,
        own_server=False,
        store="moto",
        defaults=False,
        tasks=0,
        engine="local",
        transforms=False,
        transport="tcp",
        archive=False,
        split=None,
        by_key=False,
        whole=False,
        **changes,
    ):
        self.rig, self.tally, self.row, self.number, self.kind = rig, tally, row, number, kind
        self.tasks, self.engine = tasks, engine
        self.dice = random.Random(f"{rig.seed}/{row}/{number}")
        self.folder = rig.new_folder(f"{row}-{number}")
        self.round = 0
        self.running = None
        self.patience = SPARK_SECONDS if engine == "spark" else ROUND_SECONDS
        self._stack = contextlib.ExitStack()
        self.bucket = rig.store(store).bucket()
        (self.section,) = self.bucket.section()
        if own_server:
            self.server = OwnServer(self.folder / "iggy", kind)
            self._stack.callback(self.server.kill)
            self.server.start()
        else:
            self.server = rig.server(kind)
        dice = self.dice
        chunks = dice.random() < 0.12 and not archive and not split and not by_key
        self.forms = (split,) if split else ("bin",) if chunks else ("jsonl",) if archive else FORMS
        if by_key:
            self.forms = tuple(form for form in FORMS if form != "txt")  # without fields
        self.headers = dice.random() < 0.75
        split_size = SPLIT if dice.random() < 0.35 and not chunks and not by_key and not whole else None
        split_size = BLOCK_SPLIT if split else split_size
        self.partitions = dice.choice((1, 3, 4, 5) if not tasks else (3, 4, 5))  # a partition belongs to one task
        self.mode = dice.choice(("list", "list", "incremental")) if not archive else "list"
        bad = (
            not chunks and self.headers and not whole and dice.random() < 0.3
        )  # without headers the page promises less
        self.by_key = by_key
        key_partitions = self.partitions if by_key else 0
        self.ledger = Ledger(
            self.bucket, split_size, bad=bad, transforms=transforms, archive=archive, key_partitions=key_partitions
        )
        stream = f"{row}-{number}-{os.getpid()}"
        self.program = Program(
            self.folder,
            self.bucket,
            self.server.url_of(transport),
            stream,
            input={"format": "bytes", "chunk_size": CHUNK} if chunks else {"format": "auto", "split_size": split_size},
            iggy={"partitions": self.partitions, "headers": "provenance" if self.headers else "none"},
            discovery={
                "mode": self.mode,
                "full_listing_interval": 2,
                "allowed_lateness": dice.choice(("1s", "1s", "24h")),  # with the short one, positions are folded
            },
        )
        self._stack.callback(self.program.close)
        self.program.transforms = (TRANSFORMS if transforms else "") + (BY_KEY if by_key else "")
        if archive:
            self.program.configure(
                naming={"template": "in/{{key}}/{{start_offset}}.jsonl"},
                input={"envelope": "iggy-s3-sink"},
                discovery={"order": "start_offset"},
            )
        if bad:
            limits = {"max_bad_records": 1_000_000, "max_bad_records_per_hour": 1_000_000}
            self.program.configure(errors={"tolerance": "skip_record", "dead_letter_topic": LETTERS, **limits})
        self.program.configure(**changes)
        self.options()
        self.tap = Tap(self.server.url, stream)
        self._stack.callback(self.tap.close)
        if defaults:
            self.tap.make_topic(self.partitions)
        self._seen = defaultdict(set)
        self._set = defaultdict(list)
        self._keys = 0
        self._began = time.monotonic()

    def close(self):
        """Ends what runs, and leaves nothing behind."""
        self._stack.close()
        if not self.rig.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what is put

    def key(self, form):
        """A new key; some are long, some hold what is often decoded wrongly. Its number stands in its last part."""
        self._keys += 1
        folder = self.dice.choice(("a", "b", "c/d", "ä +%2F", "x" * 290))
        return f"in/{folder}/{self._keys:05d}.{form}"

    def put(self, objects, most=900):
        """Puts new objects; returns how many records more must come."""
        before = self.open_records()
        for _ in range(objects):
            form = self.dice.choice(self.forms)
            self.ledger.put(self.key(form), form, self.dice.randrange(most // 6, most))
        return self.open_records() - before

    def large(self):
        """The key and the form of an object to come, one that can be broken in its middle."""
        form = self.dice.choice([one for one in self.forms if one != "jsonl.gz"])
        return self.key(form), form

    # ---- the program

    def options(self, **more):
        """Other options for the next start: what may change from run to run."""
        dice = self.dice
        self.batch_length = dice.choice((13, 61, 61, 500))
        self.program.configure(
            runner={"engine": self.engine, "tasks_max": self.tasks or dice.choice((1, 1, min(2, self.partitions)))},
            **({"spark": {"master": "local[2]"}} if self.engine == "spark" else {}),
            iggy={"batch_length": self.batch_length, "linger_time": dice.choice((0, 0.005))},
            offsets={"commit_interval": dice.choice((0.05, 0.05, 1))},
            input={"prefetch_objects": dice.choice((1, 8, 32))},
            **{self.section: {"page_size": dice.choice((7, 50, 1000))}},
        )
        self.program.configure(**more)

    def start(self, *arguments):
        self.running = self.program.start(*arguments, fresh=self.rig.fresh)
        return self.running

    def alive(self):
        return self.running is not None and self.running.process.poll() is None

    def kill(self):
        """Kill -9 of the program, and of nothing else: what it started learns of it by itself."""
        self.running.kill()
        self.running = None

    def keep_alive(self):
        """Starts the program again when it has ended by itself; an error is counted, for it is one."""
        if not self.alive():
            if self.running is not None:
                self._count_end(self.running.wait())
            self.start()

    def _count_end(self, ended):
        if ended.code == CONFIGURATION:
            raise RuntimeError(ended.said)
        if DAMAGED in ended.said:
            raise BrokenServerError(ended.said)
        self.tally.ended += ended.code != 0

    def stop(self):
        """SIGTERM, and its end."""
        if self.alive():
            self.running.send(signal.SIGTERM)
            self._wait_for_end(self.running)
        self.running = None

    def _wait_for_end(self, running):
        try:
            return running.wait(self.patience)
        except subprocess.TimeoutExpired:
            self._hung("it did not end")

    # ---- what has come

    def look(self):
        """Takes in what is new in the topic; whether Iggy answered."""
        try:
            new = self.tap.new()
        except OSError:
            return False
        for one in new:
            known = identity(one.payload)
            if known is not None:
                self._seen[known].add(one.id & (1 << 64) - 1)
        return True

    def set_position(self, key, records):
        """The position of an object was set, while no program ran: the records behind it come once more."""
        self.look()
        self._set[key].append(records)
        self._seen[key, 0] = set(range(1, records + 1))

    def open_records(self):
        """Records that must still come, as far as the last look shows."""
        return sum(max(0, count - len(self._seen[known])) for known, count in self.ledger.waits_for().items())

    def forget(self):
        """The server was killed: what was seen may be gone."""
        self.tap.rewind()
        self._seen.clear()

    def count(self):
        try:
            return self.tap.count()
        except OSError:
            return None

    def wait(self, check, what, pause=LOOK_SECONDS):
        """Waits for `check()`; for ever is an end, too: the round hangs."""
        limit = time.monotonic() + self.patience
        while not (found := check()):
            if time.monotonic() > limit:
                self._hung(what)
            time.sleep(pause)
        return found

    def count_now(self):
        """The same, from a server that is there."""

        def answer():
            found = self.count()
            return None if found is None else (found,)

        return self.wait(answer, "Iggy did not answer")[0]

    def wait_for_count(self, target):
        """Until the topic holds so many messages, or the program has ended; or nothing more comes: objects are deleted."""

        def enough():
            if not self.alive() or (self.count() or 0) >= target:
                return True
            return self.look() and self.open_records() == 0

        self.wait(enough, f"{target} messages never came")

    def wait_for_standstill(self, seconds):
        """Until nothing has come for so long, or the program has ended; False when all has come instead."""
        last, since = -1, time.monotonic()
        limit = since + self.patience
        while self.alive() and time.monotonic() < min(since + seconds, limit):
            held = self.count()
            if held != last:
                last, since = held, time.monotonic()
            time.sleep(LOOK_SECONDS)
        self.look()
        return self.open_records() > 0

    def wait_until_done(self):
        """Until everything that must come has come, from a program that runs on."""

        def done():
            self.keep_alive()
            return self.look() and self.open_records() == 0

        self.wait(done, "not everything came", REST_SECONDS)

    def _hung(self, what):
        if self.alive():
            self.running.send(signal.SIGABRT)  # faulthandler then writes where every thread is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running.process.wait(5)
        raise HungError(f"{what} within {self.patience:.0f} s; {self.open_records()} records are missing")

    # ---- the end of a round, the end of a chain

    def strike(self, kind, before, *, effective=True, under_way=False, came=None):
        """Notes a fault that has just struck.

        Args:
            kind: of fault.
            before: messages of the topic when the round began.
            effective: whether the fault acted at all.
            under_way: that there was work when it struck; otherwise records must still be missing now.
            came: messages of this round, where they cannot be counted any more.
        """
        self.look()
        left = self.open_records()
        came = len_of(self._seen) - before if came is None else came
        effective = effective and (under_way or left > 0)
        amid = effective and came > 0 and left > 0
        self.tally.struck(kind, self.kind, effective=effective, amid=amid)
        self.note(kind=kind, effective=effective, came=came, left=left)
        return effective

    def note(self, **what):
        with (self.rig.out / f"{self.row}.rounds.jsonl").open("a") as log:
            head = {"chain": self.number, "round": self.round, "at": round(time.monotonic() - self._began, 2)}
            log.write(json.dumps(head | what) + "\n")

    def drain(self):
        """Runs to the end of all that there is, without faults; then a run that must find nothing to do."""
        self.stop()
        for _ in range(3):
            self.running = self.program.start("--once")
            ended = self._wait_for_end(self.running)
            self.running = None
            if ended.code == 0 and self.look() and self.open_records() == 0:
                break
            self._count_end(ended)

    def verify(self, *, last=False):
        """The whole topic, from its beginning, against the ledger."""
        stored = self.tap.everything()
        self._seen.clear()
        for one in stored:
            if (known := identity(one.payload)) is not None:
                self._seen[known].add(one.id & (1 << 64) - 1)
        named = {"bucket": self.bucket.name, "timed": self.section == "s3"}
        verdict = check_generations(
            stored, self.ledger.expected(), self._set, headers=self.headers, by_key=self.by_key, **named
        )
        if self.ledger.bad:
            letters = Tap(self.server.url, self.program.stream, LETTERS)
            first = {one.id: one for one in reversed(letters.everything())}  # at least once, with the same id
            verdict += check(list(reversed(first.values())), self.ledger.expected_letters(), **named)
            letters.close()
        if not verdict.good:
            self.keep_evidence("; ".join(verdict.sentences[:3]), verdict)
        if last or not verdict.good:
            self.tally.add(verdict)
        self.note(verified=verdict.records, good=verdict.good)
        return verdict.good

    def keep_evidence(self, why, verdict=None):
        """Keeps what is needed to find the cause, and says how to run this again."""
        folder = self.rig.out / "evidence" / f"{self.row}-{self.number}-round-{self.round}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, ignore_dangling_symlinks=True)
        command = f"python -m tests.faults --rows {self.row} --seed {self.rig.seed} --chain {self.number} --server {self.kind}"
        sentences = "\n".join(verdict.sentences if verdict else ())
        (folder / "README").write_text(f"{why}\n\nAgain: {command}\n\n{sentences}\n")
        (folder / "put.json").write_text(self.ledger.as_json())
        for topic in ("records", "orders-offsets", LETTERS):
            tap = Tap(self.server.url, self.program.stream, topic)
            with contextlib.suppress(OSError), (folder / f"{topic}.jsonl").open("w") as out:
                for one in tap.everything()[:EVIDENCE_LINES]:
                    payload = base64.b64encode(one.payload).decode()
                    told = {"partition": one.partition, "offset": one.offset, "id": f"{one.id:032x}"}
                    out.write(json.dumps(told | {"headers": one.headers, "payload": payload}) + "\n")
            tap.close()
        self.tally.evidence.append(str(folder))
        print(f"FAILED {self.row}, chain {self.number}, round {self.round}: {why}", flush=True)
        print(f"  kept in {folder}\n  again: {command}", flush=True)


def len_of(seen):
    """Messages told apart."""
    return sum(map(len, seen.values()))
