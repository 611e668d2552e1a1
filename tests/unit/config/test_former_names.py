"""Options under the names that they had: they work, warn, and change nothing that is stored."""

from __future__ import annotations

import warnings

import pytest

from framework.config.loading import ConfigWarning, structure
from framework.config.option import options_of, sections_of
from framework.discovery.object_filters import selected_objects, selection_digest
from framework.errors import ConfigError
from gcs_source.task import GcsSourceConfig
from s3_source.task import S3SourceConfig

ROOTS = {"s3": S3SourceConfig, "gcs": GcsSourceConfig}

STORE = {
    "native_start_key": ("start_after", "in/a"),
    "connect_timeout_seconds": ("connect_timeout", "7s"),
    "read_timeout_seconds": ("read_timeout", 8),
    "retry_base_seconds": ("retry_base", "300ms"),
    "retry_cap_seconds": ("retry_cap", "9s"),
    "retry_budget_seconds": ("retry_budget", "2m"),
}
FORMER = {
    "s3": {**STORE, "role_duration_seconds": ("role_duration", "2h")},
    "gcs": STORE,
    "input": {"fetch_ahead": ("prefetch_objects", 5), "fetch_ahead_bytes": ("prefetch_bytes", "2MiB")},
    "discovery": {
        "late_arrival_window": ("allowed_lateness", "forever"),
        "full_pass_interval": ("full_listing_interval", "2h"),
    },
    "errors": {"max_skipped": ("max_bad_records", 7), "max_skipped_per_hour": ("max_bad_records_per_hour", 8)},
}
"""Section -> former name -> the name, and a value that is not the default."""

CASES = [(section, former, *new) for section, names in FORMER.items() for former, new in names.items()]


def config(section="s3", **options):
    store = section if section in ROOTS else "s3"
    mapping = {
        "source": {"name": "orders"},
        store: {"bucket": "lake"},
        "input": {"format": "jsonl"},
        "iggy": {"url": "iggy://u:p@h", "stream": "lake", "topic": "orders"},
    }
    if store == "s3":
        mapping[store]["role_arn"] = "arn:aws:iam::123456789012:role/reader"
    mapping[section] = {**mapping.get(section, {}), **options}
    return structure(mapping, ROOTS[store])


@pytest.mark.parametrize(("section", "former", "name", "value"), CASES)
def test_an_option_under_its_former_name_is_the_same_and_warns(section, former, name, value):
    new = config(section, **{name: value})
    assert new != config(section)
    with pytest.warns(ConfigWarning, match=rf"^\[{section}\] {former}: now called {name}\.$"):
        assert config(section, **{former: value}) == new


@pytest.mark.parametrize(("section", "former", "name", "value"), CASES)
def test_both_names_of_an_option_are_an_error(section, former, name, value):
    with pytest.raises(ConfigError) as caught:
        config(section, **{former: value, name: value})
    assert list(caught.value.mistakes) == [f"[{section}] {former}: a former name of {name}, which is there too"]


def test_every_former_name_is_tried_here():
    options = {
        (section, former, option.name)
        for root in ROOTS.values()
        for section, cls in sections_of(root).items()
        for option in options_of(cls)
        for former in option.former_names
    }
    assert options == {(section, former, name) for section, former, name, _ in CASES}


def test_no_duration_is_called_seconds():
    durations = {
        option.name
        for root in ROOTS.values()
        for cls in sections_of(root).values()
        for option in options_of(cls)
        if option.type_text.startswith("duration")
    }
    assert {"connect_timeout", "role_duration", "allowed_lateness"} <= durations
    assert not [name for name in durations if name.endswith("_seconds")]


# ---- [discovery] mode


def mode(value):
    return config("discovery", mode=value, include=["in/**"], modified_after="2024-05-31")


def test_the_former_value_of_mode_is_the_same_and_warns(monkeypatch):
    said = r'^\[discovery\] mode = "after": now called "incremental"\.$'
    monkeypatch.setenv("MODE", "after")
    for value in ("after", "${env:MODE}"):
        with pytest.warns(ConfigWarning, match=said):
            assert mode(value) == mode("incremental")


def test_the_former_value_is_not_among_those_that_an_error_names():
    with pytest.raises(ConfigError, match='must be "list" or "incremental" or "keys"'):
        mode("aftr")


@pytest.mark.parametrize("value", ["after", "incremental"])
def test_what_was_stored_under_the_former_value_of_mode_still_matches(value):
    """The digests are those of the version that knew only the former value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        made = mode(value)
    assert selection_digest(made, "in/a") == "3d2d2041cb68998a"
    assert selected_objects(made, "lake", ["in/"]).options == {
        "[naming] template": "fcc29a96641b9de2",
        "[discovery] include": "684a2ba9681f52d2",
        "[discovery] exclude": "71857576257465c7",
        "[discovery] ignore_hidden": "f56975c80364f63f",
        "[discovery] archived": "2d6139391622c94f",
    }
