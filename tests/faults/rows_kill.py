"""Rows in which something is killed with signal 9: the source, its workers, Spark's executors, the server. And a full disk."""

import os
import resource
import signal
import time

from framework.testing.faults import Fault, FaultProxy
from tests.faults.chain import SPARK_SECONDS, len_of
from tests.faults.stores import PROXIES
from tests.integration.program_rig import children

BY_THE_CLOCK = 0.25
SECONDS_OF_A_START = 1.5
VERIFY_EVERY = 5
STANDSTILL_SECONDS = 0.7
TRIES = 2
"""Faults that come too late are tried again, so many times as often as rounds are wanted at most."""


def rounds_of(chain, rounds):
    """The chain's next round, until enough faults have struck."""
    wanted = chain.tally.rounds + rounds
    for number in range(1, TRIES * rounds + 2):
        if chain.tally.rounds >= wanted:
            return
        chain.round = number
        yield number


def kill_local(chain, rounds):
    """The source is killed at a random moment: while it starts, recovers, lists, sends, or saves."""
    dice = chain.dice
    for number in rounds_of(chain, rounds):
        chain.look()
        if chain.open_records() < 2000:
            chain.put(dice.randrange(3, 8))
        before, left = len_of(chain._seen), chain.open_records()
        chain.options()
        chain.start(*dice.choice((["--once"], ["--once"], [])))
        if dice.random() < BY_THE_CLOCK:
            limit = time.monotonic() + dice.uniform(0.05, SECONDS_OF_A_START)
            chain.wait(lambda limit=limit: not chain.alive() or time.monotonic() > limit, "the clock stood still")
        else:
            chain.wait_for_count(before + dice.randrange(left))
        alive = chain.alive()
        workers = children(chain.running.pid) if alive else []
        if workers and dice.random() < 0.3:
            os.kill(dice.choice(workers), signal.SIGKILL)
            chain.strike("worker", before, effective=alive)
            chain.wait(lambda: not chain.alive() or (chain.look() and not chain.open_records()), "it did not go on")
            chain.stop()
        else:
            chain.kill()
            chain.strike("source", before, effective=alive)
        if number % VERIFY_EVERY == 0:
            chain.drain()
            chain.verify()
    finish(chain)


def kill_with_standby(chain, rounds):
    """The source is killed in the middle of its work, again and again; each time the standby beside it goes on."""
    dice = chain.dice
    chain.patience = STANDBY_SECONDS
    chain.options()
    chain.put(1)
    chain.start()
    chain.wait_until_done()  # it has claimed the source: a standby before that would be the first
    for number in rounds_of(chain, rounds):
        chain.options()
        standby = chain.program.start("--standby", fresh=chain.rig.fresh)
        standby.wait_for("standby, waiting for")
        chain.look()
        before = len_of(chain._seen)
        chain.put(dice.randrange(4, 9))
        left = chain.open_records()
        chain.wait_for_count(before + dice.randrange(left))
        alive = chain.alive()
        chain.kill()
        chain.strike("source", before, effective=alive)
        chain.running = standby
        standby.wait_for("taking over")  # all may be there already, and the next standby must not be before it
        chain.wait(lambda: not chain.alive() or (chain.look() and not chain.open_records()), "it did not go on")
        chain.wait_until_done()
        if number % VERIFY_EVERY == 0:
            chain.verify()
    chain.stop()
    finish(chain)


STANDBY_SECONDS = 150
"""Of a round: a standby takes over after seconds, and then reads what is left."""


TASKS = 2
"""Of the cluster."""


def kill_spark(chain, rounds):
    """Executors, Python workers and drivers are killed, one after the other, and the job goes on."""
    from tests.support.spark_cluster import spark_sections

    dice = chain.dice
    cluster = chain.rig.cluster()
    chain.patience = SPARK_SECONDS
    chain.program.configure(**spark_sections(cluster))
    if chain.partitions < TASKS:  # a partition belongs to one task
        chain.partitions = TASKS + 1
        chain.program.configure(iggy={"partitions": chain.partitions})
    with FaultProxy(chain.bucket.endpoint) as slow:
        slow.add(Fault(method="GET", path=PROXIES[chain.section].reading, times=None, delay_seconds=0.2))
        chain.program.configure(**{chain.section: {"endpoint": slow.endpoint}}, input={"prefetch_objects": 1})
        chain.start()
        for number in rounds_of(chain, rounds):
            chain.look()
            before = len_of(chain._seen)
            chain.put(10)
            left = chain.open_records()
            chain.keep_alive()
            chain.wait_for_count(before + 1 + dice.randrange(left * 3 // 4))
            what = dice.choice(("python", "python", "executor", "executor", "driver"))
            if what == "driver":
                hit = chain.alive()
                chain.kill()
            else:
                at_work = cluster.at_work("", chain.server.port)
                victims = sorted(set(at_work.values()) if what == "executor" else at_work)
                hit = bool(victims and cluster.kill([dice.choice(victims)]))
            chain.strike(what, before, effective=hit)
            chain.wait_until_done()
            if number % VERIFY_EVERY == 0:
                chain.verify()
        chain.stop()
        finish(chain)


def kill_server(chain, rounds):
    """The server is killed while it stores, and started again; the source runs on."""
    kill_servers(chain, rounds, kill_once)


def kill_servers(chain, rounds, kill, label="server"):
    """The same for any way to kill it: `kill` leaves it started."""
    dice = chain.dice
    chain.options()
    chain.start()
    for number in rounds_of(chain, rounds):
        chain.look()
        before = len_of(chain._seen)
        chain.put(dice.randrange(5, 10))
        left = chain.open_records()
        chain.keep_alive()
        chain.wait_for_count(before + dice.randrange(left))
        alive, held = chain.alive(), chain.count_now()
        kill(chain)
        chain.forget()
        chain.tally.vanished += max(0, held - chain.count_now())
        chain.strike(label, before, effective=alive, came=held - before)
        chain.wait_until_done()
        if number % VERIFY_EVERY == 0:
            chain.verify()
    chain.stop()
    finish(chain)


def kill_once(chain):
    chain.server.kill()
    time.sleep(chain.dice.choice((0, 0, 0.2)))
    chain.server.start()


def disk_full(chain, rounds):
    """The server has no room for what it is sent; later it has. The limit is that of the process for any file."""
    dice = chain.dice
    chain.options()
    chain.start()
    for number in rounds_of(chain, rounds):
        chain.look()
        before = len_of(chain._seen)
        pid = chain.server.pid
        largest = max(path.stat().st_size for path in chain.server.folder.rglob("*") if path.is_file())
        room = largest + dice.randrange(60_000)
        usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, usual[1]))
        chain.put(dice.randrange(4, 8))
        chain.keep_alive()
        full = chain.wait_for_standstill(STANDSTILL_SECONDS)
        chain.strike("disk full", before, effective=full)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)
        chain.wait_until_done()
        if number % VERIFY_EVERY == 0:
            chain.verify()
    chain.stop()
    finish(chain)


def finish(chain):
    """Everything that there is, the whole topic compared, and a last run that must send nothing."""
    chain.drain()
    held = chain.count()
    chain.program.configure(runner={"engine": "local", "tasks_max": 1})
    chain.running = chain.program.start("--once")
    ended = chain._wait_for_end(chain.running)
    chain.running = None
    if ended.code != 0 or chain.count() != held:
        chain.tally.wrong += 1
        chain.keep_evidence(f"a run with nothing to do ended with {ended.code}: {ended.said}")
    chain.verify(last=True)
