"""What people do on the server while a source runs: topics are purged, deleted, made again, or get another number of partitions.

The source promises to stop then (docs/concepts/delivery.md). A life that goes on must notice soon, and no start may send.
"""

from tests.simulator.bucket import tell
from tests.simulator.iggy import Partition
from tests.simulator.runtime import EPOCH

UNDER_WAY = 3
"""Requests of a connection that may be stored before the answer to the first one shows that offsets begin again."""

NOTICE_SECONDS = 5.0
"""Beyond `commit_interval`: a leader looks at its log every half second, and requests may be slow."""

SAVES = 3
"""After so many records of progress by the same process a message is saved: the first ones may have been on their way."""


class Operator:
    """What was done by hand, and what must come of it.

    Attributes:
        letters_gone: (key, tag, number) -> how many dead letters of it people took away.
    """

    def __init__(self, world):
        self.world = world
        self.letters_gone = {}
        self._progress = {}  # name of a process -> when it saved
        self._unsaved = set()  # names of processes that ended after the moment of which the log is
        self._sent = {}  # connection, topic, number -> when it first knew a message there
        self._begin_again = {}  # topic and number, of a data topic or the log -> when, and the end of what the source wrote
        self._noticeable = {}  # connection -> when an answer first showed it
        self._after = {}  # connection -> requests since
        self._again_since = None
        self._purged = "", []
        self._missed = set()  # topic and number of partitions whose saved messages a purge took
        self._counted = {}  # topic and number -> the last message that was surely counted before, and whose records were

    def forget(self):
        self.world = None
        self._sent, self._noticeable, self._after = {}, {}, {}

    # ---- what must come of it

    def happened(self, kind, what, link):
        """A request was stored or answered."""
        world, (verb, _, rest) = self.world, what.partition(" ")
        if verb == "append" and kind == "stored":
            topic, _, record = rest.partition(" ")
            self._sent.setdefault((link, topic, 0), world.now)
            if record.startswith("progress "):
                self._progress.setdefault(link.process.name, []).append(world.now)
            if self._is_behind(topic, 0, link):
                self._noticeable.setdefault(link, world.now)
        elif verb == "send":
            topic, _, number = rest.partition("/")
            place = topic, int(number)
            if self._find(*place) is None:
                return  # it was refused
            rate = world.plan.tuning.get("purge_beside_replay", 0.0)
            if rate and kind == "stored" and link.process.name.startswith("replay") and world.rng.random() < rate:
                world.at(0.0, world.rng.choice((self.purge_letters, self.delete_letters)))
            if kind == "answered":
                self._sent.setdefault((link, *place), world.now)
            else:
                self._stored(place, link)

    def _stored(self, place, link):
        world = self.world
        if self._again_since is not None and self._runs_since_before(link):
            new = [one for one in self._find(*place).messages[-100:] if one.timestamp_us == world.server.now_us()]
            world.count_again(new)
        if self._is_behind(*place, link):
            name, (counted, begun) = link.process.name, self._counted.get(place, (-1, set()))
            begun = {tag for tag in begun if self._is_read_once(tag)}
            if not world.must_refuse and any(
                one.writer == name and one.offset <= counted and any(tag in begun for _, tag, _ in tell(one.payload))
                for one in self._find(*place).messages
            ):
                self._purged = place[0], [place[1]]
                world.refuse(f"{place[0]} was purged, and written again")
            self._after[link] = self._after.get(link, 0) + 1
            if self._after[link] > UNDER_WAY:
                world.fail("NOT NOTICED", f"{link.process.name} goes on in {place}, whose offsets began again")
        noticeable = self._noticeable.get(link)
        limit = world.settings.commit_interval + NOTICE_SECONDS
        if noticeable is not None and not world.server.slow and world.now > noticeable + limit:
            world.fail("NOT NOTICED", f"{link.process.name} sends beside a log whose offsets began again")

    def _is_read_once(self, tag):
        """Whether a content was never restored: then it begins again, whatever was counted of it."""
        became = [version for bucket in self.world.buckets for _, _, version in bucket.became if version is not None]
        return sum(version.tag == tag for version in became) == 1

    def _runs_since_before(self, link):
        """Whether something still runs that another start cannot see, since the log lost its claim."""
        lives = self.world.lives
        return link.since < self._again_since or any(
            one.began < self._again_since and one.ended is None for one in lives
        )

    def is_hidden(self):
        """Whether others have written so much to what was purged that offsets no longer tell."""
        topic, numbers = self._purged
        parts = [(self._find(topic, number), self._begin_again.get((topic, number))) for number in numbers]
        return "purge" in self.world.causes and any(part and again and part.end > again[1] for part, again in parts)

    def _is_behind(self, topic, number, link):
        """Whether this connection knew a message of the partition beyond its end."""
        again, part = self._begin_again.get((topic, number)), self._find(topic, number)
        if again is None or part is None or part.end > again[1]:
            return False
        return self._sent.get((link, topic, number), again[0]) < again[0]

    def _find(self, topic, number):
        found = self.world.server.find("lake", topic)
        return found.partitions[number] if found is not None and number < len(found.partitions) else None

    def _watch(self, topic, numbers=None):
        for number, part in enumerate(topic.partitions):
            ends = [one.offset + 1 for one in part.messages if one.payload != b"theirs"]
            if ends and (numbers is None or number in numbers):
                self._begin_again[topic.name, number] = self.world.now, ends[-1]

    def _is_saved(self, gone, topic):
        """Whether positions surely count some of these messages as saved."""
        world = self.world
        if topic.required_to_save > 1:
            return False  # a killed server takes them, too: only what is sent to their places tells
        ended = {life.process.name for life in world.lives if world.saved_all(life)} - self._unsaved
        return any(one.writer.partition("/")[0] in ended or self._is_counted(one) for one in self._ours(gone))

    def log_restored(self, as_of):
        """The log is as it was: what was saved since is not."""
        self._progress = {name: [at for at in saved if at <= as_of] for name, saved in self._progress.items()}
        self._unsaved |= {
            life.process.name for life in self.world.lives if life.ended is not None and life.ended > as_of
        }
        self._counted = {}

    def _is_counted(self, message):
        """Whether the process that sent a message has surely stored its count since."""
        saved = self._progress.get(message.writer, ())
        return sum(EPOCH + at > message.timestamp_us / 1e6 for at in saved) >= SAVES

    def _ours(self, gone):
        """Of these messages those that the log knows, or must."""
        world = self.world
        names = {life.process.name for life in world.lives if life.settings.offsets == world.settings.offsets}
        since = max(world.by_hand_at, world.log_since.get(world.settings.offsets, -1))
        return [
            one
            for one in gone
            if one.serial > since and one.writer.partition("/")[0] in names and not world.was_reset(one)
        ]

    # ---- data topics

    def _begin(self, event, *words):
        world = self.world
        world.event(event, *words)
        world.hand_changes += 1
        world.backup = None

    def _topic(self):
        """One that has messages, unless something else is wrong already."""
        world = self.world
        found = [topic for topic in world.data_topics() if any(part.messages for part in topic.partitions)]
        return world.rng.choice(found) if found and not world.causes else None

    def purge(self):
        topic = self._topic()
        if topic is None:
            return
        self._begin("purged running", topic.name)
        self._take_away(topic, range(len(topic.partitions)))
        self.world.server.purge("lake", topic.name)

    def _take_away(self, topic, numbers):
        """All messages of these partitions go, and their offsets begin again."""
        world = self.world
        taken = {number: topic.partitions[number].messages for number in numbers}
        gone = [one for messages in taken.values() for one in messages]
        saved = self._is_saved(gone, topic)
        self._watch(topic, numbers)
        for number in numbers:
            ours = self._ours(topic.partitions[number].messages)
            counted = [one for one in ours if self._is_counted(one)]
            begun = {tag for one in counted for _, tag, _ in tell(one.payload)}
            self._counted[topic.name, number] = max((one.offset for one in counted), default=-1), begun
        world.forget_records(gone)
        world.causes["purge"] = None
        if saved:
            self._purged = topic.name, list(numbers)
            self._missed = {(topic.name, number) for number in numbers if self._is_saved(taken[number], topic)}
            world.refuse(f"{topic.name} was purged")

    def partition_gone(self, topic, number):
        """Nothing can be missed in a partition that is not there: positions in it are dropped, or refused as such."""
        if (topic, number) in self._missed:
            self._missed.remove((topic, number))
            if not self._missed and self.world.must_refuse == f"{topic} was purged":
                self.world.must_refuse = ""

    def delete(self):
        """Somebody may make it again at once."""
        world, topic = self.world, self._topic()
        if topic is None:
            return
        again = world.rng.random() < 0.5
        self._begin("topic deleted running", topic.name, "and made again" if again else "")
        gone = [one for part in topic.partitions for one in part.messages]
        known = bool(self._ours(gone))
        world.forget_records(gone)
        world.server.delete_topic("lake", topic.name)
        if again:
            self._watch(topic)
            world.server.make_topic("lake", topic.name, len(topic.partitions), required=topic.required_to_save)
        world.causes["recreated"] = None
        if known:
            world.refuse(f"topic {topic.name} was deleted")

    def change_partitions(self):
        """One is added or deleted, and the configuration follows with the next start; or the last one is made again."""
        world, rng = self.world, self.world.rng
        topics = world.data_topics()
        if world.causes or not topics:
            return
        by_key = world.settings.topic == "{{topic}}"  # another number of partitions is then an error of the object
        way = "made again" if by_key else rng.choice(("added", "deleted", "made again"))
        if way == "added" and world.settings.partitions < 4:
            self._begin("partitions by hand", way)
            world.add_partition()
        elif way == "deleted" and world.settings.partitions > 1:
            self._begin("partitions by hand", way)
            world.remove_partition()
        elif way == "made again":
            self._begin("partitions by hand", way)
            for topic in topics:
                self._take_away(topic, [len(topic.partitions) - 1])
                topic.partitions[-1] = Partition()

    # ---- the log

    def purge_log(self):
        if self._lose_log("log purged"):
            world = self.world
            world.server.purge("lake", world.settings.offsets)

    def delete_log(self):
        """The next start makes it again, or somebody does at once."""
        if self._lose_log("log deleted"):
            world = self.world
            name = world.settings.offsets
            world.server.delete_topic("lake", name)
            if world.rng.random() < 0.5:
                world.server.make_topic("lake", name, 1, required=1)

    def _lose_log(self, event):
        world = self.world
        log = world.server.find("lake", world.settings.offsets)
        if world.causes or log is None or not log.partitions[0].messages:
            return False
        self._begin(event)
        self._watch(log)
        world.causes["log"] = world.server.copy("lake", {log.name: log})[log.name]
        world.log_lost_at = world.server.serial
        if world.is_marked():
            world.refuse(f"the log was lost: {event}")
        else:
            world.allow_again()  # nothing says that the source was here before
            self._again_since = world.now
            world.log_since[log.name] = world.server.serial
        world.take_overs.append(world.now)  # a start cannot see what ran before
        return True

    # ---- dead letters

    def add_partition_to(self, name, event):
        """To a topic that must have a single one: a start says so."""
        world = self.world
        topic = world.server.find("lake", name)
        if world.causes or topic is None:
            return
        self._begin(event)
        topic.partitions.append(Partition())
        world.causes["extra partition"] = topic
        world.refuse(f"{name} has two partitions")

    def purge_letters(self):
        if self._lose_letters("letters purged"):
            self.world.server.purge("lake", "letters")

    def delete_letters(self):
        """The next start makes it again, and what runs may stop."""
        if self._lose_letters("letters deleted"):
            self.world.server.delete_topic("lake", "letters")

    def _lose_letters(self, event):
        world = self.world
        topic = world.server.find("lake", "letters")
        if world.causes or topic is None:
            return False
        self._begin(event)
        for message in topic.partitions[0].messages:
            for place in tell(message.payload):
                self.letters_gone[place] = self.letters_gone.get(place, 0) + 1
        for replay in world.replays:
            if replay[1] is None:
                replay[2] = set()  # it may not find them
        world.mended_at = world.now  # whoever looked at them just before may say that they are damaged
        return True
