"""No value of a configuration takes the square of its length: a body of the worker's API may have a megabyte.

`re` lets no other thread run while it searches, so a slow search stops every connector of a worker. With the square of the
length each value here took minutes.
"""

from __future__ import annotations

import contextlib
import time

import pytest

from framework.config.globs import compile_globs
from framework.config.kafka_connect import convert_properties
from framework.config.key_template import NameTemplate
from framework.config.masked_view import shown_mapping
from framework.config.option import sections_of
from framework.config.patterns import LimitedPattern
from framework.config.sections import SourceCommonConfig
from framework.config.substitution import Substitution, refers_to
from framework.errors import ConfigError
from s3_source.kafka_connect import OPTIONS

SECONDS = 10


@pytest.fixture(autouse=True)
def limit():
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


def repeated(text, size=1_000_000):
    return text * (size // len(text))


@pytest.mark.parametrize("begun", ["${", "${env:", "${$"])
def test_references_without_an_end(begun):
    text = repeated(begun)
    assert Substitution({}).apply(text, pytest.fail) == text.replace("$${", "${")
    assert not refers_to(text, "X")
    shown = shown_mapping({"iggy": {"url": f"iggy://u:word@h{text}"}}, sections_of(SourceCommonConfig))
    assert "word" not in shown["iggy"]["url"]


def test_a_reference_without_an_end_stays_with_what_follows_it():
    assert Substitution({"X": "1"}).apply("${env:X}${env:X $${\n$$${", pytest.fail) == "1${env:X ${\n$${"
    assert not refers_to("${env:X", "X")


@pytest.mark.parametrize("text", ["{{", "{{}", "}}{{", "{{a}}", "{{key}}"])
@pytest.mark.parametrize("regex", [False, True])
def test_placeholders(text, regex):
    with contextlib.suppress(ConfigError):
        NameTemplate.parse(repeated(text, 100_000), regex=regex)


def test_a_long_template_is_not_repeated_by_each_of_its_mistakes():
    with pytest.raises(ConfigError) as caught:
        NameTemplate.parse(repeated("{{a}}", 2000))
    assert {mistake.partition(";")[0] for mistake in caught.value.mistakes} >= {"template: unknown placeholder {{a}}"}


@pytest.mark.parametrize("text", ["[", "[!", "[a", "[]a]["])
def test_sets_without_an_end(text):
    glob = repeated(text, 100_000)
    pattern = compile_globs([glob])
    assert pattern is not None
    assert (pattern.match(glob) is not None) == ("]" not in text)  # then they mean themselves


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("text", ["[", r"\N{", r"[\N{a}", "(?#"])
def test_brackets_in_a_comment_of_a_regular_expression(text):
    assert LimitedPattern(f"(?x:\\w#{repeated(text, 100_000)}\n\\w)").fullmatch("ab") is not None


@pytest.mark.parametrize("text", ["${", "${a:", "${a"])
@pytest.mark.parametrize("end", ["", "}"])
def test_references_of_kafka_without_an_end(text, end):
    long = repeated(text) + end
    convert_properties({"name": "x", "aws.s3.prefix": long}, OPTIONS, section="s3")  # within the fixture's limit
