"""Importing loads what is needed to import, and no vendor's library."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "apache_iggy", "asyncio", "boto3", "botocore", "cramjam", "fastapi", "fastavro", "google", "numpy", "orjson", "pandas",
    "polars", "prometheus_client", "psutil", "py4j", "pyarrow", "pydantic", "pyspark", "rich", "starlette", "uvicorn", "zstandard",
)  # fmt: skip
MOST_MODULES = 250
"""Of all, the standard library's included: with one of the heavy ones it is two or three times as many."""


def modules_after(code):
    """The modules that a fresh interpreter has after `code`, in the order in which they were first imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    "code",
    [
        "import framework",
        "import transformers",
        "import s3_source",
        "from framework import AbstractSourceTask, OffsetManager, RetryPolicy",
        "from transformers import InputOptions, LocalFileInput",
        "import s3_source.__main__",
        "from s3_source import S3Config",
    ],
)
def test_importing_loads_no_vendor_library(code):
    modules = modules_after(code)
    assert "framework" in modules or "framework.errors" in modules or "s3_source" in modules
    assert not [name for name in modules if name.partition(".")[0] in HEAVY]
    if code.startswith("import ") and "__main__" not in code:
        assert len(modules) < MOST_MODULES


def test_the_measurement_sees_a_heavy_library():
    modules = modules_after("import s3_source.client; import boto3")
    assert "boto3" in modules
    assert len(modules) > MOST_MODULES


def test_every_public_name_can_be_imported():
    """In a process of its own: it does load the vendors' libraries."""
    code = "import framework, s3_source\nfor p in (framework, s3_source):\n for n in p.__all__: getattr(p, n)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True, timeout=60)
