"""A test that missed its moment on a busy machine runs once more (`make test`); not one that judges delivery.

Each is listed with its failure, and more than `MOST` of them fail the run.
"""

import pytest

MOST = 2
JUDGES = ("tests/conformance/", "tests/faults/", "tests/simulator/")
"""Where a failure may be a record that was lost or came twice, however rarely."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(JUDGES):
            item.add_marker(pytest.mark.flaky(reruns=0))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = reporter.stats.get("rerun", []) if reporter is not None else []
    if len(again) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    again = terminalreporter.stats.get("rerun", [])
    for report in again:
        terminalreporter.section(f"failed once: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    if len(again) > MOST:
        terminalreporter.write_line(f"{len(again)} tests failed once, more than {MOST}: the run has failed", red=True)
