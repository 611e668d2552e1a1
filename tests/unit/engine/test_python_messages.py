"""What Python would print is a line of the log."""

import contextlib
import logging
import sys
import threading
import warnings

import pycurl
import pytest

from framework.engine.python_messages import log_python_messages


class Broken:
    def __del__(self):
        raise ValueError("in a finalizer")


@pytest.mark.filterwarnings("default::FutureWarning")
def test_warnings_and_uncaught_exceptions_are_lines_and_everything_is_given_back(caplog, capsys):
    before = threading.excepthook, sys.excepthook, sys.unraisablehook, warnings.showwarning
    with log_python_messages():
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: int("x"), name="library")
        thread.start()
        thread.join()
        broken = Broken()
        del broken
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert lines[:2] == [(logging.WARNING, "FutureWarning: of a library"), (logging.ERROR, "the thread library ended")]
    assert lines[2][0] == logging.WARNING
    assert [record.exc_info[0] for record in caplog.records[1:]] == [ValueError, ValueError]
    assert capsys.readouterr().err == ""
    assert (threading.excepthook, sys.excepthook, sys.unraisablehook, warnings.showwarning) == before


def test_an_exception_that_pycurl_prints_is_a_line(caplog, capfd):
    def fail(*_):
        raise ValueError("in a callback")

    easy = pycurl.Curl()
    easy.setopt(pycurl.URL, "file:///proc/self/status")
    easy.setopt(pycurl.WRITEFUNCTION, fail)
    with log_python_messages(), contextlib.closing(easy), pytest.raises(pycurl.error):
        easy.perform()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "a function that a library called failed")
    assert str(record.exc_info[1]) == "in a callback"
    assert capfd.readouterr().err == ""
