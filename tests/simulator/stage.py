"""Histories that are told step by step, in the same world and under the same checker."""

import attrs

from tests.simulator import adapter, runtime
from tests.simulator.bucket import Lie
from tests.simulator.checker import ViolationError
from tests.simulator.history import Plan, Settings, World


class Stage:
    """A world in which only what is said happens. Steps run in the hub, between which time passes."""

    def __init__(self, seed=0, *, required=1, tuning=None, verbose=False, settings=None, **plan):
        given = Settings(
            **{
                "template": "{{partition}}-{{key}}",
                "distribution": "partition",
                "commit_interval": 0.05,
                **(settings or {}),
            }
        )
        plan = Plan(settings=given, required=required, tuning=dict(tuning or {}), once_rate=0.0, **plan)
        adapter.begin_history(plan.tuning)
        self.world = World(seed, plan, adapter.LIVES, adapter.outcome_of, verbose=verbose)
        self.server = self.world.server
        self.server.saves_early = 0.0
        self.bucket = self.world.bucket

    def __enter__(self):
        runtime.enter_world(self.world)
        return self

    def __exit__(self, *_):
        self.world.close()

    # ---- objects

    def put(self, key, count=3, **more):
        return self.world.put(key, count=count, bad=more.pop("bad", set()), **more)

    def lie(self, kind, key, seconds=1e9):
        self.world.bucket.lies.append(Lie(kind, key, self.world.now + seconds))

    def truth(self):
        self.world.bucket.lies.clear()

    def change(self, **settings):
        self.world.settings = attrs.evolve(self.world.settings, **settings)

    # ---- time

    def until(self, condition, seconds=200.0):
        """Lets time pass until this holds; whether it came to hold."""
        limit = self.world.now + seconds
        self.world.at(seconds, lambda: None)
        self.world.run_until(lambda: condition() or self.world.now >= limit)
        return condition()

    def wait(self, seconds):
        self.until(lambda: False, seconds)

    # ---- lives

    def start(self, kind="source", **args):
        """A life that goes on; of a source one without an end unless `once` is said."""
        if kind == "source":
            args = {"once": False, "take_over": False, **args}
        life = self.world.start(kind, **args)
        if kind == "source" and self.world.main is None:
            self.world.main = life
        return life

    def live(self, kind="source", seconds=200.0, **args):
        """A life to its end; how it ended."""
        if kind == "source":
            args = {"once": True, **args}
        life = self.start(kind, **args)
        if not self.until(lambda: life.ended is not None, seconds):
            raise ViolationError("STUCK", f"{kind} does not come to its end")
        return life.outcome.kind

    def kill(self, life):
        self.world.kill(life)

    def stop(self, life):
        self.world.spawn(life.process, life.process.extra["stop"], "stop")
        self.until(lambda: life.ended is not None)

    # ---- the server

    def part(self, number, topic="records"):
        found = self.server.find("lake", topic)
        return found.partitions[number] if found is not None else None

    def count(self, number, topic="records"):
        part = self.part(number, topic)
        return len(part.messages) if part is not None else 0

    def save(self, number, topic="records"):
        """The server writes what a partition holds to disk: nothing of it can be lost any more."""
        part = self.part(number, topic)
        part.saved_end = part.end

    def kill_server(self, lose, topic="records"):
        """It is killed and forgets so many messages of each partition: not more than it may."""
        found = self.server.find("lake", topic)
        for number, part in enumerate(found.partitions):
            count = lose.get(number, 0)
            if count > part.end - part.saved_end or count >= max(2, found.required_to_save):
                raise ValueError(
                    f"a server keeps these messages of partition {number}: {part.saved_end} of {part.end} are saved"
                )
            part.saved_end = part.end - count
        rng, self.server.rng = self.server.rng, _Least(self.server.rng)
        try:
            lost = self.server.kill(0.1)
        finally:
            self.server.rng = rng
        self.world.server_kills.append(self.world.now)
        self.world.say("server killed, lost", lost)
        self.wait(0.2)

    def hold(self, process, what, *, after=0):
        """Keeps a request of this process on its way, the one after so many that begin so; gives the place where it will lie."""
        late, count = [], [0]
        connect = self.server.connect

        def keep(link):
            if link.process is process:
                arrive = link._arrive

                def later(request):
                    if request.what.startswith(what):
                        count[0] += 1
                        if count[0] == after + 1 and not late:
                            late.append((link, arrive, request))
                            return
                    arrive(request)

                link._arrive = later

        for link in self.server.clients.values():
            keep(link)

        def connecting(who):
            link = connect(who)
            keep(link)
            return link

        self.server.connect = connecting
        return late

    def release(self, late):
        """What was kept arrives, as long as the server lists its client."""
        link, arrive, request = late.pop()
        self.world.say("arrives late:", request.what, link.process)
        arrive(request)

    def foreign(self, number, count=1, topic="records"):
        """Somebody else writes to a data topic."""
        new = [(self.world.rng.getrandbits(128), b"theirs", {}, 0) for _ in range(count)]
        self.server.store("lake", topic, number, new)

    # ---- the end

    def finish(self):
        """Whatever runs is ended, all is read, the checker is asked."""
        self.world.settle()


class _Least:
    """Randomness of a server that forgets as much as it may."""

    def __init__(self, rng):
        self._rng = rng

    def randint(self, low, high):
        return low

    def random(self):
        return 0.99

    def __getattr__(self, name):
        return getattr(self._rng, name)
