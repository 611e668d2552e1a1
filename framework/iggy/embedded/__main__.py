"""The command line of the embedded server."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path

from framework.iggy.embedded.notices import warn
from framework.iggy.embedded.segment import DamagedSegmentError
from framework.iggy.embedded.service import PASSWORD_FILE, FolderInUseError, Service
from framework.model.open_files import allow_open_files

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_IN_USE = 3
_MAX_PORT = 65_535
PASSWORD_VARIABLE = "IGGY_EMBEDDED_PASSWORD"  # noqa: S105 - the name of a variable


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text} is no port: 0 to {_MAX_PORT}")
    return port


def main(arguments: list[str] | None = None) -> int:
    """Serve until stopped; return the exit code: 0 stopped, 1 failed, 2 usage, 3 the folder is in use."""
    parser = argparse.ArgumentParser(
        prog="python -m framework.iggy.embedded",
        description="A small Iggy server for development and tests: loopback only, messages survive kill -9. The password is "
        f"that of the variable {PASSWORD_VARIABLE}, or else the one in the folder's file {PASSWORD_FILE}, made at random.",
    )
    parser.add_argument("path", type=Path, help="data folder, made when missing")
    parser.add_argument("--host", default="127.0.0.1", help="loopback address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8090, help="port, 0 for any free one (default: %(default)s)")
    parser.add_argument("--username", default="iggy", help="the only user (default: %(default)s)")
    parser.add_argument("--no-sync", action="store_true", help="faster: messages survive kill -9, not a power cut")
    parser.add_argument("--owned", action="store_true", help="end when standard input has ended and no client is left")
    options = parser.parse_args(arguments)
    service = Service(
        options.path.absolute(),
        username=options.username,
        password=os.environ.get(PASSWORD_VARIABLE) or None,
        sync=not options.no_sync,
    )
    service.install_signals()
    allow_open_files()  # one file per partition that is written to
    try:
        service.run(options.host, options.port, owner_fd=sys.stdin.fileno() if options.owned else None)
    except FolderInUseError as exc:
        warn(str(exc))
        return EXIT_IN_USE
    except ValueError as exc:
        warn(str(exc))
        return EXIT_USAGE
    except (OSError, DamagedSegmentError) as exc:
        way = "; --port names another" if getattr(exc, "errno", None) == errno.EADDRINUSE else ""
        warn(f"The embedded server cannot serve {options.path}: {exc}{way}")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
