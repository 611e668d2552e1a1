"""The S3 source for `spark-submit`, which says where it runs: spark-submit examples/spark_submit.py --config examples/s3.toml."""

import sys

from framework.cli import run
from s3_source.task import S3SourceTask

sys.exit(run("s3_source", S3SourceTask))
