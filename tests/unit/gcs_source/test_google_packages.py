"""Google's packages on a version of Python that Google no longer supports."""

import subprocess
import sys

import pytest

IN_2040 = """
import datetime

class Date(datetime.date):
    @classmethod
    def today(cls):
        return cls(2040, 1, 1)

datetime.date = Date
"""


@pytest.mark.parametrize(("imported", "warns"), [("google.cloud.storage", True), ("gcs_source.google_packages", False)])
def test_an_old_python_is_no_warning_of_ours(imported, warns):
    command = [sys.executable, "-c", f"{IN_2040}\nimport {imported}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ("FutureWarning: You are using a" in done.stderr) == warns
