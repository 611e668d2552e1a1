"""Rows of a worker: it or its source is killed, while its configuration changes and its API is asked for something."""

import contextlib
import os
import signal
from pathlib import Path

from framework.testing.servers.ports import free_port
from tests.faults.chain import len_of
from tests.faults.rows_kill import VERIFY_EVERY, finish, rounds_of
from tests.integration.program_rig import Running
from tests.integration.worker_rig import KEY, request

SOURCE = "orders"
"""The source's name, and its file's."""


class FaultyWorker:
    """A worker over a folder with the chain's source, which is an include of the chain's own file.

    Args:
        chain: that it belongs to.
        api: whether it serves its API.
    """

    def __init__(self, chain, *, api=False):
        self.chain = chain
        self.port = free_port() if api else None
        folder, own = chain.folder / "conf.d", chain.folder / "worker.conf"
        folder.mkdir()
        (folder / f"{SOURCE}.toml").write_text(f'include = ["{chain.program.path}"]\n')
        own.write_text(
            f'[http]\naddress = "127.0.0.1:{self.port}"\napi_key = "{KEY}"\n' if api else "[http]\nenabled = false\n"
        )
        self.arguments = ["worker", "--config-dir", str(folder), "--config", str(own)]
        self.arguments += ["--state-dir", str(chain.folder / "state")]

    def start(self):
        """Start it; with an API wait until that answers."""
        chain = self.chain
        chain.running = Running(chain.folder, chain.program.module, self.arguments, fresh=chain.rig.fresh)
        if self.port is not None:
            chain.wait(self.answers, "the worker's API did not answer")

    def answers(self):
        """Whether the API answers."""
        with contextlib.suppress(ConnectionError):
            return request(self.port, "GET", "/health").status == 200
        return False

    def ask(self, method, path, body=None):
        """A request that must go well.

        Raises:
            RuntimeError: it did not.
        """
        answer = request(self.port, method, path, body)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body!r}")
        return answer.json if answer.body else None

    def kill_something(self, before, kind):
        """Kill the worker or its source, and start the worker again if it was that."""
        chain, dice = self.chain, self.chain.dice
        sources = offspring(chain.running.pid)
        if sources and dice.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # a change of the configuration has just ended it
                os.kill(dice.choice(sources), signal.SIGKILL)
            chain.strike(f"source of a worker{kind}", before, effective=True)
        else:
            chain.kill()
            chain.strike(f"worker{kind}", before, effective=True)
            self.start()


def kill_worker(chain, rounds):
    """A worker, or the process of its source, is killed in the middle of its work; its configuration changes meanwhile."""
    worker = FaultyWorker(chain)
    for number in rounds_of(chain, rounds):
        before = amid_work(chain, worker)
        worker.kill_something(before, "")
        settle(chain, number)
    chain.stop()
    finish(chain)


def kill_amid_verbs(chain, rounds):
    """The same, while the worker pauses, stops or restarts the source, or takes another version of its configuration."""
    dice = chain.dice
    worker = FaultyWorker(chain, api=True)
    for number in rounds_of(chain, rounds):
        before = amid_work(chain, worker)
        verb = dice.choice(("pause", "pause", "stop", "restart", "activate", "activate", "delete"))
        do(worker, verb)
        worker.kill_something(before, f", {verb}")
        if verb in {"pause", "stop"}:
            state = {"pause": "PAUSED", "stop": "STOPPED"}[verb]
            chain.wait(lambda state=state: state_of(worker) == state, f"a source that was to {verb} is not {state}")
            held = chain.count_now()
            worker.ask("PUT", f"/connectors/{SOURCE}/resume")
            chain.note(state=state, held=held)
        settle(chain, number)
    chain.stop()
    finish(chain)


def amid_work(chain, worker):
    """Other options, new objects, and some of their records sent; returns what was there before."""
    dice = chain.dice
    chain.options()
    if not chain.alive():
        worker.start()
    chain.look()
    before = len_of(chain._seen)
    chain.put(dice.randrange(4, 9))
    left = chain.open_records()
    chain.wait_for_count(before + dice.randrange(left))
    return before


def do(worker, verb):
    """Ask for it; the worker has it on its disk when it answers."""
    if verb in {"pause", "stop"}:
        worker.ask("PUT", f"/connectors/{SOURCE}/{verb}")
    elif verb == "restart":
        worker.ask("POST", f"/connectors/{SOURCE}/restart")
    elif verb == "activate":
        sections = {
            "include": [str(worker.chain.program.path)],
            "iggy": {"batch_length": worker.chain.dice.choice((7, 97))},
        }
        made = worker.ask("POST", f"/sources/{SOURCE}/configs", {"plugin_config": sections})
        worker.ask("PUT", f"/sources/{SOURCE}/configs/active", {"version": made["version"]})
    elif worker.ask("GET", f"/sources/{SOURCE}/configs/active")["version"]:
        worker.ask("DELETE", f"/sources/{SOURCE}/configs")  # the file's is active again


def state_of(worker):
    """The state in Kafka Connect's words."""
    return worker.ask("GET", f"/connectors/{SOURCE}/status")["connector"]["state"]


def settle(chain, number):
    """Everything has come, and every few rounds all of it is compared."""
    chain.wait(lambda: chain.look() and not chain.open_records(), "it did not go on")
    if number % VERIFY_EVERY == 0:
        chain.verify()


def offspring(pid):
    """The child processes of a program."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
