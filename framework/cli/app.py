"""The program: options, commands, exit codes. The `__main__` of each source calls `run`.

Exit codes: 0 done, 1 try again, 2 configuration, 3 a person must act. `framework.errors` has the code of
each error.
"""

from __future__ import annotations

import itertools
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.config import add_convert, config_app
from framework.cli.config_file import Choose, ConfigFile, ConfigOption, Flags, SetOption, path_option
from framework.cli.dead_letter_app import dead_letter_app
from framework.cli.error_reporter import ErrorReporter
from framework.cli.offsets_app import JsonOption, offsets_app
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
        from framework.cli.version import version_lines  # noqa: PLC0415 - each command loads what it needs

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
    app = make_app(program, task_class, reporter, demo=demo, command=command)
    try:
        with standard_streams(), reporter.log_written():
            code = app(args=arguments, prog_name=command, standalone_mode=False)
    except typer.Abort as abort:
        # typer takes every EOFError for a question without an answer
        return reporter.ended(abort.__cause__) if isinstance(abort.__cause__, EOFError) else EXIT_TRY_AGAIN
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

FORMER_IGNORE_OFFSETS = "--afresh"  # codespell:ignore afresh


def make_app(
    program: str,
    task_class: type[AbstractSourceTask],
    reporter: ErrorReporter | None = None,
    *,
    demo: Callable[..., int] | None = None,
    command: str = "",
) -> typer.Typer:
    """Return the commands of a source."""
    reporter = reporter or ErrorReporter()
    app = typer.Typer(
        name=program,
        help="Reads cloud storage and writes every record to Apache Iggy, once and in order.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    more = ", and the command demo needs none" if demo is not None else ""
    chosen = _choose(task_class, reporter, f"; the command config init writes one{more}")
    _add_run(app, program, task_class, reporter, chosen)
    _add_views(app, task_class, reporter, chosen)
    _add_worker(app, program, task_class, reporter)
    add_convert(app, command, task_class)
    app.add_typer(config_app(program, task_class, chosen, command=command), name="config")
    app.add_typer(offsets_app(task_class, chosen, reporter.warn), name="offsets")
    app.add_typer(dead_letter_app(task_class, chosen), name="dead-letter")
    if demo is not None:
        app.command(name="demo")(demo)
    return app


def _choose(task_class: type[AbstractSourceTask], reporter: ErrorReporter, ways: str) -> Choose:
    """Return what finds the configuration of a command; `ways`: how to get one."""

    def chosen(config: Path | None, settings: list[str] | None) -> ConfigFile:
        path = config or reporter.config
        if path is None:
            raise ConfigError(
                f"no configuration: add --config FILE, a TOML file with at least {_required_options(task_class)}{ways}"
            )
        return ConfigFile(path=path, settings=(*reporter.settings, *(settings or ())), layers=reporter.layers)

    return chosen


def _add_run(
    app: typer.Typer, program: str, task_class: type[AbstractSourceTask], reporter: ErrorReporter, chosen: Choose
) -> None:
    """Add the run of the source, which has no command."""

    @app.callback(invoke_without_command=True)
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
        reporter.config, reporter.settings, reporter.source = config, tuple(settings or ()), log_source
        if channel is not None:
            from framework.runtime.child_channel import ChildChannel  # noqa: PLC0415 - in a worker's process only

            reporter.channel = ChildChannel(channel)
        if content_on_stdin:
            reporter.layers = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - the worker's own bytes
        flags = Flags(once=once, take_over=take_over, standby=standby)
        if context.invoked_subcommand is not None:
            _refuse_flags(flags.given, context.invoked_subcommand)
            return None
        from framework.cli.run import read_config, run_source, wants_json  # noqa: PLC0415 - each command loads what it needs

        file = chosen(config, None)
        reporter.json = wants_json(task_class, file.path, file.settings, file.layers)
        if standby and take_over:
            raise ConfigError(
                "--standby, --take-over: one waits for the other instance, one ends it; leave one of the two out"
            )
        read = read_config(task_class, file)
        reporter.follow(read.log)
        if read.http.enabled and channel is None:
            from framework.cli.worker import run_with_api  # noqa: PLC0415 - only when it is switched on

            return run_with_api(program, task_class, file, read, flags=flags.given)
        return run_source(task_class, read, flags, channel=reporter.channel, log_source=log_source)


def _add_views(app: typer.Typer, task_class: type[AbstractSourceTask], reporter: ErrorReporter, chosen: Choose) -> None:
    """Add the commands that change nothing: `check`, `plan`, `status` and `read`."""

    @app.command()
    def check(config: ConfigOption = None, settings: SetOption = None) -> int:
        """Check what a run needs. Prints a line each for configuration, engine, bucket, selection, Iggy and more."""
        from framework.cli.check import check_source  # noqa: PLC0415

        return check_source(task_class, chosen(config, settings))

    @app.command()
    def plan(
        config: ConfigOption = None,
        settings: SetOption = None,
        ignore_offsets: Annotated[
            bool,
            typer.Option("--ignore-offsets", help="Plan as if nothing had been read, without a connection to Iggy."),
        ] = False,
        former: Annotated[bool, typer.Option(FORMER_IGNORE_OFFSETS, hidden=True)] = False,
        # Amazon S3 Standard in us-east-1, to a machine in the same region: others have other prices
        list_price: Annotated[float, typer.Option(help="US dollars for 1,000 LIST requests.", min=0)] = 0.005,
        get_price: Annotated[float, typer.Option(help="US dollars for 1,000 GET requests.", min=0)] = 0.0004,
        transfer_price: Annotated[float, typer.Option(help="US dollars for 10^9 bytes read.", min=0)] = 0.0,
        json: JsonOption = False,
    ) -> int:
        """Show what a run would read: objects, bytes, requests, cost. Lists the bucket, and changes nothing."""
        from framework.cli.plan import Prices, show_plan  # noqa: PLC0415

        if former:
            reporter.warn(f"plan {FORMER_IGNORE_OFFSETS}: now called plan --ignore-offsets")
        prices = Prices(list_per_1000=list_price, get_per_1000=get_price, transfer_per_gb=transfer_price)
        return show_plan(
            task_class,
            chosen(config, settings),
            prices=prices,
            ignore_offsets=ignore_offsets or former,
            as_json=json,
        )

    @app.command()
    def status(
        config: ConfigOption = None,
        settings: SetOption = None,
        no_list: Annotated[
            bool, typer.Option("--no-list", help="Do not list the bucket; the lag is not shown.")
        ] = False,
        json: JsonOption = False,
    ) -> int:
        """Show progress, lag, running instance and last save. Objects count as done, reading or failed."""
        from framework.cli.plan import show_status  # noqa: PLC0415

        return show_status(task_class, chosen(config, settings), no_list=no_list, as_json=json)

    @app.command()
    def read(
        config: ConfigOption = None,
        settings: SetOption = None,
        topic: Annotated[str, typer.Option(help="A topic other than the configured one.")] = "",
        partition: Annotated[
            int | None, typer.Option(help="Only this partition.", min=0, max=2**32 - 1, show_default=False)
        ] = None,
        offset: Annotated[int, typer.Option(help="First offset to read in each partition.", min=0, max=2**64 - 1)] = 0,
        limit: Annotated[int, typer.Option(help="Maximum number of records; 0 = all.", min=0)] = 0,
    ) -> int:
        """Write the records of the topic to stdout. One JSON line each: place, provenance, payload."""
        from framework.cli.read import read_records  # noqa: PLC0415

        return read_records(
            task_class,
            chosen(config, settings),
            topic=topic,
            partition=partition,
            offset=offset,
            limit=limit,
        )


def _add_worker(app: typer.Typer, program: str, task_class: type[AbstractSourceTask], reporter: ErrorReporter) -> None:
    """Add the command `worker`."""

    @app.command()
    def worker(
        config_dir: Annotated[Path, path_option(help="Folder of configuration files, one for each source.")],
        config: Annotated[
            Path | None, path_option("--config", "-c", help="TOML file of the worker: [http] and [log].")
        ] = None,
        settings: SetOption = None,
        state_dir: Annotated[
            Path | None, path_option(help="Folder for paused states and configuration versions.")
        ] = None,
        standby: Annotated[
            bool,
            typer.Option(
                "--standby", help="Each source waits while another instance of it is at work, and takes over."
            ),
        ] = False,
    ) -> int:
        """Run all sources of a folder, and answer an HTTP API. Each source has its own process."""
        from framework.cli.run import wants_json  # noqa: PLC0415
        from framework.cli.worker import read_worker_config, run_worker  # noqa: PLC0415

        path = config or reporter.config
        overrides = (*reporter.settings, *(settings or ()))
        reporter.json = wants_json(task_class, path, overrides)
        own = read_worker_config(path, overrides)
        reporter.follow(own.log)
        return run_worker(program, task_class, config_dir, own, state_dir=state_dir, standby=standby)


def _refuse_flags(flags: Sequence[str], command: str) -> None:
    """Refuse options of a run before a command, which would not follow them.

    Raises:
        ConfigError: there are some.
    """
    if flags:
        way = "write --standby behind it" if (*flags, command) == ("--standby", "worker") else "leave it out"
        raise ConfigError(
            f"{', '.join(flags)} before the command {command}: only a run without a command has it; {way}"
        )


def _required_options(task_class: type[AbstractSourceTask]) -> str:
    """Return the required options of a file, as text: `[source] name, [input] format`."""
    from framework.config.option import options_of, sections_of  # noqa: PLC0415 - only for a failure

    root = task_class.config_class
    sections = sections_of(root).items() if root is not None else ()
    return ", ".join(
        f"[{name}] {option}"
        for name, section in sections
        for option in (
            *getattr(section, "one_of", ())[:1],
            *(option.name for option in options_of(section) if option.required),
        )
    )
