"""A second source in the same stream, over the same bucket: it lives and dies by itself, and has positions of its own."""

import attrs

NAME = "next"
OWN_LOG = f"{NAME}-offsets"
OWN_TOPIC = "next-records"
WRITER = f"{NAME}-"
"""The names of its processes begin so: of each message the server knows who wrote it."""


class Neighbour:
    """What people do to it, and what is to be there of it.

    Attributes:
        settings: its configuration.
        main: its life that goes on, or the last one.
        resets: see `checker.Facts`.
    """

    def __init__(self, world, settings):
        self.world, self.settings = world, attrs.evolve(settings, name=NAME)
        self.prefixes = world.plan.tuning.get("neighbour_prefixes", ("",))
        self.main = self.helper = None
        self.resets = []
        self.planned = False

    def forget(self):
        self.main = self.helper = self.world = None

    # ---- its lives

    @property
    def runs(self):
        return self.main is not None and self.main.ended is None

    def start(self, kind, **more):
        return self.world.start(kind, settings=self.settings, host=self.world.hosts[1], **more)

    def plan_restart(self, delay=None):
        world = self.world
        if not self.planned and not world.calm:
            self.planned = True
            world.at(world.rng.uniform(0.01, 1.5) if delay is None else delay, self.restart)

    def restart(self):
        self.planned = False
        if self.world.calm or self.runs:
            return
        if self.helper is not None and self.helper.ended is None:
            self.plan_restart(0.5)
            return
        self.main = self.start(
            "source",
            once=self.world.rng.random() < self.world.plan.once_rate,
            take_over=False,
            then=lambda _: self.plan_restart(),
        )

    # ---- what people do to it

    def act(self):
        """It is killed, stopped, or reset."""
        if not self.runs:
            return
        self.world.event("neighbour ended")
        what = self.world.rng.choice(("kill", "kill", "stop", "reset"))
        if what == "kill":
            self.world.kill(self.main)
            self.plan_restart()
        elif what == "stop" and "stop" in self.main.process.extra:
            self.world.say("stop", self.main.process)
            self.world.spawn(self.main.process, self.main.process.extra["stop"], "stop")
        elif what == "reset" and not self.planned:
            self.reset()

    def reset(self):
        """Stop, forget, go on."""
        world = self.world
        world.kill(self.main)
        key = world.a_key()
        which = world.rng.choice(({"key": key}, {"prefix": key[:2]}, {}))
        takes = (lambda one: one == key) if "key" in which else (lambda one: one.startswith(which.get("prefix", "")))
        begun = world.now_us()
        self.resets.append((begun, None, takes))

        def done(life):
            if life.outcome is not None and life.outcome.kind == "done":
                self.resets = [one for one in self.resets if one[0] != begun]
                self.resets.append((begun, world.now_us(), takes))
            self.plan_restart(0.05)

        self.helper = self.start("reset", then=done, **which)


def is_neighbours(writer):
    """Whether its process stored a message."""
    return writer.startswith(WRITER)
