"""The JSON schema: what the loader accepts it accepts, and mistakes of one file it rejects; checked with `jsonschema`."""

from __future__ import annotations

import importlib
import json
import sys

import jsonschema
import pytest

from framework.config.json_schema import json_schema
from framework.config.option import options_of, sections_of
from gcs_source.task import GcsSourceConfig
from s3_source.task import S3SourceConfig
from tests.support.docs import ROOT, blocks, pages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
GOOD = {
    "source": {"name": "orders"},
    "s3": {"bucket": "lake"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "iggy://u:p@h", "stream": "lake", "topic": "orders"},
}


def root_of(content):
    for section, root in (("s3", S3SourceConfig), ("gcs", GcsSourceConfig)):
        if section in content:
            return root
    name = "shelf" if "shelf" in content else "local_folder"
    module = importlib.import_module(f"examples.{name}")
    return next(cls for cls in vars(module).values() if getattr(cls, "config_class", None) is not None).config_class


def validator(root):
    schema = json_schema(root, title="test")
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


S3 = validator(S3SourceConfig)


def mistakes(**changes):
    content = {name: dict(section) for name, section in GOOD.items()}
    for name, section in changes.items():
        if isinstance(section, dict):
            content[name] = {**content.get(name, {}), **section}
            content[name] = {key: value for key, value in content[name].items() if value is not None}
        elif section is None:
            del content[name]
        else:
            content[name] = section
    return [error.message for error in S3.iter_errors(content)]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
@pytest.mark.parametrize("all_lines", [False, True], ids=["as it is", "with what is commented out"])
def test_every_example_is_accepted(file, all_lines):
    text = file.read_text()
    if all_lines and file.stem in {"s3", "gcs"}:
        lines = [line.removeprefix("# ") if " = " in line else line for line in text.split("\n")]
        text = "\n".join(line for line in lines if not line.startswith(('url = "embedded', "address = ")))
    content = tomllib.loads(text)
    validator(root_of(content)).validate(content)


def test_there_are_examples():
    assert {"s3.toml", "gcs.toml"} <= {file.name for file in EXAMPLES}


def test_the_toml_of_the_documentation_is_accepted():
    count = 0
    for page in pages():
        for block in blocks(page):
            content = tomllib.loads(block.text) if block.info == "toml" else {}
            if set(content) <= set(S3.schema["properties"]) and {"source", "s3", "input", "iggy"} <= set(content):
                count += 1
                S3.validate(content)
    assert count > 1


def test_the_committed_schemas_are_those_of_the_code():
    """That they are fresh is checked with the other pages; here, that they are schemas."""
    for name in ("s3", "gcs"):
        text = (ROOT / "docs" / "reference" / f"{name}-source.schema.json").read_text(encoding="utf-8")
        jsonschema.Draft7Validator.check_schema(json.loads(text))


def test_every_option_and_every_former_name_is_in_the_schema_with_its_meaning():
    count = 0
    for section, cls in sections_of(S3SourceConfig).items():
        part = S3.schema
        for name in section.split("."):
            part = part["properties"][name]
        for option in options_of(cls):
            count += 1
            assert part["properties"][option.name]["description"] == " ".join(option.doc.split())
            for former in option.former_names:
                assert part["properties"][former]["deprecated"] is True
    assert count > 100


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"include": ["a.toml"], "iggy": {"url": None, "stream": None}, "s3": None, "source": None},
        {"iggy": {"url": None, "address": "h:1", "username": "a", "password": "b", "tls": {"enabled": True}}},
        {"iggy": {"partitions": "${env:PARTITIONS}", "create_topics": "${file:/x}"}},
        {"input": {"max_record_bytes": "4MB", "prefetch_bytes": 8388608}, "discovery": {"poll_interval": "10ms"}},
        {"discovery": {"allowed_lateness": "forever", "min_age": 5, "mode": "after", "late_arrival_window": "2d"}},
        {"spark": {"conf": {"spark": {"executor": {"cores": 2}}, "spark.x": "true", "y": True}}},
        {"s3": {"prefixes": ["a/", "b/"]}, "naming": {"topics": []}},
        {"transforms": [{"type": "delete_fields", "fields": ["a"]}, {"type": "json", "enabled": False}]},
        {"transforms": [{"type": "add_fields", "fields": [{"key": "a", "value": {"static": [1, {}]}}]}]},
        {"transforms": [{"type": "of-another-package", "anything": 1}]},
    ],
    ids=str,
)
def test_it_accepts_what_the_loader_accepts(changes):
    assert mistakes(**changes) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"stor": {}},
        {"s3": {"bukcet": "x"}},
        {"s3": {"bucket": None}},
        {"source": None},
        {"source": 5},
        {"iggy": {"url": None}},
        {"iggy": {"stream": None}},
        {"iggy": {"stream": ""}},
        {"iggy": {"partitions": 0}},
        {"iggy": {"partitions": 1001}},
        {"iggy": {"partitions": "4"}},
        {"iggy": {"partitions": 1.5}},
        {"iggy": {"create_topics": "true"}},
        {"iggy": {"headers": "all"}},
        {"iggy": {"tls": {"enabeld": True}}},
        {"iggy": {"tls": "on"}},
        {"iggy": {"linger_time": "5 parsecs"}},
        {"iggy": {"linger_time": -1}},
        {"iggy": {"batch_bytes": "2 MiB/s"}},
        {"discovery": {"allowed_lateness": "always"}},
        {"discovery": {"include": "*.json"}},
        {"discovery": {"include": [1]}},
        {"spark": {"conf": {"a": [1]}}},
        {"transforms": {"type": "json"}},
        {"transforms": [{"fields": ["a"]}]},
        {"transforms": [{"type": "delete_fields"}]},
        {"transforms": [{"type": "delete_fields", "field": "a"}]},
        {"transforms": [{"type": "delete_fields", "fields": "a"}]},
        {"transforms": [{"type": "json", "enabled": "no"}]},
        {"include": "common.toml"},
        {"include": [""]},
    ],
    ids=str,
)
def test_it_rejects_mistakes(changes):
    assert mistakes(**changes)


def test_required_options_may_be_in_an_included_file_but_mistakes_are_still_mistakes():
    assert mistakes(include=["a.toml"], s3={"bucket": None}) == []
    assert mistakes(include=["a.toml"], s3={"bucket": 5})
