"""The list of keys of a history with mode `keys`: people write it again and again, and it says more or less of its objects."""

from datetime import datetime, timezone

import attrs

from tests.simulator.bucket import Bucket, Lie, Version

BUCKET = "lists"
NEVER = -1.0


@attrs.frozen
class Row:
    """A row of the list: a key, and the content that it states, by its tag, if any."""

    key: str
    tag: int | None = None


class KeyList:
    """The list, and what it has named so far.

    Attributes:
        bucket: where it lies: not among the objects.
        rows: as last written; also those before the place where it is broken.
        named: every key that it ever named.
        fresh: whether it was written after the last change of an object.
    """

    def __init__(self, world, name, *, exact):
        self.world, self.name, self.exact = world, name, exact
        self.bucket = Bucket(world, BUCKET, "eu")
        self.rows = []
        self.named = set()
        self.written_at = []
        self.wrong_until = NEVER
        self.fresh = False

    def forget(self):
        self.bucket.forget()
        self.rows, self.world = [], None

    # ---- what people do

    def rewrite(self):
        """It grows, is replaced, or says the same keys again."""
        rng = self.world.rng
        known = [row.key for row in self.rows]
        keys = [key for key in self.world.plan.keys if rng.random() < 0.5]
        how = rng.choice(("grow", "grow", "replace", "again"))
        self.write(list(dict.fromkeys({"grow": known + keys, "replace": keys, "again": known}[how])))

    def write(self, keys):
        """Writes rows for these keys: some twice, some of objects that are not there, some of an earlier content."""
        rng = self.world.rng
        rows = [self.row(key) for key in keys for _ in range(1 + (rng.random() < 0.15))]
        if rng.random() < 0.5:
            rng.shuffle(rows)
        self.rows = rows
        self.named.update(row.key for row in rows)
        self.put(self.text(rows))
        self.world.event("list written", *(f"{row.key}{'' if row.tag is None else f' v{row.tag}'}" for row in rows))

    def row(self, key):
        rng, bucket = self.world.rng, self.world.bucket
        if self.name.endswith(".txt"):
            return Row(key)
        current = bucket.objects.get(key)
        earlier = [one for one in bucket.versions.values() if one.key == key and one is not current]
        if earlier and rng.random() < 0.15:
            return Row(key, rng.choice(earlier).tag)
        if current is None or rng.random() >= self.exact:
            return Row(key)
        return Row(key, current.tag)

    def text(self, rows):
        if self.name.endswith(".txt"):
            return "".join(f"{row.key}\n" for row in rows).encode()
        lines = ["key,size,etag,last_modified"]
        for row in rows:
            version = self.world.bucket.versions.get(row.tag)
            if version is None:
                lines.append(f"{row.key},,,")
            else:
                moment = datetime.fromtimestamp(version.modified_ms / 1000, timezone.utc)
                lines.append(f'{row.key},{len(version.data)},"v{version.tag}",{moment:%Y-%m-%dT%H:%M:%SZ}')
        return "".join(f"{line}\n" for line in lines).encode()

    def put(self, content):
        self.world.tags += 1
        self.written_at.append(self.world.now)
        modified_ms = self.bucket.now_ms() // 1000 * 1000
        self.bucket.put(Version(self.name, self.world.tags, modified_ms, 0, frozenset(), content))

    def lose(self):
        """For a while it is not there, or broken at its end."""
        if self.is_wrong:
            return
        self.wrong_until = float("inf")
        self.world.event("list lost")
        if self.world.rng.random() < 0.5:
            self.bucket.delete(self.name)
            self.world.say("the list is gone")
        else:
            self.put(self.text(self.rows) + b"\xff\n")
            self.world.say("the list is broken")
        self.world.at(self.world.rng.uniform(0.3, 3.0), self.repair)

    def repair(self):
        if self.is_wrong:
            self.wrong_until = self.world.now
            self.write([row.key for row in self.rows])

    def lie(self):
        self.world.event("list unavailable")
        self.bucket.lies.append(Lie("503", self.name, self.world.now + self.world.rng.uniform(0.1, 2.0)))

    def come_to_rest(self):
        """Nothing happens any more: mostly it names everything, also what never was."""
        self.bucket.lies.clear()
        self.repair()
        if self.world.rng.random() < 0.7:
            self.fresh = True
            self.write(list(self.world.plan.keys))

    # ---- what may come of it

    @property
    def is_wrong(self):
        return self.wrong_until > self.world.now

    def may_end(self, life):
        """Whether a start may have ended since the list could not be used: wrong, or rewritten again and again."""
        return self.wrong_until >= life.began or sum(at >= life.began for at in self.written_at) >= 5

    def demanded(self, current, seen, *, recheck):
        """Of what is in the bucket, what must have been read by a start after the last change of the list.

        A row that states nothing, or the current content, is enough. Any other row may hide a change, once a content before it
        was read to its end.
        """
        found = {}
        for key, version in current.items():
            rows = [row for row in self.rows if row.key == key]
            exact = any(row.tag == version.tag or (row.tag is None and recheck) for row in rows)
            if rows and (exact or not self.may_be_done(key, version, seen)):
                found[key] = version
        return found

    def may_be_done(self, key, version, seen):
        others = [one for one in self.world.bucket.versions.values() if one.key == key and one is not version]
        return any(
            one.tag in self.world.free  # its records were there, and people took them away
            or set(one.good) <= {record.number for record in seen.get((key, one.tag), ())}
            for one in others
        )
