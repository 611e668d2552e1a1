"""Starting, stopping and restarting sources, with processes and time that the test moves."""

import pytest

from framework.engine.run_statistics import RunStatistics
from framework.runtime.state import PAUSED, RUNNING, STOPPED
from framework.runtime.supervisor import (
    FIRST_PAUSE_SECONDS,
    FOLDER_SECONDS,
    LONGEST_PAUSE_SECONDS,
    SOUND_SECONDS,
    STOP_SECONDS,
    BusyError,
    NotStoppedError,
    UnknownSourceError,
    UnknownVersionError,
)
from tests.unit.runtime.rig import Rig, text


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def running(rig):
    """One source that runs."""
    rig.write()
    rig.tick()
    rig.children[0].runs(records=5, records_read=7)
    return rig


def test_a_source_is_starting_until_it_reports_and_then_running(rig):
    rig.write()
    rig.tick()
    source = rig.source()
    assert (source.status, source.child) == ("starting", rig.children[0])
    rig.children[0].runs()
    assert source.status == "running"
    assert source.active.command() == [
        "-m",
        "s3_source",
        "--content-on-stdin",
        "--config",
        str(rig.conf / "orders.toml"),
    ]


def test_a_source_that_waits_as_a_standby_is_not_running(rig):
    rig.write()
    rig.tick()
    rig.children[0].progress = RunStatistics(state="standby")
    assert rig.source().status == "starting"


def test_several_mistakes_of_a_file_are_one_line_of_the_log(rig, caplog):
    (rig.conf / "bad.toml").write_text(text("bad") + "[log]\nlevl = 1\nformt = 2\n")
    rig.tick()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"bad: {rig.conf}/bad.toml: 2 mistakes: - [log] levl: unknown option; did you mean level? - [log]"
    )
    assert rig.source("bad").last_error.message.count("\n  - ") == 2


@pytest.mark.parametrize("code", [1, -9, -15, 70])
def test_pauses_double_up_to_a_limit_and_begin_again_after_a_sound_run(running, code):
    pauses = []
    for _ in range(12):
        child = running.children[-1]
        child.code, child.error = code, "Iggy is away"
        running.tick()
        source = running.source()
        assert (source.status, source.retries, source.last_error.message) == ("error", True, "Iggy is away")
        before = len(running.children)
        pause = 0.0
        while len(running.children) == before:
            running.tick(0.5)
            pause += 0.5
        pauses.append(pause)
    assert pauses[:4] == [FIRST_PAUSE_SECONDS * 2**n for n in range(4)]
    assert max(pauses) == pauses[-1] == LONGEST_PAUSE_SECONDS
    assert running.source().restarts == 12
    running.now += SOUND_SECONDS
    running.children[-1].code = code
    running.tick()
    running.tick(FIRST_PAUSE_SECONDS)
    assert len(running.children) == 14


DAYS_OF_FAILURES = 1100
"""At the longest pause some four days, and more than a float has powers of two."""


def test_a_source_that_fails_for_days_is_started_again_and_ends_no_worker(running):
    source = running.source()
    source.failures = DAYS_OF_FAILURES
    running.children[0].code = 1
    running.tick()
    assert (source.status, source.failures) == ("error", DAYS_OF_FAILURES + 1)
    running.tick(LONGEST_PAUSE_SECONDS)
    assert len(running.children) == 2


def test_a_process_that_cannot_be_started_for_days_ends_no_worker(rig):
    rig.write()
    rig.refuses = OSError(11, "Resource temporarily unavailable")
    rig.tick()
    rig.source().failures = DAYS_OF_FAILURES
    rig.tick(LONGEST_PAUSE_SECONDS)
    rig.refuses = None
    rig.tick(LONGEST_PAUSE_SECONDS)
    assert len(rig.children) == 1


@pytest.mark.parametrize("code", [2, 3])
def test_configuration_and_person_wait_for_a_restart_or_a_change(running, code):
    running.children[-1].code, running.children[-1].error = code, "no such bucket"
    running.tick()
    running.tick(1e6)
    source = running.source()
    assert (source.status, source.retries, source.errors) == ("error", False, 1)
    assert source.last_error.message == "no such bucket"
    assert len(running.children) == 1
    running.supervisor.set_state("orders", "running")  # it is no restart to resume what is not paused
    running.tick()
    assert (len(running.children), source.status) == (1, "error")
    running.supervisor.restart("orders")
    running.tick()
    assert (len(running.children), source.last_error) == (2, None)
    running.children[-1].code = code
    running.tick()
    running.write(head='name = "Orders"\n')
    running.look()
    assert len(running.children) == 3


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_process_that_ends_while_its_configuration_changes_leaves_the_new_one_to_run(running, code):
    running.write(head='name = "Orders"\n')
    running.tick(FOLDER_SECONDS)
    running.children[0].code = code
    running.tick(FOLDER_SECONDS)
    running.tick(FIRST_PAUSE_SECONDS)
    assert len(running.children) == 2
    assert running.children[1].configuration.label == "Orders"
    running.children[1].code = 3
    running.tick()
    running.tick(LONGEST_PAUSE_SECONDS)
    assert (len(running.children), running.source().held) == (2, True)


def test_a_process_that_ends_while_a_person_asks_for_a_restart_is_started_again(running):
    running.supervisor.restart("orders")
    running.children[0].code = 3
    running.tick()
    running.tick(FIRST_PAUSE_SECONDS)
    assert len(running.children) == 2


def test_the_death_of_a_process_without_a_word_is_a_sentence(running):
    running.children[0].code = -9
    running.tick()
    assert running.source().last_error.message == "pid 100 was killed by signal 9"


def test_exit_code_0_by_itself_is_not_repeated(running):
    running.children[0].code = 0
    running.tick()
    running.tick(1e6)
    assert (running.source().status, len(running.children)) == ("stopped", 1)


def test_one_that_does_not_stop_is_killed(running):
    child = running.children[0]
    child.obeys = False
    running.supervisor.set_state("orders", "paused")
    running.tick()
    assert (running.source().status, child.asked) == ("stopping", 1)
    running.tick(STOP_SECONDS - 1)
    assert (child.asked, child.killed) == (1, False)
    running.tick(1)
    assert child.killed
    running.tick()
    assert (running.source().status, running.source().child) == ("stopped", None)


def test_one_that_does_not_even_end_when_it_is_killed_is_named_from_time_to_time(running, caplog):
    child = running.children[0]
    child.obeys = child.dies = False
    running.supervisor.set_state("orders", "paused")
    running.tick()
    for _ in range(int(2 * STOP_SECONDS)):
        running.tick(1)
    assert caplog.text.count("did not stop within") == 2


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_a_state_is_kept_over_the_end_of_the_worker(running, state):
    running.supervisor.set_state("orders", state)
    running.tick()
    running.tick()
    running.begin()
    running.tick()
    running.tick(1e6)
    assert (running.source().status, running.source().kept_state, len(running.children)) == ("stopped", state, 1)
    with pytest.raises(BusyError, match="resume it"):
        running.supervisor.restart("orders")
    running.supervisor.set_state("orders", "running")
    running.tick()
    assert len(running.children) == 2


def test_a_state_that_cannot_be_kept_changes_nothing(running, monkeypatch):
    def full(_name, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running.state, "_write", full)
    with pytest.raises(OSError, match="No space"):
        running.supervisor.set_state("orders", "paused")
    running.tick()
    assert (running.source().kept_state, running.children[0].asked) == ("running", 0)


def test_a_changed_file_stops_in_order_and_starts_the_new_configuration(running):
    running.write(head="version = 3\n")
    running.look()
    assert running.children[0].asked == 1
    running.tick()
    assert running.children[1].configuration.version == 3
    assert running.source().progress.records == 5  # counters go on


def test_figures_of_all_processes_are_added_up(running):
    running.children[0].code = 1
    running.tick()
    running.tick(FIRST_PAUSE_SECONDS)
    running.children[1].runs(records=3, records_read=4, queue_records=2)
    progress = running.source().progress
    assert (progress.records, progress.records_read, progress.queue_records) == (8, 11, 2)
    running.children[1].code = 1
    running.tick()
    progress = running.source().progress
    assert (progress.records, progress.queue_records, progress.state) == (8, 0, "failed")


def again(rig, code=1):
    """Ends the last process of the source, and starts the next."""
    rig.children[-1].code = code
    rig.tick()
    rig.tick(FIRST_PAUSE_SECONDS * 2 ** len(rig.children))
    return rig.children[-1]


def left(rig):
    progress = rig.source().progress
    return progress.lag_objects, progress.lag_bytes


def test_the_lag_is_that_of_the_last_process(running):
    running.children[0].runs(objects=40, object_bytes=400, objects_total=40, bytes_total=400, listings=3)
    assert left(running) == (0, 0)
    child = again(running)
    child.runs(objects=2, object_bytes=20, objects_total=20, bytes_total=200, listings=1)
    assert left(running) == (18, 180)
    child = again(running)
    assert left(running) == (18, 180)  # as the last one has left it
    child.runs(objects=1, object_bytes=10, objects_total=5, bytes_total=50)
    assert left(running) == (17, 170)  # its first listing goes on
    child.runs(objects=18, object_bytes=180, objects_total=18, bytes_total=180)
    assert left(running) == (0, 0)
    child.runs(objects=18, object_bytes=180, objects_total=25, bytes_total=250)
    assert left(running) == (7, 70)  # it has found more than the last one left
    child.runs(objects=1, object_bytes=10, objects_total=18, bytes_total=180, listings=1)
    assert left(running) == (17, 170)


def test_no_counter_falls_at_a_restart_and_unsaved_work_counts_once(running):
    def figures():
        progress = running.source().progress
        return progress.delivered, progress.objects, progress.records

    running.children[0].runs(delivered=10, objects=10, records=100)
    child = again(running)
    assert figures() == (10, 10, 100)
    child.runs(delivered=6, objects=6, records=60, unsaved_objects=4, unsaved_records=40)
    assert figures() == (16, 16, 160)
    child = again(running, code=-9)
    child.runs(delivered=1, objects=1, unsaved_objects=1)
    assert figures() == (16, 16, 160)  # it is among the four that were not saved; its records are found stored
    child = again(running, code=-9)
    child.runs(delivered=4, objects=4)
    assert figures() == (16, 16, 160)
    child.runs(delivered=9, objects=9, records=50)
    assert figures() == (21, 21, 210)


def up(rig):
    progress = rig.source().progress
    return progress.iggy_up, progress.store_up


@pytest.mark.parametrize("code", [1, 2, 3, -9])
def test_nothing_is_up_while_a_source_cannot_work(running, code):
    assert up(running) == (True, True)
    running.children[0].code = code
    running.tick()
    assert up(running) == (False, False)
    running.supervisor.restart("orders")
    running.tick(FIRST_PAUSE_SECONDS)
    assert up(running) == (False, False)  # the next process has said nothing yet
    child = running.children[1]
    child.progress = RunStatistics()
    assert up(running) == (False, False)
    child.runs()
    assert up(running) == (True, False)  # connected; the store has answered nothing
    child.runs(listed=1)
    assert up(running) == (True, True)
    child.runs(listed=1, store_away=1)
    assert up(running) == (True, False)


def test_a_standby_has_no_lag_and_asks_no_store_whatever_its_last_process_left(running):
    """Its rules for alerts would hold for as long as it stands by."""
    running.children[0].runs(objects=2, object_bytes=20, objects_total=20, bytes_total=200, listings=1)
    child = again(running)
    child.progress = RunStatistics(state="starting")
    assert (left(running), up(running)) == ((18, 180), (False, False))
    child.progress = RunStatistics(state="standby")
    assert (left(running), up(running)) == ((0, 0), (True, True))
    child.runs()
    assert (left(running), up(running)) == ((18, 180), (True, False))  # it takes over
    child.runs(listed=1, listings=1)
    assert (left(running), up(running)) == ((0, 0), (True, True))


def test_nothing_is_up_for_a_source_that_has_never_run(rig):
    rig.write(content=text().replace("jsonl", "none"))
    rig.tick()
    assert (rig.source().status, up(rig)) == ("error", (False, False))


def test_nothing_is_up_for_a_source_whose_process_cannot_be_started(rig):
    rig.refuses = OSError(11, "too many")
    rig.write()
    rig.tick()
    assert (rig.source().status, up(rig)) == ("error", (False, False))


@pytest.mark.parametrize("state", [PAUSED, STOPPED])
def test_a_source_that_a_person_pauses_is_not_down(running, state):
    running.supervisor.set_state("orders", state)
    running.tick()
    running.tick()
    assert (running.source().status, up(running)) == ("stopped", (True, True))
    running.supervisor.set_state("orders", RUNNING)
    running.tick()
    running.children[1].runs()
    assert up(running) == (True, True)
    again(running)
    running.supervisor.set_state("orders", state)
    running.children[2].code = 1
    running.tick()
    running.tick()
    assert (running.source().status, up(running)) == ("stopped", (True, True))


def test_a_change_counts_when_two_looks_agree(running):
    path = running.write(content="[sour")
    running.tick(2)
    path.write_text(text(head="version = 1\n"))
    running.tick(2)
    assert (running.source().last_error, running.children[0].asked) == (None, 0)
    running.tick(2)
    assert running.children[0].asked == 1


def test_a_wrong_change_leaves_the_former_configuration_at_work(running):
    running.write(content="[sour")
    running.look()
    source = running.source()
    assert (source.status, running.children[0].asked) == ("running", 0)
    assert "not valid TOML" in source.last_error.message
    running.children[0].code = 1
    running.tick()
    running.tick(1e6)
    assert (source.status, len(running.children)) == ("error", 1)
    assert "not valid TOML" in source.last_error.message
    running.write()
    running.look()
    assert (source.status, len(running.children)) == ("starting", 2)


def test_a_restart_reads_a_wrong_configuration_again(rig, tmp_path):
    """The file is as it was: a secret that it names has come since."""
    secret = tmp_path / "secret"
    rig.write(content=text().replace("iggy://iggy:iggy@", f"iggy://iggy:${{file:{secret}}}@"))
    rig.tick()
    for _ in range(2):
        with pytest.raises(BusyError, match="secret cannot be read"):
            rig.supervisor.restart("orders")
    assert (rig.source().status, rig.source().errors) == ("error", 3)
    secret.write_text("drowssap")
    rig.supervisor.restart("orders")
    rig.tick()
    assert (rig.source().status, rig.source().last_error, len(rig.children)) == ("starting", None, 1)


def test_a_restart_of_a_version_reads_it_again(running, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("drowssap")
    wanted = text().replace("iggy://iggy:iggy@", f"iggy://iggy:${{file:{secret}}}@").encode()
    running.supervisor.add_version("orders", lambda _: b"version = 1\n" + wanted)
    running.supervisor.activate("orders", 1)
    secret.unlink()
    running.begin()
    running.tick()
    assert "secret cannot be read" in running.source().last_error.message
    secret.write_text("drowssap")
    running.supervisor.restart("orders")
    running.tick()
    assert running.source().running.version == 1


def test_a_restart_of_a_source_that_runs_beside_a_wrong_file_is_refused(running):
    running.write(content="[sour")
    running.look()
    with pytest.raises(BusyError, match="not valid TOML"):
        running.supervisor.restart("orders")
    running.tick()
    assert (running.source().status, running.children[0].asked) == ("running", 0)
    running.write()
    running.supervisor.restart("orders")  # at once, without waiting for the next looks
    running.tick()
    running.tick()
    assert (running.children[0].asked, len(running.children)) == (1, 2)


def test_a_restart_of_a_file_that_names_its_source_now(rig, tmp_path):
    (tmp_path / "conf.d" / "orders.toml").write_text('include = ["common.inc"]\n')
    rig.tick()
    assert rig.keys() == ["orders.toml"]
    (tmp_path / "conf.d" / "common.inc").write_text(text())
    rig.supervisor.restart("orders.toml")
    rig.tick()
    assert (rig.keys(), len(rig.children)) == (["orders"], 1)


def test_the_way_out_of_a_disabled_version(running):
    running.supervisor.add_version("orders", lambda _: b"version = 1\nenabled = false\n" + text().encode())
    running.supervisor.activate("orders", 1)
    with pytest.raises(BusyError, match="activate another version"):
        running.supervisor.restart("orders")


def test_a_source_under_another_key_waits_for_its_former_process(running, caplog):
    caplog.set_level("INFO")
    running.children[0].obeys = False
    running.write(head='key = "lake"\n')
    running.look()
    assert running.keys() == ["lake"]
    assert (len(running.children), running.source("lake").status) == (1, "starting")
    assert caplog.text.count("lake: waits for the end of orders, which still has the source orders") == 1
    running.children[0].code = 0
    running.tick()
    running.tick()
    assert (len(running.children), running.source("lake").status) == (2, "starting")
    assert running.source("lake").last_error is None


def test_a_removed_file_stops_its_source_and_a_file_that_returns_starts_it(running):
    path = running.conf / "orders.toml"
    content = path.read_text()
    path.unlink()
    running.look()
    assert (running.children[0].asked, running.keys()) == (1, [])
    with pytest.raises(UnknownSourceError):
        running.source()
    path.write_text(content)
    running.look()
    assert (running.keys(), len(running.children)) == (["orders"], 2)


def test_a_source_whose_file_was_removed_is_unknown_while_it_ends(running):
    running.children[0].obeys = False
    (running.conf / "orders.toml").unlink()
    running.look()
    assert (running.children[0].asked, running.children[0].code) == (1, None)
    with pytest.raises(UnknownSourceError):
        running.source()
    with pytest.raises(UnknownSourceError):
        running.supervisor.set_state("orders", "running")


def test_a_folder_that_goes_away_ends_nothing(running, tmp_path):
    running.conf.rename(tmp_path / "elsewhere")
    running.look()
    assert (running.keys(), running.children[0].asked) == (["orders"], 0)


def test_disabled_in_its_file(rig):
    rig.write(head="enabled = false\n")
    rig.tick()
    assert (rig.source().status, rig.children) == ("stopped", [])
    with pytest.raises(BusyError, match="enabled = true"):
        rig.supervisor.restart("orders")


def test_a_process_that_cannot_be_started_is_tried_again(rig):
    rig.write()
    rig.refuses = OSError(11, "Resource temporarily unavailable")
    rig.tick()
    assert rig.source().status == "error"
    assert "temporarily unavailable" in rig.source().last_error.message
    rig.refuses = None
    rig.tick(10)
    assert len(rig.children) == 1


def test_one_look_serves_all_who_wake_the_worker(rig, monkeypatch):
    looks, tick = [], rig.supervisor.tick

    def look():
        looks.append(1)
        if len(looks) == 2:
            rig.supervisor.stop()
        return tick()

    monkeypatch.setattr(rig.supervisor, "tick", look)
    for _ in range(1000):
        rig.supervisor.wake()
    assert rig.supervisor.run() == 0
    assert len(looks) == 2


def test_the_end_of_the_worker_stops_all_and_waits(rig):
    for name in ("a", "b"):
        rig.write(name)
    rig.tick()
    rig.children[1].obeys = False
    rig.supervisor.stop()
    assert not rig.tick()
    assert [child.asked for child in rig.children] == [1, 1]
    assert not rig.tick()
    rig.children[1].code = 0
    assert rig.tick()
    assert rig.supervisor.run() == 0


@pytest.mark.parametrize("code", [0, 1, 2, 3, -9])
def test_a_single_source_ends_the_program_with_its_exit_code(tmp_path, code):
    rig = Rig(tmp_path, single=True)
    rig.write()
    rig.tick()
    rig.children[0].code = code
    assert rig.tick()
    ended = rig.supervisor.run()
    rig.close()
    assert ended == (1 if code < 0 else code)


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (1, 0), (-15, 0), (-2, 0), (-9, 1), (3, 3)])
def test_a_single_source_that_is_stopped_while_it_loads_was_stopped(tmp_path, code, ended):
    """It cannot say so yet: the signal ends it. A kill, after a stop that it did not obey, is an error."""
    rig = Rig(tmp_path, single=True)
    rig.write()
    rig.tick()
    rig.supervisor.stop()
    rig.tick()
    rig.children[0].code = code
    assert rig.tick()
    found = rig.supervisor.run()
    rig.close()
    assert found == ended


def test_a_single_source_whose_file_is_gone_runs_on_and_says_so_once(tmp_path, caplog):
    rig = Rig(tmp_path, single=True)
    path = rig.write()
    rig.tick()
    path.unlink()
    rig.look()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{path} cannot be read, what runs goes on: No such file or directory"]
    assert rig.children[0].asked == 0
    rig.close()


def test_a_single_source_that_is_paused_keeps_the_program(tmp_path):
    rig = Rig(tmp_path, single=True)
    rig.write()
    rig.tick()
    rig.supervisor.set_state("orders", "paused")
    rig.tick()
    assert not rig.tick()
    rig.supervisor.stop()
    assert rig.tick()
    assert rig.supervisor.run() == 0
    rig.close()


# ---- versions


def stored(rig, name="orders", head=""):
    made = rig.supervisor.add_version(name, lambda version: text(name, f"version = {version}\n{head}").encode())
    return made.version


def test_versions_count_up_and_one_is_active(running):
    assert [stored(running), stored(running)] == [1, 2]
    assert list(running.supervisor.versions("orders")) == [0, 1, 2]
    running.supervisor.activate("orders", 2)
    running.tick()
    running.tick()
    assert running.children[-1].configuration.version == 2
    running.begin()
    running.tick()
    assert running.source().active.version == 2
    running.supervisor.activate("orders", 0)
    assert running.source().active.path == running.conf / "orders.toml"


def test_the_number_of_a_deleted_version_is_not_given_again(running):
    """Who stored version 2, and activates it, must not run what another client has stored since."""
    assert [stored(running), stored(running)] == [1, 2]
    running.supervisor.remove_version("orders", 2)
    running.begin()
    running.tick()
    assert stored(running) == 3


def test_a_source_has_a_hundred_versions_at_most(running):
    assert [stored(running) for _ in range(100)][-1] == 100
    with pytest.raises(BusyError, match=r"orders has 100 stored .* DELETE /sources/orders/configs\?version=1$"):
        stored(running)
    running.supervisor.remove_version("orders", 1)
    assert stored(running) == 101


def test_the_version_to_delete_is_one_that_can_be_deleted(running):
    for _ in range(100):
        stored(running)
    running.write(head="version = 1\n")
    running.look()
    with pytest.raises(BusyError) as refused:
        stored(running)
    running.supervisor.remove_version("orders", int(str(refused.value).rpartition("=")[2]))
    assert stored(running) == 101


def test_a_wrong_or_unknown_version_is_not_activated(running):
    running.supervisor.add_version("orders", lambda _version: b"[source]\n")
    with pytest.raises(BusyError, match="missing"):
        running.supervisor.activate("orders", 1)
    with pytest.raises(UnknownVersionError):
        running.supervisor.activate("orders", 7)
    assert running.source().active.version == 0
    running.tick()
    assert running.children[0].asked == 0


def test_deleting_another_version_than_the_active_one_starts_no_source_that_waits_for_a_person(running):
    stored(running)
    running.children[0].code = 3
    running.tick()
    running.supervisor.remove_version("orders", 1)
    running.tick()
    assert (len(running.children), running.source().status) == (1, "error")


def test_a_stored_version_that_the_file_hides_can_be_deleted(running):
    stored(running)
    path = running.write(head="version = 1\n")
    running.look()
    with pytest.raises(BusyError, match=f"version 1 of orders is the file {path}"):
        running.supervisor.remove_version("orders", None)
    running.supervisor.remove_version("orders", 1)
    assert not running.state.versions("orders")
    assert running.supervisor.versions("orders")[1].path == path
    with pytest.raises(BusyError, match="is the file"):
        running.supervisor.remove_version("orders", 1)


def test_a_version_that_could_not_be_deleted_at_first_returns_to_the_file(running, monkeypatch):
    stored(running)
    running.supervisor.activate("orders", 1)

    def refuse(_path):
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(running.state, "remove", refuse)
        with pytest.raises(OSError, match="no"):
            running.supervisor.remove_version("orders", 1)
        assert running.source().active.version == 0  # as it would be after a restart of the worker
    running.supervisor.remove_version("orders", 1)
    assert running.source().active.version == 0


def test_deleting_the_active_version_returns_to_the_file(running):
    stored(running)
    running.supervisor.activate("orders", 1)
    running.supervisor.remove_version("orders", None)
    assert running.source().active.version == 0
    assert list(running.supervisor.versions("orders")) == [0]
    with pytest.raises(BusyError, match="is the file"):
        running.supervisor.remove_version("orders", None)
    with pytest.raises(UnknownVersionError):
        running.supervisor.remove_version("orders", 1)


def test_an_active_version_that_is_gone_is_an_error_and_not_silently_another(running):
    stored(running)
    running.supervisor.activate("orders", 1)
    running.tick()
    running.tick()
    for path in running.state.versions("orders").values():
        path.unlink()
    running.begin()
    running.tick()
    source = running.source()
    assert (source.status, len(running.children)) == ("error", 2)
    assert "version 1 is active and cannot be read, it is gone" in source.last_error.message
    with pytest.raises(BusyError, match="cannot be read"):
        running.supervisor.restart("orders")
    running.supervisor.activate("orders", 0)
    running.tick()
    assert len(running.children) == 3


def test_a_changed_file_does_not_displace_an_activated_version(running):
    stored(running)
    running.supervisor.activate("orders", 1)
    running.tick()
    running.tick()
    running.write(head='name = "Changed"\n')
    running.look()
    assert running.source().active.version == 1
    assert len(running.children) == 2


def test_a_file_that_takes_the_number_of_the_activated_version_replaces_it_for_good(running):
    stored(running, head='name = "of the API"\n')
    running.supervisor.activate("orders", 1)
    running.tick()
    for version in (1, 2):
        running.write(head=f'version = {version}\nname = "of the file"\n')
        running.look()
        assert running.source().active.label == "of the file"
    running.begin()
    running.tick()
    assert running.source().active.label == "of the file"


def test_a_state_that_cannot_be_written_ends_no_worker_when_a_file_takes_the_number(running, monkeypatch, caplog):
    stored(running)
    running.supervisor.activate("orders", 1)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    running.write(head="version = 1\n")
    with monkeypatch.context() as patched:
        patched.setattr(running.state, "_write", refuse)
        running.look()
    assert running.source().active.path == running.conf / "orders.toml"
    assert "orders: that version 1 is its file's now cannot be kept: No space left on device" in caplog.text


def test_a_changed_file_that_an_activated_version_includes_starts_it_again(running, tmp_path):
    common = tmp_path / "common.inc"
    common.write_text("[input]\nmax_record_bytes = 1000\n")
    stored(running, head=f'include = ["{common}"]\n')
    running.supervisor.activate("orders", 1)
    running.tick()
    running.look()
    running.look()
    assert (len(running.children), running.source().active.version) == (2, 1)
    common.write_text("# a comment is no change\n[input]\nmax_record_bytes = 1000\n")
    running.look()
    assert running.children[1].asked == 0
    common.write_text("[input]\nmax_record_bytes = 2000\n")
    running.tick(FOLDER_SECONDS)
    assert running.children[1].asked == 0, "a file may be seen half-written"
    running.look()
    assert (running.children[1].asked, len(running.children)) == (1, 3)
    assert running.children[2].configuration.mapping["input"]["max_record_bytes"] == 2000


def test_a_wrong_file_that_an_activated_version_includes_is_an_error_until_it_is_right(running, tmp_path):
    common = tmp_path / "common.inc"
    common.write_text("[input]\nmax_record_bytes = 1000\n")
    stored(running, head=f'include = ["{common}"]\n')
    running.supervisor.activate("orders", 1)
    running.tick()
    running.look()
    common.unlink()
    running.look()
    source = running.source()
    assert "common.inc: the configuration file cannot be read" in source.last_error.message
    assert running.children[1].asked == 0, "the former configuration runs on"
    common.write_text("[input]\nmax_record_bytes = 2000\n")
    running.look()
    assert (source.last_error, len(running.children)) == (None, 3)


# ---- while it is stopped


def test_offsets_are_changed_only_while_it_is_stopped_and_it_does_not_start_meanwhile(running):
    with pytest.raises(NotStoppedError), running.supervisor.while_stopped("orders"):
        pass
    running.supervisor.set_state("orders", "paused")
    running.tick()
    running.tick()
    with pytest.raises(NotStoppedError), running.supervisor.while_stopped("orders"):
        pass
    running.supervisor.set_state("orders", "stopped")
    with running.supervisor.while_stopped("orders") as configuration:
        assert configuration.source == "orders"
        running.supervisor.set_state("orders", "running")
        running.tick(1e6)
        assert len(running.children) == 1
        with pytest.raises(NotStoppedError), running.supervisor.while_stopped("orders"):
            pass
        running.supervisor.set_state("orders", "stopped")
        with pytest.raises(BusyError, match="under way"), running.supervisor.while_stopped("orders"):
            pass
        running.supervisor.set_state("orders", "running")
    running.tick()
    assert len(running.children) == 2


@pytest.mark.parametrize("head", ["", 'key = "lake"\n'])
def test_a_file_that_returns_meanwhile_waits_for_the_change_of_its_offsets(running, head):
    running.supervisor.set_state("orders", "stopped")
    running.tick()
    running.tick()
    with running.supervisor.while_stopped("orders"):
        (running.conf / "orders.toml").unlink()
        running.look()
        running.write(head=head)
        running.look()
        (key,) = running.keys()
        running.supervisor.set_state(key, "running")
        running.tick(1e6)
        assert len(running.children) == 1
    running.tick()
    running.tick()
    assert len(running.children) == 2


def test_a_folder_without_a_source_is_a_warning(rig, caplog):
    (rig.conf / "orders.conf").write_text(text())
    rig.tick()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"{rig.conf} has no file *.toml: a source starts as soon as there is one"
