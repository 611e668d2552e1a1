r"""Property files as Java reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.java_properties import parse_properties


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b", {"a": "b"}),
        ("a : b=c", {"a": "b=c"}),
        ("a b c", {"a": "b c"}),
        ("a\tb", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("  a=b", {"a": "b"}),
        ("# a=b\n! c=d\n\n   \n   # e\na=b", {"a": "b"}),
        ("a=b#c", {"a": "b#c"}),
        ("a=b\\\n   c\\\n\td", {"a": "bcd"}),
        ("a=b\\\n#c=d", {"a": "b#c=d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n", {"a": "b"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a=\\u00e4\\t\\n\\q", {"a": "ä\t\nq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=b\\\r\n c", {"a": "bc"}),
        ("template={{topic}}-{{partition}}", {"template": "{{topic}}-{{partition}}"}),
        ("", {}),
    ],
)
def test_lines(text, values):
    assert parse_properties(text.encode()) == (values, [])


def test_the_last_of_several_counts_and_is_told():
    assert parse_properties(b"a=1\nb=2\na=3\na=4") == ({"a": "4", "b": "2"}, ["a"])


def test_a_file_that_is_no_utf8_is_iso_8859_1():
    assert parse_properties(b"a=\xe4")[0] == {"a": "ä"}
    assert parse_properties(b"\xef\xbb\xbfa=\xc3\xa4")[0] == {"a": "ä"}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uxyzw", "b=1\n\na\\u=1"])
def test_a_broken_escape_names_its_line(text):
    with pytest.raises(ValueError, match=rf"line {text.count(chr(10)) + 1}: .*four hexadecimal digits"):
        parse_properties(text.encode())


def escaped(text, *, name):
    """The text as `java.util.Properties.store` writes it."""
    special = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "#": "\\#", "!": "\\!"}
    special |= {"=": "\\=", ":": "\\:"}
    out = ""
    for at, char in enumerate(text):
        if char == " ":
            out += "\\ " if name or at == 0 else " "
        elif char in special:
            out += special[char]
        elif " " < char < "\x7f":
            out += char
        else:
            out += "".join(f"\\u{unit:04X}" for unit in units(char))
    return out


def units(char):
    data = char.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.dictionaries(texts.filter(bool), texts, max_size=5), st.sampled_from(["\n", "\r\n", "\\\n  x\n"]))
def test_what_java_writes_is_read_as_it_was(values, end):
    tail = "x" if end.startswith("\\") else ""
    text = "".join(f"{escaped(name, name=True)}={escaped(value, name=False)}{end}" for name, value in values.items())
    assert parse_properties(text.encode())[0] == {name: value + tail for name, value in values.items()}


@given(st.binary(max_size=200).filter(lambda data: b"\\u" not in data))
def test_any_bytes_are_values(data):
    values, repeated = parse_properties(data)
    assert set(repeated) <= set(values)
