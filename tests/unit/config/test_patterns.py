"""Regular expressions of a configuration: they match as Python's do, and their searches end."""

import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config import patterns
from framework.config.patterns import LimitedPattern

SOURCES = [
    *(
        r"^DE$",
        "timeout",
        r"error|fatal|panic",
        r"^[A-Z]{2}$",
        r"\d{4}-\d\d-\d\d",
        r"(?i)ERROR.*store",
        r"_at$",
        r"^\s*$",
    ),
    *(
        r"\s+$",
        r"(\w+)@(\w+)\.(com|org)",
        r"\bfoo\b",
        r"\B\w\B",
        r"^(?P<a>[^-]+)-(?P=a)$",
        r"(a)?(?(1)b|c)",
        r"a\Z",
        r"^$",
    ),
    *(
        r"(?s)a.b",
        "a.b",
        r"(?m)^b$",
        r"(?i)é",
        r"(?i)straße",
        r"(?a)\w+$",
        r"(?x) a # [ a comment" + "\n b",
        r"(?i:A)b",
    ),
    *(
        "user{id}",
        "{e}",
        "a{i}",
        "(?:foo){e}",
        "x{s<=1}",
        "{e<=1}",
        "a{,}b",
        "a{,2}b",
        "a{2,}",
        "{}",
        r"\{id\}",
        "[{]e}",
    ),
    *(
        "[[:alpha:]",
        "[]a]+",
        "[^]a]+",
        r"[\]a]",
        r"[\W_]+",
        r"[^\W\d]+",
        r"[\S ]x",
        r"[^\s]+",
        "[a^-]",
        "[a&|~]+",
        r"[\b]",
    ),
    *(
        "(?=a+)a",
        "(?!a)b",
        r"(?<=a)b",
        "(?<!a)b",
        "a+?",
        "(a|ab)(c|bcd)",
        "(?:a|a)*b",
        "(a*)*b",
        "(?#[)a",
        r"\x41\u00e9\101",
    ),
    *(
        r"\N{LATIN SMALL LETTER A}",
        r"\.\*",
        "",
        "()",
        "a|",
        "(|a)+",
        r"(a)\1",
        "\n$",
        "é",
        r"[à-þ]+",
        r"^.{3}$",
        "^.{3,5}$",
    ),
]
TEXTS = [
    *(
        "",
        "a",
        "b",
        "ab",
        "aab",
        "abcd",
        "A",
        "DE",
        "DE\n",
        "aa\n",
        "a\nb",
        "\n",
        "\n\n",
        " ",
        " a1_",
        "\t \x1c\x1f\x85\xa0",
    ),
    *(
        "é",
        "É",
        "e\u0301a",
        "STRASSE",
        "straße",
        "STRAßE",
        "\u017f",
        "K",
        "²x",
        "x²",
        "१२",
        "नमस्ते",
        "ab12 _é\n",
        "a_at",
        "foo bar",
    ),
    *(
        "x{e}",
        "a{i}",
        "xe",
        "{e}",
        "foo{e}",
        "user{id}",
        "userid",
        "{id}",
        "{",
        "}",
        "{}",
        "x{s<=1}",
        "{e<=1}",
        "[:a]",
        "a]",
    ),
    *(
        "a-a",
        "ann@shop.com",
        "2024-05-31",
        "error in the Store",
        "\b",
        "a&b|~",
        "abc",
        "abcde",
        "abcdef",
        "\U0001f600é",
        "\0",
        "A\u00e9A",
    ),
]


def outcome(found):
    return None if found is None else (found.span(), found.groups(), found.groupdict())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python warns of "[["
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("how", ["search", "fullmatch"])
def test_an_expression_matches_as_in_python(source, how, monkeypatch):
    plain, limited = re.compile(source), LimitedPattern(source)
    for short in (1000, -1):  # with each engine
        monkeypatch.setattr(patterns, "_SHORT", short)
        for text in TEXTS:
            assert outcome(getattr(limited, how)(text)) == outcome(getattr(plain, how)(text)), text


PIECES = st.sampled_from(
    [
        *"ab.^$|_-",
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        r"\W",
        r"\b",
        r"\B",
        "[ab]",
        "[^a]",
        r"[\w-]",
        r"[^\W_]",
        "(a|ab)",
        "(?:b|)",
        *("{e}", "a{i}", "{", "}", "[{]", "(?=a)", "(?<!b)", "é", r"\.", "[a&&b]", "(?i:A)"),
    ]
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{,2}", "{1,}"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(
    st.sampled_from(["", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?x)"]),
    st.lists(st.tuples(PIECES, REPEATS), min_size=1, max_size=5),
    st.lists(st.text(st.sampled_from("abAB_ -{}eiéÉ\n1&\u0301\x1c²"), max_size=8), min_size=1, max_size=5),
)
def test_any_expression_matches_as_in_python(flags, pieces, texts):
    source = flags + "".join(map("".join, pieces))
    try:
        plain = re.compile(source)
    except re.error:
        return
    limited = LimitedPattern(source)
    limited._is_cheap = False
    for text in texts:
        assert outcome(limited.search(text)) == outcome(plain.search(text)), (source, text)
        assert outcome(limited.fullmatch(text)) == outcome(plain.fullmatch(text)), (source, text)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("(a+?)+?b$", "a" * 60),
        ("(a|a)*$", "a" * 60 + "!"),
        (r"(.*?,){20}P", ",".join(map(str, range(60)))),
        (r"\s+$", " " * 200_000 + "x"),
    ],
)
def test_a_search_that_takes_too_long_ends_and_other_threads_run(source, text):
    pattern = LimitedPattern(source)
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(time.monotonic())

    other = threading.Thread(target=tick)
    other.start()
    began = time.process_time()
    with pytest.raises(TimeoutError, match=f"takes more than 0.5 seconds on a text of {len(text):,} characters"):
        pattern.search(text)
    assert time.process_time() - began < 5
    done.set()
    other.join()
    assert len(ticks) > 5

    began = time.process_time()
    with pytest.raises(TimeoutError):  # it is known
        pattern.search(text)
    assert time.process_time() - began < 0.2
    assert pattern.search("a") is None or source == "(a|a)*$"


def test_only_so_many_slow_texts_are_remembered(monkeypatch):
    monkeypatch.setattr("framework.config.patterns._REMEMBERED", 2)
    monkeypatch.setattr("framework.config.patterns._QUICK_SECONDS", 0.001)
    monkeypatch.setattr("framework.config.patterns.LIMIT_SECONDS", 0.001)
    pattern = LimitedPattern("(a|a)*$")
    for number in range(5):
        with pytest.raises(TimeoutError):
            pattern.search("a" * 60 + f"{number}")
        assert len(pattern._slow) <= 2


def test_a_long_text_has_more_time():
    text = "error at 12:30 in the store; " * 300_000
    assert LimitedPattern(r"[a-z]+\d").search(text) is None
    assert LimitedPattern("(b|c|store;).$").search(text) is not None


@pytest.mark.parametrize(
    "source", ["(", "*a", "a{99999999999}", "(?P<a>b)(?P<a>c)", r"\p{L}", r"a\K", "(" * 5000 + ")" * 5000]
)
def test_what_python_refuses_is_refused(source):
    with pytest.raises(ValueError):
        LimitedPattern(source)
