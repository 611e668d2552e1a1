"""A configuration as others may see it: without its secrets, in types that JSON has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, time
from typing import Any

from framework.config.iggy_address import TOKEN_MARK, IggyAddress
from framework.config.loading import CONNECTOR_OPTIONS
from framework.config.option import options_of
from framework.config.substitution import REFERENCE
from framework.config.transform_registry import transform_class
from framework.errors import ConfigError
from framework.model.text import unicode_text

MASK = "***"
_TRANSFORMS = "transforms"
"""The list of transforms, which is no section."""

_LOGIN_OF_URL = re.compile(r"(?<=://).*(?=@)|(?<=token=)[^&]*", re.DOTALL)
_REFERENCES = re.compile(r"(\$\{(env|file):[^}]+\}|\s)*")


def shown_mapping(mapping: Mapping[str, Any], sections: Mapping[str, type]) -> dict[str, Any]:
    """Return the sections of a mapping, as they were written, for others to see.

    Values of secret options are masked, and so are values of unknown options: a misspelt `password` is one, too.
    References such as `${env:NAME}` are shown, they are no secrets.
    """
    return {
        name: plain(_shown_section(name, content, sections) if name in {*sections, _TRANSFORMS} else _masked(content))
        for name, content in mapping.items()
        if name not in CONNECTOR_OPTIONS
    }


def plain(value: object) -> Any:
    """Return the value in types that JSON has; infinity and dates become text."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, str):
        return unicode_text(value)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _shown_section(name: str, content: object, sections: Mapping[str, type]) -> Any:
    if name == _TRANSFORMS:
        return [*map(_shown_transform, content)] if isinstance(content, (list, tuple)) else _masked(content)
    if not isinstance(content, Mapping):
        return _masked(content)
    options = {option.name: option for option in options_of(sections[name])}
    shown_options: dict[str, Any] = {}
    for option, value in content.items():
        inner = f"{name}.{option}"
        if inner in sections:
            shown_options[option] = _shown_section(inner, value, sections)
        elif inner == "iggy.url":
            shown_options[option] = _masked_url(value)
        elif inner == "iggy.address":
            bare = not re.search(r"[@?]", str(value))
            shown_options[option] = value if bare and _is_address(f"iggy://{value}") else _masked(value)
        elif option not in options or options[option].secret:
            shown_options[option] = _masked(value)
        else:
            shown_options[option] = value
    return shown_options


def _shown_transform(entry: object) -> Any:
    if not isinstance(entry, Mapping):
        return _masked(entry)
    try:
        options = options_of(transform_class(str(entry.get("type"))).options_class)
    except (KeyError, ConfigError):
        options = ()
    shown_options = {"type", "enabled", *(option.name for option in options if not option.secret)}
    return {name: value if name in shown_options else _masked(value) for name, value in entry.items()}


def _masked(value: object) -> Any:
    if isinstance(value, Mapping):
        return {name: _masked(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return value if isinstance(value, str) and _REFERENCES.fullmatch(value) else MASK


def _masked_url(value: object) -> Any:
    """Return `[iggy] url` without its login; in one with a mistake anything may be a part of it."""
    if not isinstance(value, str) or not _is_address(value):
        return _masked(value)
    return _LOGIN_OF_URL.sub(MASK, value)


def _is_address(url: str) -> bool:
    """Return whether a URL, whose references may be anything, is that of an Iggy server, and says which part is its login."""
    try:
        known = REFERENCE.sub(lambda found: found[0] if found[1] is None else "1", url)
        host = IggyAddress.parse(known, with_login=True).host
    except ConfigError:
        return False
    return not host.startswith(TOKEN_MARK)


def has_mask(value: object, place: str = "") -> list[str]:
    """Return the places of values that hold the mask in place of a secret."""
    if isinstance(value, Mapping):
        return [found for name, inner in value.items() for found in has_mask(inner, f"{place}.{name}".lstrip("."))]
    if isinstance(value, list):
        return [found for inner in value for found in has_mask(inner, place)]
    masked = isinstance(value, str) and (value == MASK or f"//{MASK}@" in value or f"token={MASK}" in value)
    return [place] if masked else []
