"""`python -m tests.support.small_compactions`: the program of the S3 source, which compacts positions by the ten.

From how many on that is worth a snapshot is no option, and the order of the test's store is not documented: without this a test of
some hundred objects would compact nothing before its listing is over.
"""

from framework.cli import leave, run
from framework.iggy.offset_log import snapshots
from s3_source.client import S3Store
from s3_source.task import S3SourceTask

snapshots.COMPACT_FROM = 5
S3Store.order_is_documented = property(lambda _: True, lambda _, __: None)

if __name__ == "__main__":
    leave(run("s3_source", S3SourceTask))
