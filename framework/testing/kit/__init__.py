"""The conformance kit: laws that every source must keep, each proven to catch a source that breaks it.

A name is loaded when it is first used: a law starts an interpreter that needs little of this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.testing.kit.conformance import ConformanceLaws, check, check_all
    from framework.testing.kit.law import LAWS, SEED
    from framework.testing.kit.transforms import check_transform

__all__ = ["LAWS", "SEED", "ConformanceLaws", "check", "check_all", "check_transform"]


def __getattr__(name: str) -> object:
    """Load a name; `conformance` knows every law."""
    if name in __all__:
        home = "transforms" if name == "check_transform" else "conformance"
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
