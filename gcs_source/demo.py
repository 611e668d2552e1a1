"""The demo of the GCS source: fake-gcs-server as the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.cli.demo.demo_store import BUCKET, DemoStore
from framework.cli.demo.run import demo_command
from gcs_source.task import GcsSourceTask

if TYPE_CHECKING:
    from framework.testing.servers.fake_gcs import FakeGcs


class GcsDemoStore(DemoStore):
    """A server that speaks GCS, from the package index."""

    program = "gcs_source"
    title = "GCS"
    server_title = "fake-gcs-server"
    scheme = "gs"
    task_class = GcsSourceTask

    @override
    def start(self, folder: Path) -> FakeGcs:
        from framework.testing.servers.fake_gcs import FakeGcs  # noqa: PLC0415

        return FakeGcs.start(folder)

    @override
    def command_line_mark(self, folder: Path) -> str:
        return str(folder)

    @override
    def fill(self, server: FakeGcs, files: Mapping[str, Path]) -> int:
        from gcs_source.demo_bucket import fill_bucket  # noqa: PLC0415 - loads Google's libraries

        return fill_bucket(server.endpoint, bucket=BUCKET, files=files)

    @override
    def section(self, server: FakeGcs, prefix: str) -> str:
        return f"""
[gcs]
bucket = "{BUCKET}"
prefix = "{prefix}"
endpoint = "{server.endpoint}"     # the local GCS server; leave it out for Google's
anonymous = true
"""


demo = demo_command(GcsDemoStore())
