"""The configuration of a worker: its own file, beside the folder of its sources."""

from __future__ import annotations

from typing import ClassVar

import attrs

from framework.config.http_sections import HttpSection
from framework.config.option import option
from framework.config.sections import LogSection


@attrs.frozen(kw_only=True)
class WorkerHttpSection(HttpSection):
    """HTTP API of the worker, over all its sources."""

    enabled: bool = option(True, doc="Answer the HTTP API. Needs the extra `worker`.")  # noqa: FBT003


@attrs.frozen(kw_only=True)
class WorkerConfig:
    """The file that the option `--config` of the command `worker` names."""

    unknown_sections: ClassVar[str] = "known are http, log; what a source needs stands in its own file in --config-dir"
    """Advice for the sections of a source."""

    http: WorkerHttpSection = attrs.field(factory=WorkerHttpSection)
    log: LogSection = attrs.field(factory=LogSection)
