"""The one door to Spark: the engine that reads and sends on executors, and DataFrames for notebooks.

    session   the active session or a new one, our packages on its executors, Java looked for
    job       what an executor does: one task over its objects
    group     the driver's side of an epoch: hands out, follows the offsets topic
    engine    the whole run
    frames    `list_objects` and `read_records`

Importing this package loads no Spark; that begins with the first call.
"""

from __future__ import annotations

from framework.spark.frames import list_objects, read_records

__all__ = ["list_objects", "read_records"]
