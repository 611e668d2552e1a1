"""`python -m s3_source --config s3.toml`: the program of the S3 source."""

from __future__ import annotations

from framework.cli import leave, run
from s3_source.demo import demo
from s3_source.task import S3SourceTask

if __name__ == "__main__":
    leave(run("s3_source", S3SourceTask, demo=demo))
