"""`python -m tests.support.small_folds`: the program of the S3 source, which folds positions by the ten, not by ten thousands.

What is held at most is no option; a test of some hundred objects would never fold in mid-pass without this.
"""

from framework import coverage
from framework.cli import leave, run
from framework.engine import session, snapshots
from s3_source.task import S3SourceTask

coverage.PROVE_FROM = coverage.WAIT_FROM = 10
snapshots.FOLD_FROM = 5
snapshots.SETTLE_SECONDS = 1.0
session.SETTLE_SECONDS = 0.0

if __name__ == "__main__":
    leave(run("s3_source", S3SourceTask))
