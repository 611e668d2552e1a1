"""The pages of docs/: their links, and their blocks of code."""

import re
import sys
import types
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@attrs.frozen
class Block:
    """A fenced block: what stands behind the fence, its text, and its first line in the page."""

    page: Path
    info: str
    text: str
    line: int


def pages():
    """Every page of ours that readers may open, README, CHANGELOG and SECURITY included."""
    found = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md") if (ROOT / name).exists()]
    return [*found, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield Block(page, found["info"].strip(), found["text"], text.count("\n", 0, found.start()) + 2)


def links(page):
    """The targets of a page's links, code left out."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [found["target"] for found in _LINK.finditer(re.sub(r"`[^`\n]*`", "", text))]


def anchors(page):
    """The names that `#...` can mean in a page, made from its headings as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def run_blocks(page, info, *, replace=()):
    """Runs the blocks of a page that are marked so, in one module, in order. Returns how many there were.

    A failure's traceback names the page and the line.
    """
    module = types.ModuleType(f"docs_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    count = 0
    try:
        for block in blocks(page):
            if block.info != info:
                continue
            text = block.text
            for old, new in replace:
                text = text.replace(old, new)
            source = "\n" * (block.line - 1) + text
            exec(compile(source, str(page), "exec", dont_inherit=True), vars(module))
            count += 1
    finally:
        del sys.modules[module.__name__]
    return count
