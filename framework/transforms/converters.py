"""Converters: how a value becomes the bytes of a message. One of them may be the last transform."""

from __future__ import annotations

import base64
import binascii
from typing import cast

import attrs
import msgspec
import orjson
from typing_extensions import override

from framework.config.option import option
from framework.errors import RecordError
from framework.transforms.schemas import Conversion, Convert

_check = msgspec.json.Decoder(msgspec.Raw).decode
"""Skips through JSON of any size and with any numbers, as `jsonl` checks it."""


class Json(Conversion):
    """Send JSON: a payload that is JSON stays as it is; other text becomes a JSON string; other bytes are bad records."""

    name = "json"
    converts = True
    needs_modules = ("msgspec",)

    @override
    def make_convert(self) -> Convert:
        return _as_json


def _as_json(payload: bytes) -> bytes:
    text = _text_of(payload)
    try:
        _check(payload)
    except msgspec.DecodeError:
        return orjson.dumps(text)
    except RecursionError:
        raise RecordError("it is nested too deeply to check whether it is JSON (about 1,000 levels)") from None
    return payload


def _text_of(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise RecordError("it is no UTF-8 text") from None


class Text(Conversion):
    """Send text: a JSON string becomes its content; other text stays as it is; other bytes are bad records."""

    name = "text"
    converts = True

    @override
    def make_convert(self) -> Convert:
        return _as_text


def _as_text(payload: bytes) -> bytes:
    if payload.lstrip()[:1] == b'"':
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, str):
            return value.encode()
    _text_of(payload)
    return payload


@attrs.frozen(kw_only=True)
class RawOptions:
    """Options of `raw`."""

    encoding: str = option(
        "none",
        choices=("none", "base64"),
        doc='`"none"`: the bytes as they are. `"base64"`: the bytes that the payload, or the JSON string in it, encodes.',
    )


class Raw(Conversion):
    """Send bytes as they are, or decoded from base64."""

    name = "raw"
    options_class = RawOptions
    converts = True

    @override
    def make_convert(self) -> Convert:
        return _from_base64 if cast("RawOptions", self.options).encoding == "base64" else bytes


def _from_base64(payload: bytes) -> bytes:
    text = payload.strip()
    try:
        return base64.b64decode(orjson.loads(text) if text[:1] == b'"' else text, validate=True)
    except (binascii.Error, ValueError):
        raise RecordError("it is no base64") from None
