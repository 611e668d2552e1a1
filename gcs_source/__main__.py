"""`python -m gcs_source --config gcs.toml`: the program of the GCS source."""

from __future__ import annotations

from framework.cli import leave, run
from gcs_source.demo import demo
from gcs_source.task import GcsSourceTask

if __name__ == "__main__":
    leave(run("gcs_source", GcsSourceTask, demo=demo))
