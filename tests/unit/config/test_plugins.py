"""A format or transform of others that fails is named; a lack of memory is none of its faults."""

import pytest

from framework.config.plugins import named_failure
from framework.errors import ConfigError
from framework.transforms import schemas

LOW = [MemoryError(), RuntimeError("can't start new thread")]


def test_a_part_that_fails_is_named_with_its_line():
    said = r"my_format failed with KeyError: 'x' \(.*test_plugins, line \d+, in "
    with pytest.raises(ConfigError, match=said), named_failure("my_format"):
        raise KeyError("x")


@pytest.mark.parametrize("error", LOW)
def test_low_memory_is_no_mistake_of_the_configuration(error, monkeypatch):
    with pytest.raises(type(error)) as caught, named_failure("my_format"):
        raise error
    assert caught.value is error

    def failing(*_):
        raise error

    monkeypatch.setattr(schemas, "_avro_schema", failing)
    with pytest.raises(type(error)):
        list(schemas._schema_errors("{}", None))


def test_an_error_that_is_its_own_cause_is_named():
    def load(first, second):
        try:
            raise first from second
        except ValueError as error:
            raise second from error

    said = r"mine failed with KeyError: 'b' \(\S*test_plugins, line \d+, in "
    with pytest.raises(ConfigError, match=said), named_failure("mine"):
        load(ValueError("a"), KeyError("b"))
