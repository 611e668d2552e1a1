"""The conformance kit: laws that every source must keep, each proven to catch a source that breaks it."""

from framework.testing.kit.conformance import SEED, ConformanceLaws, check, check_all
from framework.testing.kit.law import LAWS
from framework.testing.kit.transforms import check_transform

__all__ = ["LAWS", "SEED", "ConformanceLaws", "check", "check_all", "check_transform"]
