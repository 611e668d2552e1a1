"""The program: options, commands, exit codes. The `__main__` of each source calls `run`.

Exit codes: 0 done, 1 try again, 2 configuration, 3 a person must act. `framework.errors` has the code of
each error.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.main import get_command

from framework.cli.config import config_app
from framework.cli.config_file import ConfigOption, Flags, SetOption, path_option
from framework.cli.convert import convert
from framework.cli.dead_letter_commands import dead_letter_app
from framework.cli.error_reporter import ErrorReporter
from framework.cli.offsets_commands import offsets_app
from framework.cli.plan import plan, status
from framework.cli.program import Program
from framework.cli.read import read
from framework.cli.run import load_source, run_source, wants_json
from framework.cli.streams import ReaderGoneError, standard_streams
from framework.errors import EXIT_DONE, EXIT_TRY_AGAIN, ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from framework.task import AbstractSourceTask

OnceOption = Annotated[bool, typer.Option("--once", help="Send everything there is now, then end.")]
TakeOverOption = Annotated[
    bool, typer.Option("--take-over", help="Start although another instance of the source is at work; that one ends.")
]
StandbyOption = Annotated[
    bool,
    typer.Option("--standby", help="Wait while another instance of the source is at work; take over when it ends."),
]


def _show_versions(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from framework.cli.version import version_lines  # noqa: PLC0415 - loads the worker, which knows its version

        sys.stdout.write("".join(f"{line}\n" for line in version_lines(str(context.info_name))))
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version",
        is_eager=True,
        callback=_show_versions,
        help="Show the versions of the program and of its packages.",
    ),
]
ChannelOption = Annotated[int | None, typer.Option(hidden=True)]
LogSourceOption = Annotated[str, typer.Option(hidden=True)]
ContentOption = Annotated[bool, typer.Option(hidden=True)]


def run(
    program: str,
    task_class: type[AbstractSourceTask],
    arguments: Sequence[str] | None = None,
    *,
    demo: Callable[..., int] | None = None,
    command: str | None = None,
) -> int:
    """Run the program and return its exit code. A failure is one sentence on stderr, never a traceback.

    With `[log] format = "json"` in the configuration, a run reports the failure as a JSON line.

    Args:
        program: its name, `s3_source`.
        task_class: the source.
        arguments: by default those of the process.
        demo: the command `demo`, for a source that has one.
        command: how a user starts it; by default `python -m PROGRAM`.
    """
    _raise_on_interrupt()
    command = command or f"python -m {program}"
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    reporter = ErrorReporter(file_as_command=_file_as_command(arguments))
    started = Program(
        name=program, command=command, task_class=task_class, has_demo=demo is not None, reporter=reporter
    )
    try:
        with standard_streams(), reporter.log_written():
            code = commands(demo)(args=arguments, prog_name=command, standalone_mode=False, obj=started)
    except typer.Abort as abort:
        # typer takes every EOFError for a question without an answer
        if isinstance(abort.__cause__, EOFError):
            return reporter.ended(abort.__cause__)
        return EXIT_INTERRUPTED if isinstance(abort.__context__, KeyboardInterrupt) else EXIT_TRY_AGAIN
    except ReaderGoneError:
        return EXIT_DONE
    except SystemExit as error:  # how typer ends, without a word, on a broken pipe that is not stdout
        return reporter.ended(error.__context__ if isinstance(error.__context__, OSError) else SourceError(error.code))
    except BaseException as error:  # noqa: BLE001 - the last one who can say it; a panic of Iggy's client is no Exception
        # before typer runs a command, where it does the same; until Python 3.11 the cause of an error while a class is made
        interrupted = isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
        return EXIT_INTERRUPTED if interrupted else reporter.ended(error)
    return code if isinstance(code, int) else EXIT_DONE


def _file_as_command(arguments: Sequence[str]) -> str:
    """Return the first argument that names a TOML file without its option; empty if there is none."""
    if {"init", "convert"} & set(arguments):  # these take a file as it is
        return ""
    for before, argument in itertools.pairwise(("", *arguments)):
        if argument.endswith(".toml") and not before.startswith("-") and not argument.startswith("-"):
            return argument
    return ""


def _raise_on_interrupt() -> None:
    """Let Ctrl-C raise again; while the modules load, `__main__` leaves it to the system."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ends, as shells have it."""


@functools.cache
def commands(demo: Callable[..., int] | None) -> Callable[..., object]:
    """Return what runs the commands of `make_app`. It is made once: that takes as long as reading a configuration."""
    return get_command(make_app(demo))


def make_app(demo: Callable[..., int] | None = None) -> typer.Typer:
    """Return the commands of a source; they need a `Program` as the object of their context."""
    app = typer.Typer(
        help="Reads cloud storage and writes every record to Apache Iggy, once and in order.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(main)
    for command in (check, plan, status, read, worker, convert):
        app.command()(command)
    app.add_typer(config_app, name="config")
    app.add_typer(offsets_app, name="offsets")
    app.add_typer(dead_letter_app, name="dead-letter")
    if demo is not None:
        app.command(name="demo")(demo)
    return app


def main(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    once: OnceOption = False,
    take_over: TakeOverOption = False,
    standby: StandbyOption = False,
    _: VersionOption = False,
    channel: ChannelOption = None,
    log_source: LogSourceOption = "",
    content_on_stdin: ContentOption = False,
) -> int | None:
    """Run the source until it is stopped, or run a command."""
    program: Program = context.obj
    reporter, task_class = program.reporter, program.task_class
    program.config, program.settings, reporter.source = config, tuple(settings or ()), log_source
    if channel is not None:
        from framework.runtime.child_channel import ChildChannel  # noqa: PLC0415 - in a worker's process only

        reporter.channel = ChildChannel(channel)
    if content_on_stdin:
        program.layers = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - the worker's own bytes
    flags = Flags(once=once, take_over=take_over, standby=standby)
    if context.invoked_subcommand is not None:
        if flags.given:
            raise ConfigError(_misplaced(flags.given, context.invoked_subcommand))
        return None
    file = program.choose(config, None)
    reporter.json = wants_json(task_class, file.path, file.settings, file.layers)
    if standby and take_over:
        raise ConfigError(
            "--standby, --take-over: one waits for the other instance, one ends it; leave one of the two out"
        )
    found = load_source(task_class, file).config
    reporter.json = found.log.format == "json"  # also that of a pipe
    if found.http.enabled and channel is None:
        from framework.cli.worker import run_with_api  # noqa: PLC0415 - only when it is switched on

        return run_with_api(program.name, task_class, file, found, flags=flags.given)
    return run_source(task_class, found, flags, channel=reporter.channel, log_source=log_source)


def check(context: typer.Context, config: ConfigOption = None, settings: SetOption = None) -> int:
    """Check what a run needs. Prints a line each for configuration, engine, bucket, selection, Iggy and more."""
    from framework.cli.check import check_source  # noqa: PLC0415 - loads what a run does

    program: Program = context.obj
    return check_source(program.task_class, program.choose(config, settings))


def worker(
    context: typer.Context,
    config_dir: Annotated[Path, path_option(help="Folder of configuration files, one for each source.")],
    config: Annotated[
        Path | None, path_option("--config", "-c", help="TOML file of the worker: [http] and [log].")
    ] = None,
    settings: SetOption = None,
    state_dir: Annotated[Path | None, path_option(help="Folder for paused states and configuration versions.")] = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Each source waits while another instance of it is at work, and takes over."),
    ] = False,
) -> int:
    """Run all sources of a folder, and answer an HTTP API. Each source has its own process."""
    from framework.cli.worker import read_worker_config, run_worker  # noqa: PLC0415 - loads the supervisor

    program: Program = context.obj
    path, overrides = config or program.config, program.overrides(settings)
    program.reporter.json = wants_json(program.task_class, path, overrides)
    own = read_worker_config(path, overrides)
    program.reporter.json = own.log.format == "json"
    return run_worker(program.name, program.task_class, config_dir, own, state_dir=state_dir, standby=standby)


def _misplaced(flags: Sequence[str], command: str) -> str:
    """Return why options of a run cannot stand before a command, which would not follow them."""
    way = "write --standby behind it" if (*flags, command) == ("--standby", "worker") else "leave it out"
    return f"{', '.join(flags)} before the command {command}: only a run without a command has it; {way}"
