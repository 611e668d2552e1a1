"""Which objects of a listing are read, and why not the others."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.config.globs import compile_globs
from framework.config.key_template import NameMatch
from framework.config.loading import structure
from framework.config.sections import SourceCommonConfig
from framework.discovery.object_filters import FilterReason, RoutedSelection, Selector, log_prefixes, table_log
from framework.discovery.routing import Router
from framework.errors import ConfigError
from framework.model.objects import NativeObject, TopicPartition

NOW = 1_717_200_000.0


def config(fmt="jsonl", template=None, **discovery):
    return structure(
        {
            "source": {"name": "o"},
            "input": {"format": fmt},
            "iggy": {"url": "iggy://u:p@h", "stream": "s", "topic": "t"},
            "naming": {"template": template} if template else {},
            "discovery": discovery,
        },
        SourceCommonConfig,
    )


def selector(fmt="jsonl", template=None, prefixes=(), **discovery):
    return Selector(config(fmt, template, **discovery), lambda: NOW, prefixes=prefixes)


def native(key, size=5, modified_ms=0):
    return NativeObject(scheme="s3", bucket="lake", key=key, size=size, version="v", modified_ms=modified_ms)


def decide(chooser, *keys, size=5):
    return [chooser.decide(native(key, size)) for key in keys]


def test_without_filters_every_object_is_read():
    keys = [
        "a",
        "b/c",
        "a b",
        "a+b",
        "%2F",
        "a//b",
        "a/./b",
        "a/../b",
        "\U0001f600",
        "x\ny",
        "k" * 1024,
        "a_b",
        "a.b",
        "a/b_",
    ]
    assert decide(selector(), *keys) == [NameMatch()] * len(keys)


def test_empty_objects_and_folder_marks_are_told_apart():
    assert decide(selector(), "a", "a/", "a_$folder$", size=0) == [
        FilterReason.EMPTY,
        FilterReason.FOLDER_MARK,
        FilterReason.FOLDER_MARK,
    ]
    assert decide(selector(), "a/") == [NameMatch()], "a name with a slash at its end may hold data"


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("_SUCCESS", True), ("a/_SUCCESS", True), ("a/.crc", True), (".a", True), ("_temporary/0/part-0", True),
        ("a/_delta_log/0.json", True), ("a/.hidden/b", True), ("..a", True), ("a/...", True),
        ("a/_day=1/b", False), ("_day=1/b", False), ("a/.day=1/b", True), ("_a/day=1", True),
        ("a/_day=1/_x", True), ("a/./b", False), ("a/../b", False), ("a_/b", False), ("a/b.c", False),
    ],
)  # fmt: skip
def test_hidden_names(key, hidden):
    assert decide(selector(), key) == [FilterReason.HIDDEN if hidden else NameMatch()]
    assert decide(selector(ignore_hidden=False), key) == [NameMatch()]


def test_hidden_parts_that_the_prefix_names_do_not_count():
    keys = ["_raw/a", "_raw/_a", "_raw/b/.c"]
    assert decide(selector(prefixes=["_raw/"]), *keys) == [NameMatch(), FilterReason.HIDDEN, FilterReason.HIDDEN]
    assert decide(selector(prefixes=["_ra"]), *keys) == [NameMatch(), FilterReason.HIDDEN, FilterReason.HIDDEN]
    assert decide(selector(prefixes=["a/_"]), "a/_x", "a/_x/_y") == [NameMatch(), FilterReason.HIDDEN]
    assert decide(selector(prefixes=["a/", "a/_b/"]), "a/_b/c", "a/_c/d") == [NameMatch(), FilterReason.HIDDEN]


def test_the_template_and_the_globs():
    chooser = selector(template="{{topic}}/{{partition}}.jsonl", exclude=["x/*"], include=["**/[0-4].jsonl"])
    assert decide(chooser, "a/1.jsonl", "a/b", "x/1.jsonl", "a/7.jsonl") == [
        NameMatch("a", 1),
        FilterReason.NOT_MATCHED,
        FilterReason.EXCLUDED,
        FilterReason.NOT_INCLUDED,
    ]
    assert {reason: n for reason, n in chooser.counts.items() if n} == {
        FilterReason.NOT_MATCHED: 1,
        FilterReason.EXCLUDED: 1,
        FilterReason.NOT_INCLUDED: 1,
    }
    chooser.begin_listing()
    assert not any(chooser.counts.values())


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.json", ["a.json", ".json"], ["b/a.json", "a.jsonl"]),
        ("**/*.json", ["a.json", "b/a.json", "b/c/a.json"], ["a.json.gz"]),
        ("logs/**", ["logs/", "logs/a", "logs/a/b"], ["logs", "logs2/a"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/xb", "ab"]),
        ("a**b", ["ab", "a/x/b"], ["a/x/c"]),
        ("x**/b", ["x/b", "xy/z/b"], ["xb"]),
        ("day-[0-9]?.csv", ["day-01.csv"], ["day-1.csv", "day-0/.csv"]),
        ("[!a]b", ["xb"], ["ab", "/b"]),
        ("[]a]b", ["]b", "ab"], ["b"]),
        ("[a/]b", ["ab"], ["/b"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("[ab", ["[ab"], ["a"]),
        ("a+(b).c", ["a+(b).c"], ["aab.c"]),
        ("*", ["a", "a\nb"], ["a/b"]),
        ("**", ["a", "a/b", "a\nb", ""], []),
        ("***", ["a/b"], []),
    ],
)  # fmt: skip
def test_globs(glob, yes, no):
    pattern = compile_globs([glob])
    assert [key for key in yes if not pattern.match(key)] == []
    assert [key for key in no if pattern.match(key)] == []


def segments_match(glob, parts):
    """An oracle that compares part by part: `**` is any number of parts, `*` one part."""
    if not glob:
        return not parts
    if glob[0] == "**" and len(glob) > 1:
        return any(segments_match(glob[1:], parts[n:]) for n in range(len(parts)))
    if glob[0] == "**":
        return bool(parts)
    return bool(parts) and (glob[0] in ("*", parts[0])) and segments_match(glob[1:], parts[1:])


@given(
    st.lists(st.sampled_from(["**", "*", "a", "b"]), min_size=1, max_size=4),
    st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5),
)
def test_globs_of_whole_parts_agree_with_an_oracle(glob, parts):
    assert bool(compile_globs(["/".join(glob)]).match("/".join(parts))) == segments_match(glob, parts)


def glob_matches(glob, key):
    """The same by all positions that can be reached, a token after the other."""
    reached, at = {0}, 0
    while at < len(glob):
        if glob.startswith("**/", at) and (at == 0 or glob[at - 1] == "/"):
            reached |= {n for n in range(1, len(key) + 1) if key[n - 1] == "/" and n > min(reached, default=len(key))}
            at += 3
        elif glob.startswith("**", at):
            reached = set(range(min(reached), len(key) + 1)) if reached else set()
            at += len(glob[at:]) - len(glob[at:].lstrip("*"))
        elif glob[at] == "*":
            reached = {end for n in reached for end in range(n, len(key) + 1) if "/" not in key[n:end]}
            at += 1
        else:
            wanted = glob[at]
            reached = {
                n + 1 for n in reached if n < len(key) and key[n] != "/" * (wanted == "?") and wanted in ("?", key[n])
            }
            at += 1
    return len(key) in reached


@given(
    st.lists(st.sampled_from(["a", "b", "/", "*", "**", "**/", "/**/", "?"]), max_size=14).map("".join),
    st.text(st.sampled_from("aab/"), max_size=16),
)
def test_globs_of_any_form_agree_with_an_oracle(glob, key):
    if glob:
        assert bool(compile_globs(["never", glob]).match(key)) == glob_matches(glob, key), (glob, key)


@pytest.mark.parametrize(
    ("glob", "key"),
    [
        ("**/*_*_*_*.csv", "_" * 1024),
        ("*a*a*a*a*a*a*b", "a" * 1024),
        ("**/a*/**/a*/**/a*/**/b", "a/" * 512),
        ("**a**a**a**a**b", "a" * 1024),
        ("**/*a*a*a*/**/*a*a*a*b", ("a" * 40 + "/") * 25),
        ("a**/**/*a*a?a*b", "a" * 1024),
        ("**/**/**/**/**/x", "/" * 1024),
    ],
)
def test_no_glob_is_slow_on_a_key_made_for_it(glob, key):
    pattern = compile_globs([glob])
    began = time.process_time()
    assert pattern.match(key) is None
    assert time.process_time() - began < 0.5


@given(st.text(max_size=15), st.text(max_size=15))
@example("[z-a]", "z")
def test_any_text_is_a_glob_or_named_as_none(glob, key):
    try:
        pattern = compile_globs([glob, "never"])
    except ValueError as exc:
        assert "is no valid glob" in str(exc)  # noqa: PT017  most texts are globs
    else:
        pattern.match(key)
        if not re.search(r"[*?\[]", glob):
            assert bool(pattern.match(key)) == (key in {glob, "never"})


def test_times_are_inclusive_and_by_the_given_clock():
    now_ms = int(NOW * 1000)
    chooser = selector(modified_after="now", min_age=0)
    assert chooser.decide(native("a", modified_ms=now_ms - 1)) is FilterReason.TOO_OLD
    assert chooser.decide(native("a", modified_ms=now_ms)) == NameMatch()
    chooser = selector(min_age="10s")
    assert chooser.decide(native("a", modified_ms=now_ms - 9_999)) is FilterReason.TOO_YOUNG
    assert chooser.decide(native("a", modified_ms=now_ms - 10_000)) == NameMatch()
    chooser = selector(modified_after="2024-06-01")
    assert chooser.decide(native("a", modified_ms=now_ms - 1)) is FilterReason.TOO_OLD
    assert chooser.decide(native("a", modified_ms=now_ms)) == NameMatch()


def test_ages_are_measured_from_the_beginning_of_a_listing():
    clock = [NOW]
    chooser = Selector(config(min_age="10s"), lambda: clock[0])
    young = native("a", modified_ms=int(NOW * 1000))
    assert chooser.decide(young) is FilterReason.TOO_YOUNG
    clock[0] += 10
    assert chooser.decide(young) is FilterReason.TOO_YOUNG
    chooser.begin_listing()
    assert chooser.decide(young) == NameMatch()


@pytest.mark.parametrize(
    ("key", "kind", "root"),
    [
        ("t/_delta_log/00.json", "Delta Lake", "t/"),
        ("_delta_log/_last_checkpoint", "Delta Lake", ""),
        ("a/t/.hoodie/hoodie.properties", "Hudi", "a/t/"),
        ("t/metadata/v3.metadata.json", "Iceberg", "t/"),
        ("metadata/00-x.metadata.json", "Iceberg", ""),
    ],
)
def test_the_keys_of_a_tables_log(key, kind, root):
    log = table_log(key)
    assert (log.kind, log.root) == (kind, root)


@pytest.mark.parametrize(
    "key", ["a/b", "my_delta_log/x", "a/_delta_log", "t/metadata/a/x.metadata.json", "t/x.metadata.json"]
)
def test_other_keys_are_no_log(key):
    assert table_log(key) is None


TABLES = [
    ["t/_delta_log/0.json", "t/part-0.parquet"],
    ["t/Year=1/p.parquet", "t/_delta_log/0.json"],
    ["t/data/a.parquet", "t/metadata/v1.metadata.json"],
    ["a/x.txt", "t/.hoodie/x", "t/day=1/p.parquet"],
]


@pytest.mark.parametrize("keys", TABLES)
@pytest.mark.parametrize("fmt", ["parquet", "auto"])
@pytest.mark.parametrize("ignore_hidden", [True, False])
def test_a_tables_files_are_refused_with_the_reason(keys, fmt, ignore_hidden):
    chooser = selector(fmt, ignore_hidden=ignore_hidden, exclude=["**/*.json", "**/*.txt", "**/.hoodie/*"])
    with pytest.raises(ConfigError, match=r"s3://lake/t/ is a table of (Delta|Hudi|Iceberg).*, and t/\S+\.parquet is"):
        decide(chooser, *keys)


@pytest.mark.parametrize("keys", TABLES)
def test_a_table_is_no_trouble_where_it_is_not_read_or_allowed(keys):
    decide(selector("jsonl"), *keys)
    decide(selector("parquet", allow_table_folders=True), *keys)
    decide(selector("auto", exclude=["t/**"]), *keys)
    decide(selector("auto", include=["u/**"]), *keys, "u/x.parquet")
    decide(selector("auto"), "t2/x.parquet", *[key for key in keys if "parquet" not in key], "t3/x.parquet")


def test_logs_that_were_looked_up_before_refuse_the_first_file():
    chooser = selector("parquet")
    assert log_prefixes(["t", "u/", ""]) == (
        "_delta_log/",
        ".hoodie/",
        "metadata/",
        "t/_delta_log/",
        "t/.hoodie/",
        "t/metadata/",
        "u/_delta_log/",
        "u/.hoodie/",
        "u/metadata/",
    )
    chooser.remember_logs(["t/metadata/v1.metadata.json", "t/metadata/snap.avro"])
    chooser.begin_listing()
    with pytest.raises(ConfigError, match="Iceberg"):
        decide(chooser, "t/data/a.parquet")


def test_a_bucket_of_left_out_tables_costs_bounded_memory():
    chooser = selector("auto", exclude=["**"])
    for number in range(1500):
        decide(chooser, f"t{number}/_delta_log/0.json", f"t{number}/p.parquet")
    assert len(chooser._tables) == 1000


def test_selection_and_route_in_one():
    conf = config(template="{{topic}}/{{key}}")
    chosen = RoutedSelection(Selector(conf), Router(conf))
    chosen.begin_listing()
    assert isinstance(chosen.partition_for(native("a/b")), TopicPartition)
    assert chosen.partition_for(native("b")) is None
    assert chosen.partition_for(native("a/_b")) is None
    assert chosen.filtered() == {"hidden": 1, "not matched by the template": 1}


def test_a_log_that_comes_after_files_of_other_folders_is_noticed_all_the_same():
    # ranges of keys are listed side by side: what comes just before a log need not be its neighbour
    chooser = selector("parquet")
    with pytest.raises(ConfigError, match=r"s3://lake/t/ is a table of Iceberg, and t/data/1\.parquet is"):
        decide(chooser, "t/data/1.parquet", "u/2.parquet", "v/3.parquet", "t/metadata/v1.metadata.json")


def test_a_bucket_of_many_folders_costs_bounded_memory_and_the_latest_ones_count():
    chooser = selector("auto")
    decide(chooser, *(f"{number:05}/p.parquet" for number in range(15_000)))
    assert len(chooser._folders) == 10_000
    decide(chooser, "05000/_delta_log/0.json")  # so long ago that it is forgotten
    with pytest.raises(ConfigError, match=r"05001/p\.parquet"):
        decide(chooser, "05001/_delta_log/0.json")


def test_a_file_far_below_a_table_is_refused_whichever_comes_first():
    with pytest.raises(ConfigError, match=r"lake/a/t/ is a table"):
        decide(selector("parquet"), "a/t/_delta_log/0.json", "a/t/x/y/z/1.parquet")
    chooser = selector("parquet")
    with pytest.raises(ConfigError, match=r"lake/a/t/ is a table"):
        decide(chooser, "a/t/x/y/z/1.parquet", "a/u/2.parquet", "a/t/_delta_log/0.json")


def test_the_folder_above_outlives_what_is_below_it():
    chooser = selector("auto")
    decide(chooser, *(f"t/{number:05}/p.parquet" for number in range(15_000)))
    with pytest.raises(ConfigError, match="lake/t/ is a table"):
        decide(chooser, "t/_delta_log/0.json")


def test_logs_without_number_cost_a_few_steps_each():
    """A hundred thousand made-up tables once took minutes: each was compared with all folders, and each file with all tables."""
    chooser = selector("auto", exclude=["**/*.json"])
    decide(chooser, *(f"a/{number}/p.parquet" for number in range(10_000)))
    started = time.process_time()
    for number in range(20_000):
        decide(chooser, f"b/{number}/_delta_log/0.json", f"c/{number % 100}/p.parquet")
    assert time.process_time() - started < 4, "steps for each log grow with the number of folders or logs"
