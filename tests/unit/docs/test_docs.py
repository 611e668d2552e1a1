"""The documentation says what the code says: pages written from it, links, examples.

How they are marked: docs/development/architecture-notes.md.
"""

import importlib.util
import inspect
import re
import shutil
import sys
import textwrap

import pytest

from framework import errors
from framework.config.format_registry import FORMATS
from framework.config.loading import structure
from framework.config.option import options_of, sections_of, subsections_of
from framework.engine.metrics import reference_rows
from s3_source.task import S3SourceConfig
from tests.support.docs import ROOT, anchors, blocks, links, pages, run_blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py, as a module."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def page_id(page):
    return str(page.relative_to(ROOT))


def reference(name):
    return (REFERENCE / name).read_text(encoding="utf-8")


# ---- the reference is complete


def test_pages_written_from_the_code_are_what_the_code_says(generate):
    stale = [
        name
        for name, page in generate.PAGES.items()
        if (ROOT / name).read_text(encoding="utf-8") != page().rstrip("\n") + "\n"
    ]
    assert not stale, "run: python docs/generate.py"


def test_every_option_is_in_the_reference():
    text = reference("configuration.md")
    for section, cls in sections_of(S3SourceConfig).items():
        part = text.partition(f"## `[{section}]`")[2].partition("\n## ")[0]
        missing = [option.name for option in options_of(cls) if f"| `{option.name}` |" not in part]
        assert part
        assert not missing


def test_every_error_is_in_the_reference_with_what_to_do(generate):
    text = reference("errors.md")
    tree = errors.__doc__
    found = generate.error_classes()
    assert len(found) > 20
    for cls in found:
        part = text.partition(f"## {cls.__name__}\n")[2].partition("\n## ")[0]
        assert "**What to do.**" in part, cls
        assert re.search(rf"\b{cls.__name__}\b", tree), cls


def test_the_tree_of_errors_names_no_error_that_is_not_there():
    drawn = re.findall(r"-- (\w+Error)\b", errors.__doc__)
    assert drawn
    assert [name for name in drawn if not hasattr(errors, name)] == []


def test_every_abstract_method_of_the_public_names_is_in_the_reference():
    import framework

    text = reference("contracts.md")
    count = 0
    for name in framework.__all__:
        for method in getattr(getattr(framework, name), "__abstractmethods__", ()):
            count += 1
            assert f"### {name}.{method} (abstract)" in text or name == "StoreRecordIterator", (name, method)
    assert count >= 15


def test_every_method_of_the_contracts_has_a_docstring(generate):
    for cls in generate.CONTRACTS:
        for name, value, _ in generate.methods_of(cls):
            assert inspect.getdoc(value), (cls, name)


def test_every_law_of_the_kit_is_in_the_reference_and_every_capability_explained():
    from framework.testing import kit
    from framework.testing.rig import Capability

    text = reference("contracts.md")
    assert len(kit.LAWS) == 30
    for law in kit.LAWS.values():
        assert f"| {law.id} | {law.says} | " in text
    how_to = (ROOT / "docs" / "guides" / "write-a-source.md").read_text(encoding="utf-8")
    assert [one.name for one in Capability if f"`{one.name}`" not in how_to] == []


def test_every_command_and_each_of_its_options_is_in_the_reference(generate):
    import typer.main

    from framework.cli.app import make_app
    from s3_source.demo import demo

    text = reference("command-line.md")
    root = typer.main.get_command(make_app(demo))
    assert {"check", "read", "demo"} <= set(root.commands)
    for name, command in root.commands.items():
        part = text.partition(f"## `python -m s3_source {name}`")[2].partition("\n## ")[0]
        for option in command.params:
            hidden = getattr(option, "hidden", False)  # a former name
            shown = option.metavar if option.param_type_name == "argument" else option.opts[0]
            assert (f"`{shown}" in part) is not hidden, (name, option.opts)


def test_commands_that_pages_show_exist_with_their_options():
    import typer.main

    from framework.cli.app import make_app
    from s3_source.demo import demo

    root = typer.main.get_command(make_app(demo))
    count = 0
    for page in pages():
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"(?:-m (?:s3|gcs)_source|shelf\.py|local_folder\.py) ([^\n`]+)", text):
            command, words = root, line.partition(" #")[0].split()
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {name for option in command.params for name in option.opts}
            used = {word.partition("=")[0].rstrip(".,;:)") for word in words if word.startswith("--")}
            assert used - {"--help"} <= known, (page, line)
            count += 1
    assert count > 50


def test_every_format_is_in_the_reference_and_explained():
    explained = reference("formats.md")
    for name in FORMATS.names():
        assert f'`"{name}"`' in reference("configuration.md"), name
        assert f"| `{name}` |" in explained, name


def test_every_metric_is_in_the_reference():
    for name, *_ in reference_rows():
        assert f"| `{name}` |" in reference("configuration.md")


def test_metrics_that_pages_name_exist():
    names = {name for name, *_ in reference_rows()}
    for page in pages():
        for name in re.findall(r"\biggy_source_\w+", page.read_text(encoding="utf-8")):
            assert name in names, (page, name)


def test_every_page_is_in_the_index():
    index = {(ROOT / "docs" / target).resolve() for target in links(ROOT / "docs" / "README.md")}
    assert [page_id(page) for page in pages() if ROOT / "docs" in page.parents and page not in index] == [
        "docs/README.md"
    ]


# ---- links


def tables_without_an_empty_line_before(text):
    """The headers of tables that a renderer takes as rows of the table or text above."""
    lines = text.splitlines()
    return [
        header
        for above, header, rule in zip(lines, lines[1:], lines[2:], strict=False)
        if header.startswith("|")
        and re.fullmatch(r"\|( ?:?-+:? ?\|)+", rule)
        and above.strip()
        and not above.endswith("-->")
    ]


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_a_table_begins_behind_an_empty_line(page):
    assert tables_without_an_empty_line_before(page.read_text(encoding="utf-8")) == []


def test_a_table_that_begins_too_early_is_found():
    table = "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"
    assert tables_without_an_empty_line_before(f"text\n\n{table}") == []
    assert tables_without_an_empty_line_before(f"\n{table}{table}") == ["| a | b |"]


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_links_lead_somewhere(page):
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        if fragment and place.suffix == ".md":
            assert fragment in anchors(place), target


# ---- examples


def marked(info):
    return [page for page in pages() if any(block.info == info for block in blocks(page))]


@pytest.mark.parametrize("page", marked("python run"), ids=page_id)
def test_python_examples_run(page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run_blocks(page, "python run") > 0


def test_excerpts_stand_in_their_files():
    count = 0
    for page in pages():
        for block in blocks(page):
            if block.info.startswith("python from "):
                count += 1
                file = ROOT / block.info.removeprefix("python from ")
                excerpt, source = block.text.strip("\n"), file.read_text(encoding="utf-8")
                depths = ("", " " * 4, " " * 8, " " * 12)  # an excerpt begins at the margin, wherever it stands
                assert any(textwrap.indent(excerpt, depth) in source for depth in depths), f"{page}:{block.line}"
    assert count > 0


def test_the_tutorial_builds_the_whole_example():
    def code(text):
        return [line for line in text.splitlines() if line]

    page = ROOT / "docs" / "tutorials" / "write-your-first-source.md"
    parts = [block.text for block in blocks(page) if block.info == "python from examples/shelf.py"]
    whole = (ROOT / "examples" / "shelf.py").read_text(encoding="utf-8").split('"""', 2)[2]
    assert len(parts) > 5
    assert code("".join(parts)) == code(whole)


def test_python_blocks_are_marked_or_at_least_python():
    known = {"python run", "python run iggy"}
    for page in pages():
        for block in blocks(page):
            if block.info.startswith("python"):
                assert block.info in known or block.info == "python" or block.info.startswith("python from ")
            if block.info == "python" and page.name != "contracts.md":
                compile(block.text, f"{page}:{block.line}", "exec")


def test_toml_examples_are_configurations(monkeypatch):
    """Whole ones are read as they are; parts name only sections and options that exist."""
    sections = {
        name: {option.name for option in options_of(cls)} | set(subsections_of(cls))
        for name, cls in sections_of(S3SourceConfig).items()
    }
    whole = 0
    for page in pages():
        for block in blocks(page):
            if block.info != "toml":
                continue
            place = f"{page}:{block.line}"
            content = tomllib.loads(block.text)
            if not set(content) <= set(sections):
                continue  # another file than a configuration, or another source's
            for name in re.findall(r"\$\{env:(\w+)\}", block.text):
                monkeypatch.setenv(name, "some-text")
            for section, options in content.items():
                assert set(options) <= sections[section], place
            if {"source", "s3", "input", "iggy"} <= set(content) and "${file:" not in block.text:
                whole += 1
                structure(content, S3SourceConfig)
    assert whole > 0
