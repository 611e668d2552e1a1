"""The short form of `make faults`: a few rounds of each row. The long form has hundreds, on a real server as well."""

import json
import os
import re

import pytest

from tests.faults import report, stores
from tests.faults.__main__ import SEED, main, options
from tests.faults.chain import Rig, Tally
from tests.faults.rows import BY_NAME, REAL, ROOT, run_row, why_not

SHORT = {
    "kill-local": 2,
    "kill-embedded": 3,
    "standby": 2,
    "worker": 2,
    "worker-verbs": 3,
    "iggy-proxy": 5,
    "store-proxy": 7,
    "both": 2,
    "pairs": 2,
    "transforms": 2,
    "restore": 2,
    "keyed": 2,
    "set-positions": 3,
    "gcs-store-proxy": 7,
    "gcs-both": 2,
}
"""Spark has tests of its own in test_spark_cluster, kills of a source of GCS in test_program_gcs; rows of tests run as such."""

AWAY_CALLS = 24
"""So many are refused in a row, in place of the 40 of the long form: still three times the tries of one call."""

REAL_ROWS = {"kill-real": 2, "kill-real-defaults": 2}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    made = Rig(tmp_path_factory.mktemp("faults"), seed=SEED)
    yield made
    made.close()


def check_row(name, rig, rounds, wanted):
    rig.fresh = name == "kill-local"  # one of them is killed while it loads, too
    tally, _ = run_row(BY_NAME[name], rig, rounds=rounds, wanted=wanted)
    assert tally.good, tally
    assert tally.rounds >= rounds, "too few faults struck while work was open"
    assert tally.records > 500 * rounds


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SHORT)
def test_nothing_is_lost_repeated_or_mixed(name, rig, monkeypatch):
    monkeypatch.setattr(stores, "AWAY_CALLS", AWAY_CALLS)
    check_row(name, rig, SHORT[name], "embedded")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", REAL_ROWS)
def test_nor_on_a_real_server_that_is_killed(name, rig, monkeypatch):
    if not os.environ.get(REAL):
        assert f"set {REAL}" in why_not(BY_NAME[name])
        return
    check_row(name, rig, REAL_ROWS[name], "real")


def test_all_rows_are_tests_that_exist():
    asked = [row.tests for row in BY_NAME.values() if row.tests]
    for tests in asked:
        files = [part for part in tests if part.endswith(".py")]
        (word,) = tests[len(files) + 1 :] or ("",)  # behind -k
        for file in files:
            names = re.findall(r"^ *def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
            assert [name for name in names if word in name], file


def test_a_row_that_is_not_there():
    with pytest.raises(SystemExit):
        options(["--rows", "kill-everything"])


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["--rows", "kill-local,both"], ["kill-local", "both"]),
        (["--rows", "gcs-both,both"], ["gcs-both", "both"]),
        (["--rows", "kill-local,gcs-both", "--store", "gcs"], ["gcs-kill-local", "gcs-both"]),
        (["--rows", "sweep"], ["sweep"]),
        ([], list(BY_NAME)),
    ],
)
def test_rows_are_named_wholly_or_by_their_store(arguments, rows):
    assert options(arguments).rows == rows


def test_each_store_has_its_rows_and_no_other():
    chosen = {store: set(options(["--store", store]).rows) for store in ("s3", "gcs")}
    assert not chosen["s3"] & chosen["gcs"]
    assert {"gcs-kill-local", "gcs-kill-spark", "gcs-iggy-proxy", "gcs-store-proxy", "gcs-both"} <= chosen["gcs"]
    with pytest.raises(SystemExit):
        options(["--rows", "sweep", "--store", "gcs"])


def result(**changes):
    tally = Tally(
        rounds=20, amid=15, servers={"embedded": 10, "real": 10}, kinds={"worker": 6, "source": 14}, records=31_007
    )
    for name, value in changes.items():
        setattr(tally, name, value)
    return tally


def test_results_are_kept_and_told(tmp_path, capsys):
    row = BY_NAME["kill-local"]
    report.save(tmp_path, row, result(), seconds=12.3, seed=7, wanted=20)
    assert json.loads((tmp_path / "kill-local.json").read_text())["seed"] == 7
    assert main(["--report", "--out", str(tmp_path)]) == 0
    assert "| 20 (10 embedded, 10 real) | 15 | 31,007 | 0 | 0 | 0 | 0 | 12 |" in capsys.readouterr().out
    told = (tmp_path / "faults.md").read_text()
    assert "with seed 7" in told
    assert told.endswith("What struck:\n\n- kill-local: source 14, worker 6\n")


@pytest.mark.parametrize("what", ["lost", "repeated", "mixed", "wrong", "hung"])
def test_one_record_too_few_or_too_many_is_a_failure(tmp_path, what):
    report.save(tmp_path, BY_NAME["both"], result(**{what: 1}), seconds=1, seed=7, wanted=20)
    assert main(["--report", "--out", str(tmp_path)]) == 1


@pytest.mark.parametrize("row", ["both", "gcs-both", "sweep"])
def test_the_page_has_a_place_for_the_figures_of_each_store(tmp_path, row):
    page = tmp_path / "page.md"
    page.write_text(report.PAGE.read_text())
    begin, end = report.marks(BY_NAME[row].store)
    before, after = page.read_text().split(begin)[0], page.read_text().split(end)[1]
    report.save(tmp_path, BY_NAME[row], result(), seconds=1, seed=7, wanted=20)
    for _ in range(2):
        report.write_page(report.load(tmp_path), page)
    text = page.read_text()
    assert text.startswith(before)
    assert text.endswith(after)
    assert text.split(begin)[1].split(end)[0].count(BY_NAME[row].title) == 1
