"""The one door to Spark: the engine that reads and sends on executors, and DataFrames for notebooks.

    jvm       Java looked for, the driver's JVM and what it says
    session   the active context, or a new one
    packages  ours travel to the executors, the others are looked for there
    failures  what a Java exception means
    job       what an executor does: one task over its objects
    group     the driver's side of an epoch: hands out, follows the offsets topic
    engine    the whole run
    frames    `list_objects` and `read_records`

Importing this package loads no Spark; that begins with the first call.
"""

from __future__ import annotations

from framework.engine.spark.frames import list_objects, read_records

__all__ = ["list_objects", "read_records"]
