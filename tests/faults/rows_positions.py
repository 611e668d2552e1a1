"""The row in which positions are set by hand, between kills of the source, by a command that is killed as well."""

import contextlib
import json
import time

from tests.faults.chain import LOOK_SECONDS, len_of
from tests.faults.reader import Tap
from tests.faults.rows_kill import VERIFY_EVERY, finish, rounds_of

SECONDS_OF_A_COMMAND = 0.5
"""At first; then as long as the last one that ended by itself took."""

BY_THE_LOG = 0.7
"""The share of commands that are killed at what they write, in place of a moment of the clock."""


def set_positions(chain, rounds):
    """The source is killed, and positions of what it was reading are set: forwards never, backwards or to where they are."""
    with contextlib.closing(Setter(chain)) as setter:
        kill_and_set(chain, rounds, setter)
    finish(chain)


def kill_and_set(chain, rounds, setter):
    """The rounds."""
    dice = chain.dice
    for number in rounds_of(chain, rounds):
        chain.look()
        if chain.open_records() < 2000:
            chain.put(dice.randrange(3, 8))
        before, left = len_of(chain._seen), chain.open_records()
        chain.options()
        held = chain.count_now()
        chain.start(*dice.choice((["--once"], [])))
        chain.wait_for_count(held + dice.randrange(left))
        alive = chain.alive()
        chain.kill()
        chain.strike("source", before, effective=alive)
        setter.set_some()
        if number % VERIFY_EVERY == 0:
            chain.drain()
            chain.verify()


class Setter:
    """Sets positions of a source that does not run, and knows which of its commands took effect."""

    def __init__(self, chain):
        self.chain = chain
        self.seconds = SECONDS_OF_A_COMMAND
        self.messages = 1  # that a command writes, as far as is known
        self.log = Tap(chain.server.url, chain.program.stream, "orders-offsets")

    def close(self):
        """Close its connection."""
        self.log.close()

    def set_some(self):
        """Set one position or two, if there are any."""
        dice = self.chain.dice
        for _ in range(dice.choice((1, 1, 2))):
            rows = self.positions()
            if rows:
                self.set_one(dice.choice(sorted(rows.values(), key=lambda row: row["key"])))

    def positions(self):
        """Key -> its position, as the program shows it."""
        ended = self.chain.program.run("offsets", "export")
        if ended.code != 0:
            raise RuntimeError(ended.said)
        return {row["key"]: row for row in map(json.loads, ended.out.splitlines())}

    def wait_amid(self, command):
        """Until a command is about half way, by the clock, or has written some of its messages, or has ended."""
        dice = self.chain.dice
        limit, wanted = time.monotonic() + dice.uniform(0.2, 1.2) * self.seconds, None
        if dice.random() < BY_THE_LOG:
            limit, wanted = time.monotonic() + self.chain.patience, self.log.count() + dice.randint(1, self.messages)
        while command.process.poll() is None and time.monotonic() < limit:
            if wanted is not None and self.log.count() >= wanted:
                return
            time.sleep(LOOK_SECONDS)

    def set_one(self, row):
        """Set the position of an object, or try it with a command that is killed; then note what came of it."""
        chain, dice = self.chain, self.chain.dice
        safe = min(row["records"], row["saved"])
        records = dice.choice((0, safe, dice.randint(0, safe), dice.randint(0, safe)))
        what = ["--records", str(records)]
        if row["state"] == "done" and dice.random() < 0.25:
            records, what = row["total"], ["--done"]
        command = chain.program.start("offsets", "set", "--key", row["key"], *what, "--yes")
        killed = dice.random() < 0.5
        if killed:
            self.wait_amid(command)
            command.kill()
        else:
            held = self.log.count()
            ended = chain._wait_for_end(command)
            if ended.code != 0:
                raise RuntimeError(ended.said)
            self.seconds, self.messages = ended.seconds, max(1, self.log.count() - held)
        done = self.positions()[row["key"]]["generation"] != row["generation"]
        chain.note(set=row["key"], records=records, killed=killed, done=done)
        if not killed and not done:
            chain.tally.wrong += 1
            chain.keep_evidence(f"a command that said it had set {row['key']!r} has not")
        if done:
            chain.set_position(row["key"], records)
