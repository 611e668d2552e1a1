"""Run the S3 source with `spark-submit examples/spark_submit.py --config examples/s3.toml`."""

from framework.cli import leave, run
from s3_source.task import S3SourceTask

if __name__ == "__main__":
    leave(run("s3_source", S3SourceTask))
