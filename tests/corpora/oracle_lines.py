"""JSON lines, JSON arrays and CSV by Python's own modules.

Each oracle takes an object's bytes and returns its rows, `BAD` for a bad record, and whether the rest is unreadable.
"""

import codecs
import contextlib
import csv
import io
import json
import re

BAD = "a bad record"
BOM = b"\xef\xbb\xbf"

_space = re.compile(r"[ \t\r\n]*").match
_json_header = re.compile(r"\s*\{\s*\"").match
_scan = json.JSONDecoder(parse_int=float).raw_decode


def is_wide(data):
    """Return whether text is in UTF-16 or UTF-32: by its mark, or its first 16 bytes, which are characters of Latin-1."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return True
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        with contextlib.suppress(UnicodeDecodeError):
            if len(data) >= 8 and all(map(_of_text, data[:16].decode(encoding))):
                return True
    return False


def _of_text(character):
    return character in "\b\t\n\v\f\r\x1b" or " " <= character <= "\xff"


def jsonl(data):
    if is_wide(data):
        return [], True
    *ended, last = data.removeprefix(BOM).split(b"\n")
    lines = [*(line.removesuffix(b"\r") for line in ended), last]
    return [line if _is_json(line) else BAD for line in lines if line.strip()], False


def _is_json(text):
    try:
        value = json.loads(text.decode(), object_pairs_hook=list, parse_constant=_refuse, parse_int=float)
    except (ValueError, RecursionError):
        return False
    return is_text(value)


def _refuse(word):
    raise ValueError(word)


def is_text(value):
    """Return whether a value's texts can be UTF-8: not with half a surrogate pair."""
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def json_array(data):
    text = data.removeprefix(BOM).decode("utf-8", "surrogateescape").rstrip(" \t\r\n")
    at, rows = _space(text).end(), []
    if not text.startswith("[", at):
        return rows, at < len(text)
    begin = _space(text, at + 1).end()
    if text.startswith("]", begin):
        return rows, begin + 1 < len(text)
    while True:
        try:
            end = _scan(text, begin)[1]
        except (ValueError, RecursionError):
            return rows, True
        at = _space(text, end).end()
        if not text.startswith((",", "]"), at):
            return rows, True
        element = text[begin:end].encode("utf-8", "surrogateescape")
        rows.append(element if _is_json(element) else BAD)
        if text[at] == "]":
            return rows, at + 1 < len(text)
        begin = _space(text, at + 1).end()


def csv_rows(data, *, header, delimiter):
    if is_wide(data):
        return [], True
    text = data.removeprefix(BOM).decode("utf-8", "surrogateescape")
    read = []  # the lines of a row
    lines = (read.append(line) or line for line in io.StringIO(text, newline="\n"))
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    rows, names = [], None
    while True:
        read.clear()
        try:
            row = next(reader, None)
        except csv.Error as exc:
            if str(exc) == "unexpected end of data" or (header and names is None):
                return rows, True
            rows.append(BAD)
            if (read[-1].count('"') + (len(read) > 1)) % 2:  # it leaves a quote open
                return rows, True
            continue
        if row is None:
            return rows, False
        if row and header and names is None:
            names = row
            is_json = _json_header(row[0]) and row[-1].rstrip().endswith("}")
            if "\0" in "".join(row) or not is_text(row) or is_json or len(set(row)) < len(row):
                return rows, True
        elif row and (not is_text(row) or (header and len(row) != len(names))):
            rows.append(BAD)
        elif row:
            rows.append(dict(zip(names, row, strict=True)) if header else row)
