"""What `make mutants` names in pyproject.toml and tests/mutants.md is there: mutmut says nothing about what is gone."""

import importlib
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
LEFT_OUT = [option.partition("=")[2] for option in SETTINGS["pytest_add_cli_args"] if option.startswith("--deselect=")]
EXPLAINED = re.findall(r"^\| `([\w.ǁ]+)` \|", (ROOT / "tests" / "mutants.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("pattern", SETTINGS["only_mutate"])
def test_modules_of_the_core_exist(pattern):
    assert [path for path in ROOT.glob(pattern) if path.suffix == ".py"]


@pytest.mark.parametrize("path", SETTINGS["pytest_add_cli_args_test_selection"])
def test_their_tests_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("node", LEFT_OUT)
def test_tests_that_are_left_out_exist(node):
    path, name = node.split("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("name", sorted(set(EXPLAINED)))
def test_functions_whose_mutants_are_explained_exist(name):
    module, _, function = name.rpartition(".")
    found = importlib.import_module(module)
    for part in function.removeprefix("x").strip("ǁ").split("ǁ") if "ǁ" in function else [function.removeprefix("x_")]:
        assert hasattr(found, part), f"{part} of {module} is gone"
        found = getattr(found, part)
