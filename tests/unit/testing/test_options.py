"""Configurations of tests: typed as authors write them."""

from typing import get_type_hints

import pytest

from framework import SourceCommonConfig
from framework.testing.fakes.memory_source import MemorySourceTask
from framework.testing.options import C, source_config


def test_the_config_class_of_a_task_is_taken_as_it_is_declared():
    """`config_class` of a task may be None for a type checker; the guide passes it on."""
    assert get_type_hints(source_config)["root"] == type[C] | None
    assert isinstance(source_config(MemorySourceTask.config_class), SourceCommonConfig)
    with pytest.raises(TypeError, match="the task names no config_class"):
        source_config(None)
