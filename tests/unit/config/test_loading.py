"""A configuration file: read strictly, and every mistake at once with its place."""

from __future__ import annotations

import enum
import pickle
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.layers import file_layers
from framework.config.loading import ConfigWarning, load, load_config, structure
from framework.config.option import Bytes, Moment, Seconds, nearest, option, options_of
from framework.config.values import (
    InvalidValueError,
    SubstitutedText,
    converted,
    parse_duration,
    parse_moment,
    parse_size,
)
from framework.errors import ConfigError
from s3_source.task import S3SourceTask


@attrs.frozen(kw_only=True)
class Store:
    bucket: str = option(doc="Bucket.", minimum=1)
    pages: int = option(1000, minimum=1, maximum=1000, doc="Pages.")
    wait: Seconds = option(5.0, minimum=0.1, doc="Wait.")
    memory: Bytes = option(1024, doc="Memory.")
    ratio: float = option(0.5, maximum=1, doc="Ratio.")
    style: str = option("auto", choices=("auto", "path"), doc="Style.", former_names={"kind": "Since 0.2."})
    strict: bool = option(True, doc="Strict.")
    password: str | None = option(None, secret=True, doc="Password.")
    since: Moment | None = option(None, doc="Since.")
    globs: tuple[str, ...] = option([], doc="Globs.")
    low: int = option(0, doc="Low.")
    high: int = option(9, doc="High.")

    def validate_options(self):
        if self.low > self.high:
            yield "low: must not be above high"
        if self.low == self.high:
            yield f"bucket: {self.bucket!r} has no room"
        if self.password == "letmein":
            yield f"password: {self.password} is everybody's"


@attrs.frozen(kw_only=True)
class Other:
    target: str | None = option(None, doc="Target.")


@attrs.frozen(kw_only=True)
class Root:
    store: Store
    other: Other = attrs.field(factory=Other)

    def validate_options(self):
        if self.other.target is None:
            yield "[other] target: missing"
        if self.other.target == self.store.bucket:
            yield "[other] target: must not be the bucket"


GOOD = {"store": {"bucket": "lake"}, "other": {"target": "t"}}


def read(environment=None, other=None, **store):
    mapping = {"store": {"bucket": "lake", **store}, "other": {"target": "t"} if other is None else other}
    return structure(mapping, Root, environment=environment or {})


def mistakes_of(mapping, **kwargs):
    with pytest.raises(ConfigError) as caught:
        structure(mapping, Root, **kwargs)
    return list(caught.value.mistakes)


def mistake(environment=None, **store):
    (only,) = mistakes_of(
        {"store": {"bucket": "lake", **store}, "other": {"target": "t"}}, environment=environment or {}
    )
    return only


def test_defaults_are_used_and_a_file_gives_the_same(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(
        '[store]\nbucket = "lake"\nglobs = ["a", "b"]\nwait = 3\nsince = 2024-05-31\n[other]\ntarget = "t"\n'
    )
    config = load_config(file, Root)
    assert config == read(globs=["a", "b"], wait="3s", since="2024-05-31T00:00:00Z")
    assert config.store.globs == ("a", "b")
    assert config.store.pages == 1000
    assert type(config.store.wait) is float


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbf" + b'[store]\nbucket = "lake"\n[other]\ntarget = "t"\n')
    assert load_config(file, Root).store.bucket == "lake"


def test_all_mistakes_of_a_file_come_in_one_error():
    found = mistakes_of(
        {
            "stor": {},
            "store": {"bukcet": "x", "pages": "many", "wait": "5 parsecs", "style": "pat", "low": 10, "strict": 1},
            "other": {},
        },
        origin="s3.toml",
    )
    assert found == [
        "[stor]: unknown section; did you mean [store]?",
        "[store] bukcet: unknown option; did you mean bucket?",
        "[store] bucket: missing",
        '[store] pages = "many": must be a whole number',
        '[store] wait = "5 parsecs": must be a duration such as "5s", "10ms", "2m" or "24h", or a number of seconds',
        '[store] style = "pat": must be "auto" or "path"; did you mean "path"?',
        "[store] strict = 1: must be true or false",
        "[store] low: must not be above high",
        "[other] target: missing",
    ]


def test_the_error_names_the_file_and_counts():
    with pytest.raises(ConfigError, match=r"^s3\.toml: 2 mistakes:\n  - \[store\]"):
        structure({"store": {"pages": 0}, "other": {"target": "t"}}, Root, origin="s3.toml")
    with pytest.raises(ConfigError, match=r"^s3\.toml: \[store\] bucket: missing$"):
        structure({"other": {"target": "t"}}, Root, origin="s3.toml")


def test_a_mistake_is_not_reported_again_by_a_check_that_needs_the_value():
    assert mistakes_of({"store": {"bucket": "lake", "low": "x"}, "other": {"target": "t"}}) == [
        '[store] low = "x": must be a whole number'
    ]
    assert mistakes_of({"store": {"bucket": "lake"}, "other": {"target": 5}}) == [
        "[other] target = 5: must be text in quotes"
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pages", True, "must be a whole number"),
        ("pages", 1.0, "must be a whole number"),
        ("pages", "5", "must be a whole number"),
        ("pages", 0, "must be 1 to 1,000"),
        ("pages", 1001, "must be 1 to 1,000"),
        ("bucket", 5, "must be text in quotes"),
        ("bucket", "", "must not be empty"),
        ("wait", True, "must be a duration"),
        ("wait", "5", "must be a duration"),
        ("wait", -1, "must be a duration"),
        ("wait", float("nan"), "must be a duration"),
        ("wait", "50ms", "must be at least 0.1 s"),
        ("memory", "5", "must be a size"),
        ("memory", "5 bananas", "must be a size"),
        ("memory", 1.5, "must be a size"),
        ("ratio", "x", "must be a number"),
        ("ratio", 1.5, "must be at most 1"),
        ("strict", "true", "must be true or false"),
        ("since", "yesterday", 'must be "now", or a date'),
        ("globs", "a", "must be a list in square brackets"),
        ("globs", ["a", 5], "every item must be text in quotes"),
    ],
)
def test_a_wrong_value_is_named_and_never_converted(name, value, said):
    assert f"[store] {name}" in mistake(**{name: value})
    assert said in mistake(**{name: value})


def test_long_values_are_shortened():
    assert len(mistake(pages="x" * 5000)) < 200


def test_an_option_of_another_section_and_one_near_nothing():
    assert mistakes_of({**GOOD, "other": {"target": "t", "pages": 3}}) == [
        "[other] pages: unknown option; pages belongs to [store]"
    ]
    assert mistakes_of({**GOOD, "qqqq": {}}) == ["[qqqq]: unknown section; known are store, other"]


def test_of_very_many_mistakes_the_first_are_named_and_all_are_counted():
    found = mistakes_of({**GOOD, "store": {**GOOD["store"], **{f"q{number}": 1 for number in range(250)}}})
    assert found[99].startswith("[store] q99: unknown option")
    assert found[100:] == ["... and at least 150 more mistakes"]


def test_an_unknown_section_with_a_dot_imports_nothing():
    assert mistakes_of({**GOOD, "this.one": {}}) == ["[this.one]: unknown section; known are store, other"]
    assert mistakes_of({**GOOD, "none.one": {}}) == ["[none.one]: unknown section; known are store, other"]
    assert "this" not in sys.modules
    assert mistakes_of({**GOOD, "store": 5}) == ["store: must be a section, [store]"]
    assert nearest("prefetch-objects", ["prefetch_objects", "format"]) == "prefetch_objects"
    assert nearest("Bucket", ["bucket"]) == "bucket"


def test_a_former_name_works_and_warns():
    with pytest.warns(ConfigWarning, match=r"\[store\] kind: now called style\. Since 0\.2\."):
        assert read(kind="path").store.style == "path"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "a former name of style" in mistake(kind="path", style="auto")


def test_files_that_are_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.toml", Root)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, Root)
    file = tmp_path / "bad.toml"
    file.write_text("[store]\nbucket = lake\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML: .*line 2, column 10"):
        load_config(file, Root)
    for value, said in ((5000 * "9", "more digits"), (5000 * "[", "nested too deep")):
        file.write_text(f"[store]\nsize = {value}\n")
        with pytest.raises(ConfigError, match=rf"bad\.toml: not valid TOML: .*{said}"):
            load_config(file, Root)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(file, Root)


def test_substitution_from_variables_and_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hun${env:NO}ter\n")
    config = read(
        {"A": "one", "N": "7", "T": "false", "W": "2m", "M": "4MB"},
        bucket="x-${env:A}-${env:A}",
        password=f"${{file:{secret}}}",
        pages="${env:N}",
        strict="${env:T}",
        wait="${env:W}",
        memory="${env:M}",
        globs=["${env:A}", "$${env:A}"],
    )
    assert config.store.bucket == "x-one-one"
    assert type(config.store.bucket) is str
    assert config.store.password == "hun${env:NO}ter"
    assert (config.store.pages, config.store.strict, config.store.wait, config.store.memory) == (
        7,
        False,
        120.0,
        4_000_000,
    )
    assert config.store.globs == ("one", "${env:A}")


def test_a_byte_order_mark_of_a_file_is_not_part_of_its_value(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"\xef\xbb\xbfhunter\xef\xbb\xbf\r\n")
    assert read(password=f"${{file:{secret}}}").store.password == "hunter\ufeff"


def test_substitution_mistakes_name_what_is_missing(tmp_path):
    assert mistake(bucket="${env:NOPE}") == "[store] bucket: the environment variable NOPE is not set"
    assert "cannot be read: No such file" in mistake(bucket=f"${{file:{tmp_path}/none}}")
    assert "must be ${env:NAME} or ${file:PATH}" in mistake(bucket="${NAME}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in mistake(bucket=f"${{file:{tmp_path}/binary}}")


def test_no_message_and_no_repr_shows_a_secret():
    environment = {"P": "hunter22"}
    assert mistake(environment, pages="${env:P}") == "[store] pages = ***: must be a whole number"
    assert mistake(environment, style="${env:P}") == '[store] style = ***: must be "auto" or "path"'
    assert mistake(password=12345678) == "[store] password = ***: must be text in quotes"
    assert mistake(password="letmein") == "[store] password: *** is everybody's"
    config = read(password="hunter22")
    assert "hunter22" not in repr(config)
    assert "password=***" in repr(config)


AWKWARD = [
    'quo"te\\SECRET',
    "two\nlines\tSECRET\x00",
    "it's a SECRET",
    "both ' and \" SECRET",
    "SECRET" * 20,
    "\u202eSECRET",
]


@pytest.mark.parametrize("secret", [*AWKWARD, "abc"])
def test_a_list_shows_no_text_from_elsewhere(secret):
    assert mistake({"P": secret}, globs=["a", "${env:P}", 5]).startswith(
        '[store] globs = ["a", "***", 5]: every item must'
    )


@pytest.mark.parametrize("secret", AWKWARD)
@pytest.mark.parametrize("beside", ["", "'", '"', "'\""])
def test_no_repr_in_a_message_shows_text_from_elsewhere(secret, beside):
    found = mistake({"P": secret}, bucket=f"{beside}${{env:P}}{beside}", low=9)
    assert "***" in found
    assert "SECRET" not in found


BASE = {
    "source": {"name": "x"},
    "s3": {"bucket": "lake", "region": "eu-west-1"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "iggy://iggy:iggy@h:1", "stream": "s", "topic": "t"},
}


def mistakes_of_source(secret, **sections):
    with pytest.raises(ConfigError) as caught:
        structure({**BASE, **sections}, S3SourceTask.config_class, environment={"P": secret})
    return caught.value.mistakes


@pytest.mark.parametrize("form", ["${env:P}", "events/${env:P}", "known${env:P}/{{key}}"])
@pytest.mark.parametrize(
    ("secret", "regex", "reason"),
    [
        ("{{hunter22}}", False, '[naming] template = "***": unknown placeholder '),
        ("{{hun-ter-22}}", False, '[naming] template = "***": unknown placeholder '),
        ("{{hun'ter22\"}}", False, '[naming] template = "***": unknown placeholder '),
        (
            "(?P<hunter22>a)(?P<hunter22>b)",
            True,
            '[naming] template = "***": no valid regular expression: redefinition of group name \'***',
        ),
        (
            "(?P<hu>a)(?P<hu>b)",
            True,
            '[naming] template = "***": no valid regular expression: redefinition of group name \'***',
        ),
        (
            "(?P=hunter22)",
            True,
            '[naming] template = "***": no valid regular expression: unknown group name \'***',
        ),
    ],
)
def test_no_piece_of_a_template_from_elsewhere_is_shown(form, secret, regex, reason):
    """A parser names what it does not know: a group, a placeholder."""
    (found,) = mistakes_of_source(secret, naming={"template": form, "regex": regex})
    assert found.startswith(reason)
    assert "hu" not in found


@pytest.mark.parametrize(
    ("secret", "transform", "reason"),
    [
        (
            "(?P=hunter22)",
            {"type": "filter", "field": "a", "value_pattern": {"regex": "${env:P}"}},
            "transforms[0].value_pattern.regex: is no regular expression: unknown group name '***",
        ),
        (
            '{"type": "hunter22"}',
            {"type": "avro_convert", "schema_json": "${env:P}"},
            "transforms[0].schema_json: is no Avro schema: it has the unknown ***",
        ),
    ],
)
def test_no_piece_of_an_option_of_a_transform_from_elsewhere_is_shown(secret, transform, reason):
    assert mistakes_of_source(secret, transforms=[transform]) == (reason,)


@pytest.mark.parametrize("secret", ["Bad Bucket", "B"])
def test_the_reason_stays_of_a_mistake_that_quotes_a_whole_value(secret):
    (found,) = mistakes_of_source(secret, s3={"bucket": "${env:P}", "region": "eu-west-1"})
    assert found.startswith("[s3] bucket: '***' cannot be a bucket's name (3 to 63 of a-z")


def test_a_mistake_beside_text_from_elsewhere_is_whole():
    found = mistakes_of_source("hunter22", naming={"template": "{{nothing}}/${env:P}"}, s3={"bucket": "{{nothing}}"})
    assert any(mistake.startswith("[s3] bucket: '{{nothing}}' cannot be") for mistake in found)


def test_a_long_text_from_elsewhere_with_many_mistakes_is_masked_at_once():
    found = mistakes_of_source("{{hunter22 a}}" * 7_000, naming={"template": "${env:P}"})
    assert len(found) == 101
    assert not any("hunter22" in mistake for mistake in found)


def test_a_bucket_that_is_an_address_shows_no_login():
    mapping = {"source": {"name": "x"}, "s3": {"bucket": "${env:B}"}}
    with pytest.raises(ConfigError) as caught:
        structure(mapping, S3SourceTask.config_class, environment={"B": "http://user:SECRET@host/lake"})
    assert "[s3] bucket: give the bare name, not an address" in caught.value.mistakes


def test_the_values_as_written_are_in_no_repr(tmp_path):
    path = tmp_path / "source.toml"
    path.write_text('[store]\nbucket = "lake"\npassword = "hunter22"\n[other]\ntarget = "t"\n')
    loaded = load(path, Root, environment={})
    assert loaded.merged.values["store"]["password"] == "hunter22"
    for shown in (loaded, loaded.merged, file_layers(path)):
        assert "hunter22" not in repr(shown)


def test_a_configuration_pickles():
    config = read(password="p", since="now")
    assert pickle.loads(pickle.dumps(config)) == config


def test_options_know_what_was_declared():
    options = {one.name: one for one in options_of(Store)}
    assert list(options)[:2] == ["bucket", "pages"]
    assert options["bucket"].required
    assert options["globs"].default == ()
    assert options["wait"].type_text == "duration"
    assert options["since"].type_text == "date"
    assert options["globs"].type_text == "list of texts"
    assert options["password"].secret


@given(st.integers(0, 10**6), st.sampled_from([("ms", 0.001), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)]))
def test_durations(amount, unit):
    assert parse_duration(f"{amount}{unit[0]}") == pytest.approx(amount * unit[1])
    assert parse_duration(amount) == amount


@given(st.integers(0, 10**6), st.sampled_from([("B", 1), ("kB", 1000), ("MB", 10**6), ("KiB", 1024), ("GiB", 2**30)]))
def test_sizes(amount, unit):
    assert parse_size(f"{amount}{unit[0]}") == amount * unit[1]
    assert parse_size(f"{amount} {unit[0]}") == amount * unit[1]
    assert converted(SubstitutedText(amount), Bytes) == amount


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_mistake(text):
    for kind in (Seconds, Bytes, Moment, int, float, bool):
        for value in (text, SubstitutedText(text)):
            try:
                converted(value, kind)
            except InvalidValueError:
                continue


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_value_with_more_digits_than_any_number_has_is_a_mistake(digits):
    long = digits * "9"
    for kind, text in ((Seconds, f"{long}s"), (Seconds, long), (Bytes, f"{long}MiB"), (Bytes, long), (int, long)):
        with pytest.raises(InvalidValueError):
            converted(SubstitutedText(text), kind)
    with pytest.raises(InvalidValueError):
        parse_duration(10**digits)


def test_moments_are_utc():
    assert parse_moment("now") == "now"
    assert parse_moment("2024-05-31") == "2024-05-31T00:00:00+00:00"
    assert parse_moment("2024-05-31T02:00:00+02:00") == "2024-05-31T00:00:00+00:00"
    assert parse_moment("2024-05-31T00:00:00Z") == "2024-05-31T00:00:00+00:00"


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+01:00"])
def test_a_moment_before_the_first_year_or_after_the_last_is_a_mistake(text):
    for value in (text, datetime.fromisoformat(text)):
        with pytest.raises(InvalidValueError, match='must be "now", or a date'):
            parse_moment(value)


class Color(enum.Enum):
    RED = "red"


Name = NewType("Name", str)


@attrs.frozen(kw_only=True)
class Own:
    """Types of an author's section that no shipped section has."""

    color: Color = option(Color.RED, doc="Color.")
    folder: Path = option(Path(), doc="Folder.")
    whatever: Any = option(None, doc="Whatever.")
    either: int | bool = option(0, doc="Either.")
    names: Mapping[str, str] = option(attrs.Factory(dict), doc="Names.")
    words: Sequence[str] = option((), doc="Words.")
    mode: Literal["fast", "safe", 3] | None = option(None, doc="Mode.")
    user: Annotated[str, "of the store"] = option("", doc="User.")
    group: Name | None = option(None, doc="Group.")
    amount: Decimal = option(Decimal(0), doc="Amount.")


@attrs.frozen(kw_only=True)
class OwnRoot:
    own: Own


def test_types_that_no_shipped_option_has():
    given = {"color": "red", "folder": "a/b", "whatever": [1, "x"], "either": True, "words": ["a"], "mode": "safe"}
    made = structure({"own": {**given, "user": "u", "group": "g", "amount": "1.5"}}, OwnRoot).own
    assert attrs.asdict(made) == {
        "color": Color.RED, "folder": Path("a/b"), "whatever": [1, "x"], "either": True, "names": {}, "words": ("a",),
        "mode": "safe", "user": "u", "group": "g", "amount": Decimal("1.5"),
    }  # fmt: skip
    wrong = {"color": "blue", "folder": 5, "either": "x", "words": "abc", "mode": True, "user": 5, "group": 5}
    with pytest.raises(ConfigError) as caught:
        structure({"own": {**wrong, "amount": "x"}}, OwnRoot)
    assert list(caught.value.mistakes) == [
        '[own] color = "blue": must be Color',
        "[own] folder = 5: must be Path",
        '[own] either = "x": must be a whole number or must be true or false',
        '[own] words = "abc": must be a list in square brackets',
        '[own] mode = true: must be "fast" or "safe" or 3',
        "[own] user = 5: must be text in quotes",
        "[own] group = 5: must be text in quotes",
        '[own] amount = "x": must be Decimal',
    ]


def test_types_that_no_shipped_option_has_have_names():
    texts = {each.name: each.type_text for each in options_of(Own)}
    assert (texts["words"], texts["mode"], texts["user"], texts["group"]) == (
        "list of texts", '"fast" or "safe" or 3', "text", "text",
    )  # fmt: skip


def test_an_own_type_takes_the_text_of_a_variable():
    environment = {"IGGY_SOURCE__OWN__USER": "5", "IGGY_SOURCE__OWN__GROUP": "true", "IGGY_SOURCE__OWN__WORDS": '["5"]'}
    own = load_config(None, OwnRoot, environment=environment).own
    assert (own.user, own.group, own.words) == ("5", "true", ("5",))
    mode = structure({"own": {"mode": "${env:MODE}"}}, OwnRoot, environment={"MODE": "fast"}).own.mode
    assert (mode, type(mode)) == ("fast", str)


def test_a_default_table_is_of_one_configuration_alone():
    first, second = (structure({"own": {}}, OwnRoot).own for _ in range(2))
    assert first.names == {}
    assert first.names is not second.names


@attrs.frozen(kw_only=True)
class One:
    low: int = option(0, doc="Low.")

    def validate_options(self):
        return "low: must be even"


@attrs.frozen(kw_only=True)
class OneRoot:
    one: One


def test_one_mistake_as_a_text_is_one_mistake():
    """An author wrote `return` in place of `yield`."""
    with pytest.raises(ConfigError) as caught:
        structure({"one": {"low": 1}}, OneRoot, environment={})
    assert list(caught.value.mistakes) == ["[one] low: must be even"]


def made_by(check):
    """Load a section whose `validate_options` is this function; return the mistakes."""

    @attrs.frozen(kw_only=True)
    class Checked:
        low: int = option(0, doc="Low.")
        validate_options = check

    root = attrs.make_class("CheckedRoot", {"one": attrs.field(type=Checked)}, frozen=True, kw_only=True)
    with pytest.raises(ConfigError) as caught:
        structure({"one": {"low": 1}}, root, environment={})
    return list(caught.value.mistakes)


def test_a_check_that_fails_is_named_with_its_line():
    def fails(section):
        yield "low: must be even"
        raise LookupError("no table")

    first, second = made_by(fails)
    assert first == "[one] low: must be even"
    assert re.fullmatch(
        r"\[one\] validate_options of \S+\.Checked failed with LookupError: no table \(\S+, line \d+, in fails\)",
        second,
    )


def test_a_check_that_returns_nothing_is_named():
    """An author gathered the mistakes, and forgot to return them."""
    (mistake,) = made_by(lambda section: None)
    assert mistake.endswith("Checked returned None; it must yield a text for each mistake")


def test_a_field_without_an_option_is_named():
    @attrs.frozen(kw_only=True)
    class Plain:
        low: int = option(0, doc="Low.")
        path: str = "data"
        made: str = attrs.field(init=False, default="")

    with pytest.raises(ConfigError, match=r"Plain: its field path is no option: write path: \.\.\. = option\("):
        options_of(Plain)
