"""The row in which faults of different kinds meet: two or three are drawn for each round, and strike one after the other."""

import contextlib
import os
import resource
import signal
import time

from tests.faults.chain import REST_SECONDS, len_of
from tests.faults.rows_kill import STANDBY_SECONDS, VERIFY_EVERY, finish, kill_once, rounds_of
from tests.faults.rows_proxy import REQUEST_SECONDS, arm_store, store_kinds, through, wire_fault
from tests.faults.rows_silence import to_all
from tests.faults.stores import PROXIES
from tests.integration.program_rig import children
from tests.support.iggy_proxy import IggyProxy

NEAR_SECONDS = 0.5
"""Between two faults at most, besides what they take themselves."""

COMES_SECONDS = 3.0
"""A fault that waits for a request or for a worker waits so long."""


def pairs(chain, rounds):
    """Each round draws two kinds of faults, or three; the next one strikes while the source recovers from the one before."""
    chain.patience = STANDBY_SECONDS
    with contextlib.closing(Faults(chain)) as faults:
        for number in rounds_of(chain, rounds):
            chain.keep_alive()
            chain.look()
            before = len_of(chain._seen)
            chain.put(chain.dice.randrange(5, 10))
            held = chain.count_now()
            chain.wait_for_count(held + chain.dice.randrange(chain.open_records()))
            held = chain.count_now()
            struck = faults.strike_some()
            chain.strike(" + ".join(sorted(struck)), before, effective=len(struck) > 1, came=held - before)
            faults.end()
            chain.wait_until_done()
            faults.stop_others()
            if number % VERIFY_EVERY == 0:
                chain.verify()
        chain.stop()
        finish(chain)


class Faults:
    """Everything that can break on this machine at the same time; each `strike_` tells the kind of what struck, or nothing.

    Positions set by hand are left out, since a source that is set must not run.
    """

    def __init__(self, chain):
        self.chain, self.dice = chain, chain.dice
        self.others, self.stopped, self.usual = [], [], None
        self._stack = contextlib.ExitStack()
        self.wire = self._stack.enter_context(IggyProxy(chain.server.port))
        self.store = self._stack.enter_context(PROXIES[chain.section](chain.bucket.endpoint))
        url = f"iggy://iggy:iggy@127.0.0.1:{self.wire.port}"
        chain.program.configure(
            iggy={"url": url, "request_timeout": REQUEST_SECONDS},
            discovery={"poll_interval": 0.05},
            **through(self.store, chain),
        )
        self.kinds = ["source", "server", "wire", "wire", "store", "store"]
        self.kinds += ["silence", "options", "instance", "standby"]
        self.kinds += ["worker"] * (chain.tasks > 1) + ["disk"] * (chain.kind == "embedded")

    def close(self):
        """End what this started, and the connections."""
        self.end()
        self.stop_others()
        self._stack.close()

    def strike_some(self):
        """Two kinds or three, near each other; those that struck."""
        struck = []
        for kind in self.dice.sample(self.kinds, self.dice.choice((2, 2, 3))):
            struck.append(getattr(self, f"strike_{kind}")())
            time.sleep(self.dice.choice((0, self.dice.uniform(0, NEAR_SECONDS))))
        return [kind for kind in struck if kind]

    def end(self):
        """What lasts is over: whoever stands still goes on, there is room, nothing is armed."""
        to_all(self.stopped, signal.SIGCONT)
        self.stopped = []
        if self.usual is not None:
            with contextlib.suppress(ProcessLookupError):  # it was killed, and the next one has room
                resource.prlimit(*self.usual)
        self.usual = None
        self.wire.disarm()
        self.store.calm()

    def stop_others(self):
        """Other instances end, whatever they were doing."""
        for other in self.others:
            if other.process.poll() is None:
                other.send(signal.SIGTERM)
            self.chain._wait_for_end(other)
        self.others = []

    def strike_source(self):
        """Kill -9 of the program alone."""
        if self.chain.alive():
            self.chain.kill()
            return "source"
        return ""

    def strike_worker(self):
        """Kill -9 of a worker, of a source that is started if there is none."""
        self.chain.keep_alive()
        if self._comes(lambda: self.chain.alive() and children(self.chain.running.pid)):
            with contextlib.suppress(ProcessLookupError, IndexError):  # it has ended meanwhile
                os.kill(children(self.chain.running.pid)[0], signal.SIGKILL)
                return "worker"
        return ""

    def strike_server(self):
        """Kill -9 of the server, and its start."""
        held = self.chain.count_now()
        kill_once(self.chain)
        self.usual = None
        self.chain.forget()
        self.chain.tally.vanished += max(0, held - self.chain.count_now())
        return "server"

    def strike_wire(self):
        """A connection to Iggy breaks, or an answer is late."""
        self.chain.keep_alive()
        fault = wire_fault(self.chain)
        self.wire.arm(fault)
        return f"Iggy: {fault.kind}" if self._comes(self.wire.fired.is_set) else ""

    def strike_store(self):
        """The store answers late, wrongly, in parts or not at all, or an object changes."""
        self.chain.keep_alive()
        self.store.calm()
        kind = self.dice.choice(store_kinds(self.chain, self.store))
        arm_store(self.chain, self.store, kind)
        return f"store: {kind}" if self._comes(lambda: self.store.struck_all) else ""

    def strike_silence(self):
        """The host stands still until the round's faults are over."""
        if not self.chain.alive():
            return ""
        self.stopped = [self.chain.running.pid, *children(self.chain.running.pid)]
        to_all(self.stopped, signal.SIGSTOP)
        return "silence"

    def strike_options(self):
        """SIGTERM, and a start with other options."""
        self.end()
        self.chain.stop()
        self.chain.options()
        self.chain.keep_alive()
        return "options"

    def strike_instance(self):
        """Another instance starts beside the one at work."""
        self.others.append(self.chain.program.start("--once", fresh=self.chain.rig.fresh))
        return "instance"

    def strike_standby(self):
        """A standby starts beside it."""
        self.others.append(self.chain.program.start("--standby", fresh=self.chain.rig.fresh))
        return "standby"

    def strike_disk(self):
        """There is no room under the server until the round's faults are over."""
        pid, folder = self.chain.server.pid, self.chain.server.folder
        largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        room = largest + self.dice.randrange(60_000)
        usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, usual[1]))
        self.usual = pid, resource.RLIMIT_FSIZE, usual
        return "disk"

    def _comes(self, check):
        """Whether something comes to be in time."""
        limit = time.monotonic() + COMES_SECONDS
        while not (came := check()) and time.monotonic() < limit:
            time.sleep(REST_SECONDS)
        return came
