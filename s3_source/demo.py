"""The demo of the S3 source: SeaweedFS as the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from framework.cli.demo.demo_store import BUCKET, DemoStore
from framework.cli.demo.run import demo_command
from s3_source.task import S3SourceTask

if TYPE_CHECKING:
    from framework.testing.servers.seaweedfs import SeaweedFs


class S3DemoStore(DemoStore):
    """A real store that speaks S3, from the package index."""

    program = "s3_source"
    title = "S3"
    server_title = "SeaweedFS"
    scheme = "s3"
    task_class = S3SourceTask

    @override
    def start(self, folder: Path) -> SeaweedFs:
        from framework.testing.servers.seaweedfs import SeaweedFs  # noqa: PLC0415

        return SeaweedFs.start(folder)

    @override
    def command_line_mark(self, folder: Path) -> str:
        return f"-dir={folder / 'data'}"

    @override
    def fill(self, server: SeaweedFs, files: Mapping[str, Path]) -> int:
        from s3_source.demo_bucket import fill_bucket  # noqa: PLC0415 - loads boto3

        return fill_bucket(server.endpoint, server.access_key, server.secret_key, bucket=BUCKET, files=files)

    @override
    def section(self, server: SeaweedFs, prefix: str) -> str:
        return f"""
[s3]
bucket = "{BUCKET}"
prefix = "{prefix}"
endpoint = "{server.endpoint}"     # the local S3 server; leave it out for Amazon S3
region = "us-east-1"
access_key_id = "{server.access_key}"
secret_access_key = "{server.secret_key}"
"""


demo = demo_command(S3DemoStore())
