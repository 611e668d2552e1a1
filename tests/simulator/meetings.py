"""Events that meet: each happens as soon as it is possible, soon after the one before."""

PAUSE_SECONDS = 0.01
FAULT_PAUSE_SECONDS = 0.002
"""Between two tries of an event: a request is on its way about so long."""

LIMIT_SECONDS = 3.0
"""An event is tried for so long: longer than a start takes. A fault waits half of it for a request."""

QUIET_SECONDS = 3.0
"""As long as nothing runs for what is possible then alone: until the server has noticed that all connections are gone."""

ACTS = {
    "stopped": "stop",
    "clock stepped": "clock",
    "second instance": "second",
    "standby": "standby",
    "standby killed": "kill_standby",
    "neighbour ended": "neighbour",
    "foreign messages": "foreign",
    "expired": "expire",
    "purged": "purge",
    "topic deleted": "recreate",
    "log lost": "lose_log",
    "overwritten": "put",
    "uploaded late": "old_put",
    "restored": "restore",
    "deleted": "delete",
    "archived": "archive",
    "dates stepped": "date",
    "list written": "list",
    "list lost": "lose_list",
    "list unavailable": "lie_of_list",
    "reset": "reset",
    "position set": "set",
    "accepted": "accept",
    "replayed": "replay",
    "server restored": "restore_server",
    "log restored": "restore_log",
    "topics restored": "restore_topics",
    "purged running": "purge_running",
    "topic deleted running": "delete_running",
    "partitions by hand": "partitions",
    "log purged": "purge_log",
    "log deleted": "delete_log",
    "log partitions by hand": "partitions_of_log",
    "letters purged": "purge_letters",
    "letters deleted": "delete_letters",
    "letters partitions by hand": "partitions_of_letters",
}
"""Kind of event -> what people do (`World.act_...`)."""

FIRST = {"standby killed": "standby", "put again": "delete", "send cut": "put", "acknowledgement lost": "put"}
"""Kind of event -> what people do before, so that it is possible."""

FAULTS = {
    "source killed": "kill",
    "source and tasks killed": "kill_all",
    "task killed": "kill_worker",
    "paused": "pause",
    "no power": "power",
    "server killed": "kill_server",
    "server forgot": "kill_server",
    "server restarted": "restart_server",
    "send cut": "cut",
    "acknowledgement lost": "cut",
    "other request cut": "cut",
}
"""Kind of event -> what happens while a request is under way (`World.fault_...`)."""

QUIET = {"purged", "topic deleted", "log lost", "changed records_topic", "changed offsets_topic"}
"""Possible only while nothing runs."""


def kind_of_cut(request):
    """What the end of a connection means to the request that is under way."""
    if request is None or not request.what.startswith("send "):
        return "other request cut"
    return "acknowledgement lost" if request.stored else "send cut"


class Meeting:
    """Events of these kinds, one after the other."""

    def __init__(self, world, kinds):
        self.world, self.kinds, self.tries = world, list(kinds), 0

    def go_on(self):
        """The next one, if that is possible now; else it is tried again, and given up in the end."""
        world, rng = self.world, self.world.rng
        if world.calm or not self.kinds:
            return
        before = len(world.events)
        if not self.tries:
            self.began = world.now
        self.tries += 1
        self.try_to(self.kinds[0])
        done = any(kind == self.kinds[0] for _, kind in world.events[before:])
        if done or world.now > self.began + LIMIT_SECONDS:
            if self.kinds.pop(0) in QUIET:
                world.at(rng.uniform(0, 1.0), world.restart)
            self.tries = 0
            world.at(rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 1.0))), self.go_on)
        else:
            world.at(FAULT_PAUSE_SECONDS if self.kinds[0] in FAULTS else PAUSE_SECONDS, self.go_on)

    def try_to(self, kind):
        world = self.world
        if kind in QUIET and self.tries == 1:
            self.be_quiet()
        if kind in QUIET and not world.nothing_runs():
            return
        if kind in FIRST and self.tries == 1:
            getattr(world, f"act_{FIRST[kind]}")()
        if kind in ACTS:
            getattr(world, f"act_{ACTS[kind]}")()
        elif kind in FAULTS:
            self.fault(kind)
        elif kind.startswith("wrong "):
            world.lie(kind.removeprefix("wrong "))
        elif kind.startswith("changed "):
            self.change(kind.removeprefix("changed "))
        elif kind == "put again":
            self.put_again()
        else:  # send late, append late
            world.server.late = kind.removesuffix("late")

    def be_quiet(self):
        """Everything ends, and starts only later."""
        world = self.world
        for life in world.lives:
            for child in list(life.process.extra.get("children", ())):
                child.die()
            world.kill(life)
        world.plan_restart(QUIET_SECONDS)

    def fault(self, kind):
        """While a request is under way, if that is soon."""
        world = self.world
        links = [link for link in world.server.clients.values() if fits(world, kind, link)]
        if world.now < self.began + LIMIT_SECONDS / 2:
            links = [link for link in links if link.under_way is not None]
        if links:
            world.fault(FAULTS[kind], world.rng.choice(links))

    def change(self, name):
        """At the next start, which is soon; at the one after that if the value was drawn that is there already."""
        world = self.world
        if f"changed {name}" in QUIET:
            world.change(name)
        elif name not in world.due:
            world.due.add(name)
            world.rng.choice((world.act_kill, world.act_stop))()

    def put_again(self):
        """An object that was deleted."""
        world = self.world
        gone = sorted({one.key for one in world.bucket.versions.values()} - set(world.bucket.objects))
        if gone:
            world.put(world.rng.choice(gone))


def fits(world, kind, link):
    """Whether a fault at this connection is of the kind."""
    life = world.life_of(link.process)
    if kind == "task killed":
        return life is not None and link.process is not life.process
    if kind == "no power":
        return life is not None and life is world.main
    if kind == "server forgot":
        topics = world.data_topics()
        return any(part.saved_end < part.end for topic in topics for part in topic.partitions)
    if FAULTS[kind] == "cut":
        return kind_of_cut(link.under_way) == kind
    return life is not None
