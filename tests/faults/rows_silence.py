"""Rows in which a server forgets twice in a row, and in which the source's host falls silent."""

import contextlib
import os
import signal
import time

from tests.faults.chain import len_of
from tests.faults.rows_kill import VERIFY_EVERY, finish, kill_servers, rounds_of
from tests.integration.program_rig import children

LEASE_SECONDS = 61
"""After so much silence a real server drops the member of a group."""

PAUSE_SECONDS = 1.0


def kill_server_twice(chain, rounds):
    """The server is killed, and once more before or while the source has recovered from that."""
    kill_servers(chain, rounds, kill_twice, "server, twice")


def kill_twice(chain):
    for pause in (chain.dice.uniform(0.3, 2.5), 0):
        chain.server.kill()
        chain.server.start()
        time.sleep(pause)


def to_all(processes, number):
    """Sends a signal to every process of a host."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def silent_host(chain, rounds):
    """The source stands still in the middle of its work, as a host without power; another instance takes its place.

    The server lists the connections of the silent one for as long as its lease lasts, and whoever starts refuses until then.
    """
    dice = chain.dice
    for number in rounds_of(chain, rounds):
        chain.look()
        chain.put(dice.randrange(5, 10))
        before, left = len_of(chain._seen), chain.open_records()
        chain.options()
        silent = chain.start()
        chain.wait_for_count(before + dice.randrange(left))
        alive = chain.alive()
        processes = [silent.pid, *(children(silent.pid) if alive else [])]
        to_all(processes, signal.SIGSTOP)
        chain.running = None
        stood_still = time.monotonic()
        chain.strike("silence", before, effective=alive)
        while True:
            chain.running = chain.program.start("--once", fresh=True)
            ended = chain._wait_for_end(chain.running)
            chain.running = None
            if ended.code == 0 or time.monotonic() - stood_still > LEASE_SECONDS + 30:
                break
            time.sleep(PAUSE_SECONDS)
        if ended.code != 0:
            chain.tally.wrong += 1
            chain.keep_evidence(f"blocked for more than {LEASE_SECONDS} seconds: {ended.said}")
        to_all(processes, signal.SIGCONT)
        time.sleep(PAUSE_SECONDS)  # it finds its connections gone, and goes on when nobody is at work any more
        silent.send(signal.SIGTERM)
        chain._wait_for_end(silent)
        if number % VERIFY_EVERY == 0:
            chain.verify()
    finish(chain)
