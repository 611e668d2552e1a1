"""The log of a task in another process: the leader says it, in its own form."""

import logging
import pickle
import threading

import pytest

from framework.engine.log_forwarding import TRACE, LogForwarder, LogLine, text_of
from framework.errors import ConfigError
from framework.pipeline.sender import OBJECTS_LOGGER


@pytest.fixture
def told():
    """(a logger as in a task's process, what was told)."""
    heard = []
    log = logging.Logger("framework.of_a_task")  # noqa: LOG001 - one that nobody else hears
    log.addHandler(LogForwarder(heard.append))
    return log, heard


def test_warnings_are_told_and_nothing_less(told):
    log, heard = told
    log.info("nothing of importance")
    log.warning("skipped %d of %s", 3, "100%")
    log.error("and this")
    name = "framework.of_a_task"
    assert heard == [LogLine(name, logging.WARNING, "skipped 3 of 100%"), LogLine(name, logging.ERROR, "and this")]


def test_they_are_repeated_under_their_own_name(caplog):
    line = LogLine("framework.of_a_task", logging.WARNING, "3 of 100%", {}, 1_700_000_000.25)
    pickle.loads(pickle.dumps(line)).repeat()
    (record,) = caplog.records
    assert record.created == line.at_seconds, "executors send their lines when a job ends"
    assert (record.name, record.levelname, record.getMessage()) == ("framework.of_a_task", "WARNING", "3 of 100%")


def test_a_trace_travels_as_text(told):
    log, heard = told
    try:
        int("no number")
    except ValueError:
        log.exception("failed")
    (said,) = heard
    assert said.text.startswith("failed: ValueError: invalid literal")
    assert "Traceback" not in said.text
    assert 'int("no number")' in pickle.loads(pickle.dumps(said)).fields[TRACE]


def test_an_error_travels_without_the_secrets_in_its_message(told):
    log, heard = told
    try:
        raise ValueError("b'<SecretAccessKey>hunter22")  # noqa: TRY301
    except ValueError:
        log.exception("failed")
    (said,) = heard
    assert said.text == "failed: ValueError: b'<SecretAccessKey>***"


def test_fields_travel_too(told, caplog):
    log, heard = told
    log.warning("left out", extra={"key": "a"})
    (said,) = heard
    pickle.loads(pickle.dumps(said)).repeat()
    assert caplog.records[0].key == "a"


def test_lines_about_objects_are_told_although_they_are_no_warnings():
    heard = []
    log = logging.Logger(OBJECTS_LOGGER)  # noqa: LOG001 - one that nobody else hears
    log.addHandler(LogForwarder(heard.append))
    log.info("object done", extra={"key": "a"})
    assert heard == [LogLine(OBJECTS_LOGGER, logging.INFO, "object done", {"key": "a"})]


def test_fields_that_cannot_travel_travel_as_text(told):
    """A library may give its lines whatever it has at hand; a pipe takes no lock, and a job with one would be lost."""
    log, heard = told
    log.warning("slow", extra={"seconds": 3, "lock": threading.Lock(), "keys": ["a"]})
    (said,) = pickle.loads(pickle.dumps(heard))
    assert said.fields["seconds"] == 3
    assert said.fields["lock"].startswith("<unlocked _thread.lock")
    assert said.fields["keys"] == "['a']"


def test_a_line_that_cannot_be_formatted_disturbs_nobody(told, capsys):
    """The fault of a line is no failure of the work, and the leader says it in its own form."""
    log, heard = told
    log.warning("%d objects", "many")
    (said,) = heard
    assert said.level == logging.ERROR
    assert said.text.startswith("a line of the log framework.of_a_task could not be written: TypeError: %d format")
    assert capsys.readouterr().err == ""


def test_an_error_of_our_own_names_its_option_and_key():
    record = logging.LogRecord("framework.x", logging.WARNING, "", 0, "failed", (), None)
    record.exc_info = (ConfigError, ConfigError("s3.secret_access_key: is missing"), None)
    assert text_of(record) == "failed: ConfigError: s3.secret_access_key: is missing"
