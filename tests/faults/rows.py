"""The rows of the table: what breaks, how often in the long form and in the short one, and what runs it."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.faults.chain import BrokenServerError, Chain, HungError, Tally
from tests.faults.rows_kill import disk_full, kill_local, kill_server, kill_spark, kill_with_standby
from tests.faults.rows_pairs import pairs
from tests.faults.rows_positions import set_positions
from tests.faults.rows_proxy import both, iggy_proxy, store_proxy
from tests.faults.rows_silence import kill_server_twice, silent_host
from tests.faults.rows_simulator import run_histories
from tests.faults.rows_worker import kill_amid_verbs, kill_worker
from tests.integration.program_rig import ServerEndedError

ROOT = Path(__file__).resolve().parents[2]
REAL = "IGGY_SERVER_BINARY"
MOST_CHAINS = 200
TEST_SECONDS = 1800
GCS_PREFIX = "gcs-"
"""Of the names of rows that have the same name on S3."""


@attrs.frozen(kw_only=True)
class Row:
    """A row of the table.

    Attributes:
        name: for the command line.
        title: for people.
        store: `s3` or `gcs`; empty when it needs none.
        rounds: of the long form.
        chain: runs so many rounds on a chain; None for a row of tests.
        length: rounds of one chain.
        kinds: the servers it runs on, one chain after the other.
        options: of every chain.
        tests: node ids for pytest, in place of chains; each test is a round.
        sweep: arguments of `framework.testing.sweep`, in place of chains; each crash or pair of them is a round.
        histories: of the simulator, in place of chains; each of them is a round.
        environment: of the tests.
    """

    name: str
    title: str
    store: str = "s3"
    rounds: int = 0
    chain: Callable | None = None
    length: int = 20
    kinds: tuple = ("embedded", "real")
    options: dict = attrs.field(factory=dict)
    tests: tuple = ()
    sweep: tuple = ()
    histories: int = 0
    environment: dict = attrs.field(factory=dict)

    def is_of(self, store):
        """Whether it belongs to that store; to None belong all."""
        return store in (None, self.store)


S3_ROWS = (
    Row(name="kill-local", title="`kill -9` of the source, engine local", rounds=200, chain=kill_local),
    Row(
        name="kill-seaweedfs",
        title="the same on a real store (SeaweedFS)",
        rounds=20,
        chain=kill_local,
        options={"store": "seaweedfs"},
    ),
    Row(
        name="standby",
        title="`kill -9` of the source beside a standby, which goes on",
        rounds=30,
        chain=kill_with_standby,
        length=10,
    ),
    Row(
        name="worker",
        title="`kill -9` of a worker or of its source, while its configuration changes",
        rounds=30,
        chain=kill_worker,
        length=10,
    ),
    Row(
        name="worker-verbs",
        title="the same, while it pauses, stops, restarts, or takes another version of its configuration",
        rounds=30,
        chain=kill_amid_verbs,
        length=10,
    ),
    Row(
        name="kill-spark",
        title="`kill -9` of executors, Python workers, driver, engine Spark",
        rounds=30,
        chain=kill_spark,
        length=10,
    ),
    Row(
        name="kill-embedded",
        title="`kill -9` of the embedded server under load",
        rounds=50,
        chain=kill_server,
        length=10,
        kinds=("embedded",),
        options={"own_server": True},
    ),
    Row(
        name="kill-real",
        title="`kill -9` of a real server under load, topics of our making",
        rounds=30,
        chain=kill_server,
        length=10,
        kinds=("real",),
        options={"own_server": True},
    ),
    Row(
        name="kill-real-defaults",
        title="the same, topic made with server defaults",
        rounds=30,
        chain=kill_server,
        length=10,
        kinds=("real",),
        options={"own_server": True, "defaults": True},
    ),
    Row(
        name="kill-tasks-defaults",
        title="`kill -9` of a real server, three tasks, topic made with server defaults",
        rounds=200,
        chain=kill_server,
        length=20,
        kinds=("real",),
        options={"own_server": True, "defaults": True, "tasks": 3},
    ),
    Row(
        name="kill-twice-defaults",
        title="two kills of a real server in a row, topic made with server defaults",
        rounds=50,
        chain=kill_server_twice,
        length=10,
        kinds=("real",),
        options={"own_server": True, "defaults": True},
    ),
    Row(
        name="silent-host",
        title="the source's host falls silent, another instance takes its place, and it wakes",
        rounds=5,
        chain=silent_host,
        length=5,
        kinds=("real",),
    ),
    Row(
        name="kill-source-defaults",
        title="`kill -9` of the source, three tasks, a real server's default topic",
        rounds=200,
        chain=kill_local,
        kinds=("real",),
        options={"defaults": True, "tasks": 3},
    ),
    Row(
        name="kill-spark-defaults",
        title="`kill -9` of the source on Spark `local[2]`, a real server's default topic",
        rounds=20,
        chain=kill_local,
        length=10,
        kinds=("real",),
        options={"defaults": True, "tasks": 2, "engine": "spark"},
    ),
    Row(
        name="transforms",
        title="`kill -9` of the source, transforms that filter and change records",
        rounds=50,
        chain=kill_local,
        options={"transforms": True},
    ),
    Row(
        name="transforms-kill-real-defaults",
        title="`kill -9` of a real server with these transforms, topic made with server defaults",
        rounds=30,
        chain=kill_server,
        length=10,
        kinds=("real",),
        options={"own_server": True, "defaults": True, "transforms": True},
    ),
    Row(
        name="keyed",
        title="`kill -9` of the source, records in the partitions of their keys",
        rounds=50,
        chain=kill_local,
        options={"by_key": True},
    ),
    Row(
        name="keyed-tasks-defaults",
        title="the same with three tasks, a real server's default topic",
        rounds=50,
        chain=kill_local,
        kinds=("real",),
        options={"defaults": True, "tasks": 3, "by_key": True},
    ),
    Row(
        name="keyed-kill-real-defaults",
        title="`kill -9` of a real server with these keys and transforms, topic made with server defaults",
        rounds=30,
        chain=kill_server,
        length=10,
        kinds=("real",),
        options={"own_server": True, "defaults": True, "transforms": True, "by_key": True},
    ),
    Row(
        name="keyed-spark",
        title="`kill -9` of the source on Spark `local[2]`, records in the partitions of their keys",
        rounds=20,
        chain=kill_local,
        length=10,
        options={"tasks": 2, "engine": "spark", "by_key": True},
    ),
    Row(
        name="kill-quic",
        title="`kill -9` of the source, over QUIC",
        rounds=30,
        chain=kill_local,
        length=10,
        kinds=("real",),
        options={"transport": "quic"},
    ),
    Row(
        name="kill-websocket",
        title="`kill -9` of the source, over WebSocket",
        rounds=30,
        chain=kill_local,
        length=10,
        kinds=("real",),
        options={"transport": "websocket"},
    ),
    Row(
        name="kill-real-quic",
        title="`kill -9` of a real server under load, over QUIC",
        rounds=20,
        chain=kill_server,
        length=10,
        kinds=("real",),
        options={"own_server": True, "transport": "quic"},
    ),
    Row(
        name="restore",
        title="`kill -9` of the source, an archive of Iggy's S3 sink restored",
        rounds=50,
        chain=kill_local,
        options={"archive": True},
    ),
    Row(
        name="restore-kill-real-defaults",
        title="`kill -9` of a real server while it restores that archive, topic made with server defaults",
        rounds=30,
        chain=kill_server,
        length=10,
        kinds=("real",),
        options={"own_server": True, "defaults": True, "archive": True},
    ),
    Row(
        name="split-avro",
        title="`kill -9` of the source, objects of Avro in splits",
        rounds=50,
        chain=kill_local,
        options={"split": "avro"},
    ),
    Row(
        name="split-parquet",
        title="`kill -9` of the source, objects of Parquet in splits",
        rounds=50,
        chain=kill_local,
        options={"split": "parquet"},
    ),
    Row(
        name="set-positions",
        title="`kill -9` of the source and of the commands that set its positions",
        rounds=50,
        chain=set_positions,
        length=10,
        options={"whole": True},
    ),
    Row(name="iggy-proxy", title="broken connections between source and Iggy", rounds=200, chain=iggy_proxy),
    Row(name="store-proxy", title="broken answers of the store, objects that change", rounds=200, chain=store_proxy),
    Row(name="both", title="both at once, and `kill -9` of the source", rounds=100, chain=both),
    Row(
        name="pairs",
        title="two kinds of faults or three near each other, drawn from all that can meet",
        rounds=100,
        chain=pairs,
        length=10,
        options={"own_server": True, "tasks": 2},
    ),
    Row(
        name="pairs-defaults",
        title="the same on a real server, mostly with one task, topic made with server defaults",
        rounds=50,
        chain=pairs,
        length=10,
        kinds=("real",),
        options={"own_server": True, "defaults": True},
    ),
    Row(
        name="disk-full",
        title="disk full under the embedded server, and room again",
        rounds=10,
        chain=disk_full,
        length=10,
        kinds=("embedded",),
        options={"own_server": True},
    ),
    Row(
        name="stop",
        title="SIGTERM in every state",
        tests=("tests/integration/test_program_life.py", "-k", "signal"),
        environment={"PROGRAM_TEST_STORE": "moto"},
    ),
)
HOSTILE_ROWS = (
    Row(
        name="hostile",
        store="",
        title="keys that name topics, forged letters, strangers on every port, wrong certificates",
        tests=(
            "tests/integration/test_program_topics.py",
            "tests/integration/test_embedded_life.py",
            "tests/integration/test_iggy_tls.py",
            "tests/unit/iggy/dead_letters/test_writer.py",
            "tests/unit/iggy/test_topic_validation.py",
            "tests/unit/engine/test_metrics.py",
            "tests/unit/engine/spark/test_stop_channel.py",
        ),
    ),
)
GCS_ROWS = tuple(
    attrs.evolve(
        row,
        name=f"{GCS_PREFIX}{row.name}",
        store="gcs",
        options={**row.options, "store": "fake-gcs-server"},
        environment={**row.environment, "PROGRAM_TEST_STORE": "fake-gcs"},
    )
    for row in S3_ROWS
    if "store" not in row.options
)
STORELESS_ROWS = (
    Row(
        name="sweep",
        store="",
        title="a crash at every event, and at all pairs, in memory",
        sweep=("--scenario", "all", "--pairs", "all"),
    ),
    Row(
        name="simulator",
        store="",
        title="random histories of the real code over a simulated Iggy and a simulated bucket",
        histories=100_000,
    ),
    Row(
        name="offsets-log",
        store="",
        title="the log of positions cut at every byte, foreign messages, two writers",
        tests=(
            "tests/unit/iggy/offset_log/test_loading.py",
            "tests/unit/iggy/offset_log/test_codec.py",
            "tests/unit/iggy/offset_log/test_partition_replay.py",
            "tests/unit/engine/test_positions_admin.py",
        ),
    ),
)
ROWS = (*S3_ROWS, *GCS_ROWS, *STORELESS_ROWS, *HOSTILE_ROWS)
BY_NAME = {row.name: row for row in ROWS}


def named(name, store=None):
    """The full name of a row: that of another store when one is given; None when there is no such row."""
    full = name.removeprefix(GCS_PREFIX)
    found = [one for one in (name, f"{GCS_PREFIX}{full}") if one in BY_NAME and BY_NAME[one].is_of(store)]
    return found[0] if found else None


def servers(row, wanted="both"):
    """The servers that a row can run on here."""
    have = [kind for kind in row.kinds if kind == "embedded" or os.environ.get(REAL)]
    return [kind for kind in have if wanted in ("both", kind)]


def why_not(row, wanted="both"):
    """A sentence that says why a row cannot run here; empty when it can."""
    if row.chain is None:
        return ""
    if not servers(row, wanted):
        if row.kinds == ("real",) and wanted != "embedded":
            return f"{row.name}: not run, set {REAL} to the path of an Iggy server's binary"
        return f"{row.name}: not run, it has nothing to do on the server {wanted}"
    if row.chain is kill_spark:
        from framework.engine.spark.jvm import require_java
        from framework.errors import FatalError

        try:
            require_java()
        except FatalError as error:
            return f"{row.name}: not run, {error}"
    return ""


def run_row(row, rig, *, rounds=None, wanted="both", only=None):
    """Runs a row to its end.

    Args:
        row: which.
        rig: what it runs on.
        rounds: in place of those of the long form.
        wanted: `embedded`, `real`, or `both` in turn.
        only: the number of a single chain.

    Returns:
        (Tally, seconds)
    """
    began, tally = time.monotonic(), Tally()
    if row.sweep:
        run_sweep(row, rig, tally, rounds)
        return tally, time.monotonic() - began
    if row.histories:
        run_histories(row, ROOT, tally, rounds or row.histories, rig.seed)
        return tally, time.monotonic() - began
    if row.chain is None:
        run_tests(row, rig, tally)
        return tally, time.monotonic() - began
    kinds, rounds = servers(row, wanted), rounds or row.rounds
    for number in range(MOST_CHAINS) if only is None else [only]:
        if tally.rounds >= rounds or len(tally.evidence) > 5:
            break
        length = row.length if only is not None else min(row.length, rounds - tally.rounds)
        chain = Chain(rig, tally, row.name, number, kind=kinds[number % len(kinds)], **row.options)
        try:
            row.chain(chain, length)
        except HungError as error:
            tally.hung += 1
            chain.keep_evidence(str(error))
        except (BrokenServerError, ServerEndedError) as error:
            if kinds[number % len(kinds)] != "real":  # then it is ours, and a mistake of ours
                chain.keep_evidence(str(error))
                raise
            tally.broken += 1
            print(
                f"{row.name}: the server did not come back whole: {str(error).strip().splitlines()[-1][:300]}",
                flush=True,
            )
        except Exception:
            chain.keep_evidence("the harness failed")
            raise
        finally:
            chain.close()
        print(f"{row.name}: {tally.rounds} of {rounds} rounds, {tally.missed} missed", flush=True)
    return tally, time.monotonic() - began


def run_sweep(row, rig, tally, pairs=None):
    """Every event, and pairs of them: all, or so many by the seed."""
    chosen = row.sweep if pairs is None else (*row.sweep, "--pairs", str(pairs))
    command = [sys.executable, "-m", "framework.testing.sweep", *chosen, "--seed", str(rig.seed), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    tally.rounds = found["singles"] + found["lost"] + found["pairs"]
    tally.missed = found["missed"]
    tally.kinds = {what: found[what] for what in ("singles", "lost", "pairs")}
    tally.wrong = len(found["broken"])
    for sentence in found["broken"][:5]:
        tally.evidence.append(sentence)
        print(f"FAILED {row.name}: {sentence}", flush=True)


def run_tests(row, rig, tally):
    """A row of tests, in a process of its own; each that passes is a round, each that fails is wrong."""
    result = rig.out / f"{row.name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={result}", *row.tests]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **row.environment},
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    cases = list(ET.parse(result).iter("testcase"))  # our own file
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    passed = sum(case.find("skipped") is None for case in cases) - len(failed)
    tally.rounds, tally.wrong = passed, len(failed)
    if done.returncode or not passed:
        tally.wrong = max(1, tally.wrong)
        path = rig.out / "evidence" / f"{row.name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(done.stdout + done.stderr)
        tally.evidence.append(str(path))
        print(f"FAILED {row.name}: {[case.get('name') for case in failed]}, see {path}", flush=True)
