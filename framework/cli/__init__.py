"""The command line: one module for each command, and what they share."""

from __future__ import annotations

from framework.cli.app import run
from framework.leaving import leave

__all__ = ["leave", "run"]
