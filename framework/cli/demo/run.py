"""The command `demo`: real flights from a local server into an embedded Iggy, end to end, with configurations to go on with.

    .demo/
      jsonl.toml csv.toml avro.toml parquet.toml    a source each
      objects/                                      the objects as files, prepared once
      s3/                                           the store's data; named as its scheme
      iggy/                                         Iggy's data: records, and the positions of the sources

Nothing is done twice: what an earlier run prepared, uploaded or sent is found and kept, also after Ctrl-C or a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from framework.cli.config_file import Flags
from framework.cli.demo.data import FLIGHTS, FORMATS, load, prepare, prepared_rows
from framework.cli.demo.demo_store import BUCKET
from framework.cli.demo.result import (
    STREAM,
    Demo,
    again,
    connected,
    count,
    held,
    how_to_go_on,
    say,
    topic_of,
)
from framework.errors import (
    EXIT_DONE,
    EXIT_TRY_AGAIN,
    FatalError,
    IggyUnavailableError,
    SourceError,
    StoreUnavailableError,
)
from framework.model.text import counted

if TYPE_CHECKING:
    from framework.cli.demo.demo_store import DemoStore
    from framework.config.sections import SourceCommonConfig
    from framework.iggy.embedded.launcher import EmbeddedServer


_LOOK_SECONDS = 1.0
"""Interval at which `--keep` looks whether both servers are still there."""

_CONFIG = """\
# One of the four sources of the demo. Rewritten by each run of the demo, since the store's port changes.
# Every option: docs/reference/configuration.md

[source]
name = "{topic}"                     # positions and message ids carry this name

{section}

[input]
format = "{format}"

[iggy]
url = {url}
stream = "{stream}"
topic = "{topic}"
partitions = 4

[runner]
engine = "{engine}"     # "spark", or "local", which needs no Java
"""

_WHAT = {
    "jsonl": "JSON Lines, compressed with gzip",
    "csv": "CSV with a header row",
    "avro": "Avro",
    "parquet": "Parquet",
}


def demo_command(store: DemoStore) -> Callable[..., int]:
    """Return the command `demo` of a store's source."""

    def demo(
        folder: Annotated[Path, typer.Option(help="Where everything is kept.")] = store.folder,
        rows: Annotated[int, typer.Option(help="How many flights.", min=1, max=FLIGHTS)] = FLIGHTS,
        keep: Annotated[
            bool, typer.Option("--keep", help="Leave both servers running at the end, until Ctrl-C.")
        ] = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="Begin again with empty topics.")] = False,
        engine: Annotated[
            Literal["spark", "local"] | None,
            typer.Option(help="What the sources run on; without Java the default is local."),
        ] = None,
    ) -> int:
        """Run a demo on this machine. Real flights go from a local server into a small Iggy server."""
        _interrupt_on_signals()
        try:
            with _alone_in(folder):
                demo = Demo(store=store, folder=folder, rows=rows, engine=engine or _default_engine())
                return _run(demo, keep=keep, fresh=fresh)
        except KeyboardInterrupt:
            say("", "Stopped. What Iggy has confirmed is safe: the same command goes on behind it.")
            return EXIT_DONE
        except SourceError:  # some are OSErrors, too: the store or Iggy is away
            raise
        except OSError as error:
            raise FatalError(f"the demo's folder {folder} cannot be used: {error}") from error

    return demo


def _run(demo: Demo, *, keep: bool, fresh: bool) -> int:
    began = time.monotonic()
    say(
        f"{demo.rows:,} real flights, as objects in a bucket of {demo.store.title}, become records in topics of Apache Iggy.",
        f"All of it runs on this machine and is kept in the folder {demo.folder}.",
        "",
    )
    _make_room(demo, fresh=fresh)
    with contextlib.ExitStack() as stack:
        objects = _prepare(demo)
        if demo.engine == "spark":
            from framework.config.sections import SparkSection  # noqa: PLC0415
            from framework.engine.spark.spark_context import spark_context  # noqa: PLC0415

            stack.enter_context(spark_context(SparkSection(), name="iggy-cloud-sources demo"))  # for all four sources
        server = _fill(demo, stack, objects)
        iggy = _start_iggy(demo, stack)
        _write_configs(demo, server)
        where = "on Spark" if demo.engine == "spark" else "in this process"
        what = "each reads its prefix and sends every flight to a topic of its own"
        say("", f"3. Four sources {where}, one after the other: {what}")
        for name, files in objects.items():
            _run_source(demo, iggy, name, len(files))
        if not count(demo, iggy):
            return EXIT_TRY_AGAIN
        say("", f"That took {time.monotonic() - began:.0f} seconds.")
        how_to_go_on(demo)
        if keep:
            _wait(demo, server, iggy)
    return EXIT_DONE


# ---- preparing


def _make_room(demo: Demo, *, fresh: bool) -> None:
    before = prepared_rows(demo.objects)
    changed = before not in (None, demo.rows)
    if fresh:
        for part in (demo.iggy, demo.server) if changed else (demo.iggy,):
            shutil.rmtree(part, ignore_errors=True)
    elif changed:
        raise FatalError(
            f"the folder {demo.folder} holds a demo with {before:,} flights: add --fresh to begin again with "
            f"{demo.rows:,}, or name another folder with --folder"
        )


def _prepare(demo: Demo) -> dict[str, list[Path]]:
    say("1. Objects: the flights in four formats, an object for each week")
    if prepared_rows(demo.objects) == demo.rows:
        say("   (prepared by an earlier run)")
    else:
        prepare(demo.objects, demo.rows)
    objects = load(demo.objects)
    for name, files in objects.items():
        size = sum(file.stat().st_size for file in files)
        say(f"   {name + '/':<9} {counted(len(files), 'object'):>11}  {size / 1e6:>5.1f} MB   {_WHAT[name]}")
    return objects


def _end_server(mark: str) -> None:
    """Kill the store's server of this folder, if there is one.

    Its files survive a kill: it hands every write to the system before it answers.
    """
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in place.read_bytes().split(b"\0"):
                os.kill(int(place.parent.name), signal.SIGKILL)
                while place.read_bytes():  # empty as soon as the process has ended
                    time.sleep(0.02)


def _default_engine() -> str:
    """Return Spark, unless this machine has no Java for it."""
    from framework.engine.spark.jvm import require_java  # noqa: PLC0415

    try:
        require_java()
    except FatalError:
        say(
            "There is no Java 17 here, so the sources run without Spark. To have it: apt-get install openjdk-17-jre-headless",
            "",
        )
        return "local"
    return "spark"


def _fill(demo: Demo, stack: contextlib.ExitStack, objects: dict[str, list[Path]]) -> Any:
    store = demo.store
    say("", f"2. A bucket: a local {store.title} server ({store.server_title}) holds them")
    home = demo.server.absolute()
    _end_server(store.command_line_mark(home))  # a demo that was killed has left one behind
    server = stack.enter_context(store.start(home))
    keys = {f"{name}/{file.name}": file for name, files in objects.items() for file in files}
    sent = store.fill(server, keys)
    say(
        f'   bucket "{BUCKET}" at {server.endpoint}: {counted(len(keys), "object")}, '
        + (f"{sent} uploaded now" if sent else "all of them there from an earlier run")
    )
    return server


def _start_iggy(demo: Demo, stack: contextlib.ExitStack) -> EmbeddedServer:
    from framework.iggy.embedded.launcher import EmbeddedServer, EmbeddedServerError  # noqa: PLC0415

    try:
        return stack.enter_context(EmbeddedServer.start(demo.iggy))
    except EmbeddedServerError as error:
        raise FatalError(str(error)) from error


def _write_configs(demo: Demo, server: Any) -> None:
    # JSON's rules for a string are TOML's too; `${` would mean a variable.
    url = json.dumps(f"embedded:{demo.iggy.absolute()}", ensure_ascii=False).replace("${", "$${")
    for name in FORMATS:
        text = _CONFIG.format(
            format=name,
            topic=topic_of(name),
            section=demo.store.section(server, f"{name}/").strip(),
            stream=STREAM,
            url=url,
            engine=demo.engine,
        )
        demo.config(name).write_text(text, encoding="utf-8")


# ---- sending


def _run_source(demo: Demo, iggy: EmbeddedServer, name: str, objects: int) -> None:
    """Run the source of a format.

    Raises:
        KeyboardInterrupt: it was stopped.
    """
    from framework.cli.run import run_engine  # noqa: PLC0415
    from framework.cli.terminal import Output  # noqa: PLC0415

    config = _read_config(demo, name)
    with connected(iggy) as connection:
        before = sum(held(connection, name).values())
    began = time.monotonic()
    with Output(level="warning") as output:
        last = run_engine(demo.store.task_class, config, output, Flags(once=True))
    seconds = time.monotonic() - began
    complete = bool(last.listings) and last.objects == last.objects_total
    if complete and not last.records and not last.objects_opened:
        done = f"nothing to send: {objects} of {objects} objects are done, and none was opened"
    else:
        done = f"{last.records:>7,} flights sent in {seconds:.1f} s"
        done += f", behind the {before:,} of an earlier run" if before else ""
        done += "" if complete else "; stopped"
    say(f"   {name:<8} -> {topic_of(name):<16} {done}")
    if not complete or last.state == "stopped":
        raise KeyboardInterrupt


def _read_config(demo: Demo, name: str) -> SourceCommonConfig:
    """Return the configuration of a source as the demo wrote it: a variable may name another server than the demo's."""
    from framework.cli.run import config_class_of  # noqa: PLC0415
    from framework.config.loading import load_config  # noqa: PLC0415

    return load_config(demo.config(name), config_class_of(demo.store.task_class), environment={})


def _wait(demo: Demo, server: Any, iggy: EmbeddedServer) -> None:
    """Wait for Ctrl-C.

    Raises:
        StoreUnavailableError: the store's server has ended.
        IggyUnavailableError: Iggy's has.
    """
    say("", "Both servers are running. Ctrl-C ends them.")
    way = f"run the demo again, which goes on with what is there: {again(demo, '--keep')}"
    with contextlib.suppress(KeyboardInterrupt):
        while not (server.has_ended() or iggy.has_ended()):
            time.sleep(_LOOK_SECONDS)
        if iggy.has_ended():
            raise IggyUnavailableError(f"the demo's Iggy server at {iggy.host}:{iggy.port} has ended: {way}")
        what = f"the demo's {demo.store.title} server ({demo.store.server_title}) at {server.endpoint}"
        raise StoreUnavailableError(f"{what} has ended: {way}")


# ---- the process


def _interrupt_on_signals() -> None:
    """End the demo as on Ctrl-C, servers included, on SIGTERM, and on SIGHUP when its terminal is closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # else it is under nohup, and is to go on
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder: one demo at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FatalError(f"another demo is at work in the folder {folder}: end it, or use --folder") from None
        yield
