"""With REQUIRE_ALL=1 a test that skips itself fails: what is skipped everywhere rots unseen.

What truly cannot run in some place is listed here, with the place.
"""

import os
from importlib.metadata import version

import pytest

CANNOT_RUN = {
    "root may write everywhere": os.geteuid() == 0,
    "the server is not on this machine": "IGGY_TEST_URL" in os.environ,
    "IGGY_CONNECTORS_DIR names no folder with Iggy's connector runtime": "IGGY_CONNECTORS_DIR" not in os.environ,
    "IGGY_TEST_URL names no real Iggy server": "IGGY_TEST_URL" not in os.environ,
    "pyarrow could not read a null list of fixed size": int(version("pyarrow").partition(".")[0]) < 26,
}
"""Reason -> whether it holds here."""


def pytest_configure(config):
    if os.environ.get("REQUIRE_ALL") == "1":
        config.pluginmanager.register(_NoSkips(), "no-skips")


class _NoSkips:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        _refuse(report, item.nodeid)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        report = yield
        _refuse(report, collector.nodeid)
        return report


def _refuse(report, name):
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = text.removeprefix("Skipped: ")
    if not CANNOT_RUN.get(reason, False):
        report.outcome = "failed"
        report.longrepr = f"{name} skipped itself, and REQUIRE_ALL=1 forbids it: {reason}"
