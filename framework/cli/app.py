"""The program: options, commands, exit codes. Every source's `__main__` calls `run`.

Exit codes: 0 done, 1 failed while running, 2 configuration.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framework.cli.dead_letter import dead_letter_app
from framework.cli.offsets import JsonOption, offsets_app
from framework.cli.prices import GET_PRICE, LIST_PRICE, TRANSFER_PRICE, Prices
from framework.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from framework.task import AbstractSourceTask

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The TOML file that describes the source.", show_default=False)
]
OnceOption = Annotated[bool, typer.Option("--once", help="Send everything there is now, then end.")]
TakeOverOption = Annotated[
    bool, typer.Option("--take-over", help="Start although another instance of the source is at work; that one ends.")
]


def run(
    program: str,
    task_class: type[AbstractSourceTask],
    arguments: Sequence[str] | None = None,
    *,
    demo: Callable[..., int] | None = None,
) -> int:
    """Runs the program and returns its exit code. One sentence on stderr tells of a failure, never a traceback.

    Args:
        program: how it was called, `s3_source`.
        task_class: the source.
        arguments: by default those of the process.
        demo: the command `demo`, for a source that has one.
    """
    app = make_app(program, task_class, demo=demo)
    try:
        code = app(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name=f"python -m {program}",
            standalone_mode=False,
        )
    except typer.Abort:
        return EXIT_FAILED
    except ConfigError as error:
        return fail(error, EXIT_CONFIGURATION)
    except SourceError as error:
        return fail(error, EXIT_FAILED)
    except BrokenPipeError:  # `... read | head`: the reader of our output has seen enough
        sys.stderr.close()
        return 0
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", EXIT_CONFIGURATION))
    return code if isinstance(code, int) else 0


def fail(error: BaseException, code: int) -> int:
    """Says what failed, in one sentence, and gives the exit code."""
    from framework.cli.output import printable  # noqa: PLC0415 - only for a failure

    text = "\n".join(printable(line) for line in str(error).split("\n"))
    sys.stderr.write(f"error: {text}\n")
    return code


def make_app(
    program: str, task_class: type[AbstractSourceTask], *, demo: Callable[..., int] | None = None
) -> typer.Typer:
    """The commands of one source."""
    app = typer.Typer(
        name=program,
        help="Reads cloud storage and writes every record to Apache Iggy, once and in order.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback(invoke_without_command=True)
    def main(
        context: typer.Context, config: ConfigOption = None, once: OnceOption = False, take_over: TakeOverOption = False
    ) -> int | None:
        """Runs the source until it is stopped; with a command, that instead."""
        context.obj = config
        if context.invoked_subcommand is not None:
            return None
        from framework.cli.run import run_source  # noqa: PLC0415 - each command loads what it needs

        return run_source(task_class, _required(config), once=once, take_over=take_over)

    @app.command()
    def check(context: typer.Context, config: ConfigOption = None) -> int:
        """Looks whether everything is ready: configuration, credentials, bucket, Iggy; one line each."""
        from framework.cli.check import check_source  # noqa: PLC0415

        return check_source(task_class, _required(config or context.obj))

    @app.command()
    def plan(
        context: typer.Context,
        config: ConfigOption = None,
        afresh: Annotated[bool, typer.Option("--afresh", help="As if nothing had been read; asks no Iggy.")] = False,
        list_price: Annotated[float, typer.Option(help="US dollars for 1,000 LIST requests.", min=0)] = LIST_PRICE,
        get_price: Annotated[float, typer.Option(help="US dollars for 1,000 GET requests.", min=0)] = GET_PRICE,
        transfer_price: Annotated[float, typer.Option(help="US dollars for 10^9 bytes read.", min=0)] = TRANSFER_PRICE,
        json: JsonOption = False,
    ) -> int:
        """Lists the bucket and says what a run would read: objects, bytes, requests, cost. Sends and writes nothing."""
        from framework.cli.plan import show_plan  # noqa: PLC0415

        prices = Prices(list_per_1000=list_price, get_per_1000=get_price, transfer_per_gb=transfer_price)
        return show_plan(task_class, _required(config or context.obj), prices=prices, afresh=afresh, as_json=json)

    @app.command()
    def status(
        context: typer.Context,
        config: ConfigOption = None,
        no_list: Annotated[
            bool, typer.Option("--no-list", help="Do not list the bucket; says nothing of the lag.")
        ] = False,
        json: JsonOption = False,
    ) -> int:
        """Says how far the source is: done, in progress, failed, lag; who runs it, and when it saved last."""
        from framework.cli.plan import show_status  # noqa: PLC0415

        return show_status(task_class, _required(config or context.obj), no_list=no_list, as_json=json)

    @app.command()
    def read(
        context: typer.Context,
        config: ConfigOption = None,
        topic: Annotated[str, typer.Option(help="Another topic than the configured one.")] = "",
        partition: Annotated[int | None, typer.Option(help="Only this partition.", min=0, show_default=False)] = None,
        offset: Annotated[int, typer.Option(help="Begin at this offset of each partition.", min=0)] = 0,
        limit: Annotated[int, typer.Option(help="End after so many records; 0 = all there are.", min=0)] = 0,
    ) -> int:
        """Writes the records of the topic to stdout, one JSON line each: where it is, its provenance, its payload."""
        from framework.cli.read import read_records  # noqa: PLC0415

        return read_records(
            task_class, _required(config or context.obj), topic=topic, partition=partition, offset=offset, limit=limit
        )

    app.add_typer(offsets_app(task_class, lambda context, config: _required(config or context.obj)), name="offsets")
    letters = dead_letter_app(task_class, lambda context, config: _required(config or context.obj))
    app.add_typer(letters, name="dead-letter")
    if demo is not None:
        app.command(name="demo")(demo)
    return app


def _required(config: Path | None) -> Path:
    if config is None:
        raise ConfigError("no configuration: add --config FILE (examples/s3.toml shows one), or try the command demo")
    return config
