"""The demo's result: topics read back and counted, a record of each, and commands to continue with."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from framework.cli.demo.data import FORMATS

if TYPE_CHECKING:
    from framework.cli.demo.demo_store import DemoStore
    from framework.iggy.connection import IggyConnection
    from framework.iggy.embedded.launcher import EmbeddedServer

STREAM = "flights"


@attrs.frozen(kw_only=True)
class Demo:
    """A demo: its folder, and the number of flights.

    Attributes:
        store: the store of the source.
        folder: holds all files.
        rows: flights in each format.
        engine: engine of the four sources, `spark` or `local`.
    """

    store: DemoStore
    folder: Path
    rows: int
    engine: str = "spark"

    @property
    def objects(self) -> Path:
        """Folder of the objects as files."""
        return self.folder / "objects"

    @property
    def iggy(self) -> Path:
        """Folder of Iggy's data."""
        return self.folder / "iggy"

    @property
    def server(self) -> Path:
        """Folder of the store's data."""
        return self.folder / self.store.scheme

    def config(self, name: str) -> Path:
        """Return the configuration of the source for a format."""
        return self.folder / f"{name}.toml"


def topic_of(name: str) -> str:
    """Return the topic of a format."""
    return f"flights-{name}"


def say(*lines: str) -> None:
    """Write lines to stdout, immediately."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def connected(iggy: EmbeddedServer) -> IggyConnection:
    """Return a connection, which `with` closes."""
    from framework.config.iggy_address import IggyAddress  # noqa: PLC0415
    from framework.iggy.connection import IggyConnection  # noqa: PLC0415

    return IggyConnection(IggyAddress.parse(iggy.url)).connect()


def held(connection: IggyConnection, name: str) -> dict[int, int]:
    """Return partition -> messages, as the server counts them; empty without the topic."""
    info = connection.get_topic(STREAM, topic_of(name))
    return {} if info is None else {each.id: each.messages_count for each in info.partitions}


def count(demo: Demo, iggy: EmbeddedServer) -> bool:
    """Read every topic to its end, count, and write the first record of each; report errors, if any."""
    from framework.iggy.header_decoding import join_provenance  # noqa: PLC0415
    from framework.iggy.reader import read_topic  # noqa: PLC0415

    say("", "4. Counted: every topic read back to its end; a flight that came twice would count in one column only")
    say(f"   {'topic':<16} {'records':>9} {'different':>10} {'flights':>9}")
    width = shutil.get_terminal_size((110, 24)).columns
    ok, examples = True, []
    with connected(iggy) as connection:
        for name in FORMATS:
            topic, records, ids = topic_of(name), 0, set()
            for records, (partition, message) in enumerate(
                read_topic(connection, STREAM, topic, list(held(connection, name))), 1
            ):
                ids.add(message.message_id)
                if records == 1:
                    origin = join_provenance(message.headers)
                    place = f"{demo.store.scheme}://{origin.get('bucket')}/{origin.get('key')}"
                    payload = message.payload.decode("utf-8", "replace")
                    examples += [
                        f"   {topic}, partition {partition}, offset {message.offset}: from {place}",
                        f"      {payload if len(payload) <= width - 7 else payload[: width - 8] + '…'}",
                    ]
            right = records == len(ids) == demo.rows
            say(f"   {topic:<16} {records:>9,} {len(ids):>10,} {demo.rows:>9,}   {'ok' if right else 'WRONG'}")
            ok = ok and right
    if ok:
        say("", "A record of each topic: where it came from, and what Iggy stores", *examples)
    else:
        say(
            "",
            "A topic does not hold each flight once. If no other program wrote to it, this is a bug: please report it.",
        )
    return ok


def how_to_go_on(demo: Demo) -> None:
    """Write the commands to try next."""
    source = f"{shlex.quote(_python())} -m {demo.store.program}"
    config = shlex.quote(str(demo.config("csv")))
    say(
        "",
        "How to go on",
        "   Read a topic, a record on each line:",
        f"      {source} read --config {config} --limit 5",
        "   Run the demo again: it sends nothing, for Iggy also keeps which objects are done:",
        f"      {again(demo)}",
        "   Stop it in the middle: empty the topics, press Ctrl-C in step 3, run it again; it goes on, and the counts are right:",
        f"      {again(demo, '--fresh')}",
        f"      {again(demo)}",
        "   Run one of the four sources alone: leave the servers running, and in another terminal start the source:",
        f"      {again(demo, '--keep')}",
        f"      {source} --config {config} --once",
        f"   Then write a configuration of your own; {config} is a start, examples/{demo.store.short}.toml explains more.",
    )


def again(demo: Demo, *options: str) -> str:
    """Return the command that runs this demo again."""
    same = ("--folder", str(demo.folder), "--rows", str(demo.rows), "--engine", demo.engine)
    return shlex.join([_python(), "-m", demo.store.program, "demo", *same, *options])


def _python() -> str:
    """Return how the shell finds this interpreter: another `python` has no such module."""
    with contextlib.suppress(ValueError):
        return str(Path(sys.executable).relative_to(Path.cwd()))
    found = shutil.which("python")
    return "python" if found is not None and Path(found).absolute() == Path(sys.executable) else sys.executable
