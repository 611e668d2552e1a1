"""The engine on Spark: executors read and send; DataFrames for notebooks.

    jvm       finds Java, starts the driver's JVM, forwards its output
    session   the active context, or a new one
    packages  ships the framework's packages to executors, checks others there
    failure_messages  meaning of Java exceptions
    executor  the executor's side: one task over its objects
    driver    the driver's side of an epoch: assigns objects, follows the offsets topic, takes the jobs' results
    engine    the whole run
    listing_waves  a bucket's listing on the executors; `range_batch` is their side
    frames    `list_objects` and `read_records`

Importing this package loads no Spark; the first call does.
"""

from __future__ import annotations

from framework.engine.spark.frames import list_objects, read_records

__all__ = ["list_objects", "read_records"]
