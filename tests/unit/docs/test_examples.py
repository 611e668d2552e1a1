"""The configurations in examples/ are right, and no dependency is without a reason."""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from framework.config.loading import load_config
from gcs_source.task import GcsSourceConfig
from s3_source.task import S3SourceConfig

FOLDER = Path(__file__).resolve().parents[3] / "examples"
S3_FILES = sorted(file for file in FOLDER.glob("*.toml") if "\n[s3]" in file.read_text())


@pytest.mark.parametrize("file", S3_FILES, ids=lambda file: file.name)
@pytest.mark.parametrize("all_lines", [False, True], ids=["as it is", "with what is commented out"])
def test_a_configuration_for_s3_is_right(file, all_lines, monkeypatch, tmp_path):
    monkeypatch.setenv("IGGY_PASSWORD", "secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    text = file.read_text()
    if all_lines:
        (tmp_path / "secret").write_text("secret\n")
        lines = [
            line.removeprefix("# ") if " = " in line or line == "# [metrics]" else line for line in text.split("\n")
        ]
        text = "\n".join(line for line in lines if not line.startswith('url = "embedded'))
        text = text.replace("/run/secrets/s3-secret", str(tmp_path / "secret"))
    (tmp_path / "c.toml").write_text(text)
    config = load_config(tmp_path / "c.toml", S3SourceConfig)
    assert bool(config.s3.role_arn) == all_lines
    assert (config.metrics.address is not None) == all_lines


def test_there_is_one():
    assert S3_FILES


@pytest.mark.parametrize("all_lines", [False, True], ids=["as it is", "with what is commented out"])
def test_the_configuration_for_gcs_is_right(all_lines, monkeypatch, tmp_path):
    monkeypatch.setenv("IGGY_PASSWORD", "secret")
    text = (FOLDER / "gcs.toml").read_text()
    if all_lines:
        lines = [
            line.removeprefix("# ") if " = " in line or line == "# [metrics]" else line for line in text.split("\n")
        ]
        text = "\n".join(line for line in lines if not line.startswith('url = "embedded'))
    (tmp_path / "c.toml").write_text(text)
    config = load_config(tmp_path / "c.toml", GcsSourceConfig)
    assert bool(config.gcs.impersonate) == all_lines
    assert (config.metrics.address is not None) == all_lines


def test_the_two_examples_differ_in_their_store_only():
    """Who knows one source knows the other."""
    s3, gcs = ((FOLDER / f"{name}.toml").read_text().split("\n[") for name in ("s3", "gcs"))
    changed = [part.partition("]")[0] for part in s3 if part not in gcs]
    assert changed[1:] == ["s3", "input"]


def test_every_dependency_is_explained():
    page = (FOLDER.parent / "docs" / "development" / "dependencies.md").read_text()
    text = (FOLDER.parent / "pyproject.toml").read_text()
    project = text[text.index("\ndependencies = [") : text.index("\n[project.entry-points")]
    names = set(re.findall(r'^ *(?:\w+ = \[)?"([A-Za-z0-9-]+)', project, re.MULTILINE)) - {"iggy-cloud-sources"}
    assert len(names) > 20
    assert not {name for name in names if f"`{name}`" not in page}
    assert not set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) - set(re.findall(r'"([A-Za-z0-9-]+)', project))


def test_every_package_that_is_imported_is_a_dependency():
    root = FOLDER.parent
    own = {"framework", "transformers", "s3_source", "gcs_source"}
    brought = {  # by the one that is named, in the version that it needs
        "anyio": "fastapi", "botocore": "boto3", "google-api-core": "google-cloud-storage",
        "google-auth": "google-cloud-storage", "py4j": "pyspark", "pydantic-core": "pydantic", "starlette": "fastapi",
    }  # fmt: skip
    text = (root / "pyproject.toml").read_text()
    text = text[text.index("\ndependencies = [") : text.index("\ntest = [")]
    named = set(re.findall(r'"([A-Za-z0-9-]+)', text))
    elsewhere = own | {"_typeshed", "mypy_boto3_s3"} | set(sys.stdlib_module_names)  # two are for type checkers only
    distributions = importlib.metadata.packages_distributions()
    missing = set()
    for file in [file for package in own for file in (root / package).rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            for top in {module.partition(".")[0] for module in modules} - elsewhere:
                found = {name.lower().replace("_", "-") for name in distributions.get(top, [top])}
                if not found & named and not {brought.get(name) for name in found} & named:
                    missing.add((top, str(file.relative_to(root))))
    assert not missing
