"""The client's texts, as observed with apache-iggy 0.9.0, each to the error that says what to do."""

import pytest

from framework.errors import (
    ConfigError,
    FatalError,
    IggyAuthError,
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    UnknownOutcomeError,
)
from framework.iggy.errors_map import classify, not_sent

BROKEN = [
    "Disconnected",
    "Cannot establish connection",
    "TCP error",
    "Not connected",
    "Client shutdown",
    "Stale client",
    "Connection closed",
    "Unauthenticated",
    "Request transiently not committed; retry",
    "Request transiently not accepted; retry, on any replica",
    "Request already applied; its reply is no longer available",
    "a text that nobody has seen before",
    "",
]
REFUSED = [
    ("Invalid credentials", IggyAuthError),
    ("Invalid personal access token", IggyAuthError),
    ("User inactive", IggyAuthError),
    ("Unauthorized", IggyAuthError),
    ("Stream with ID: 0 was not found.", IggyTopicError),
    ("Topic with ID: 0 for stream with ID: 0 was not found.", IggyTopicError),
    ("Partition with ID: 0 for topic with ID: 0 for stream with ID: 0 was not found.", IggyTopicError),
    ("Resource with key:  was not found.", IggyTopicError),
    ("Stream with name:  already exists.", IggyTopicError),
    ("Topic with name:  for stream with ID: 0 already exists.", IggyTopicError),
    ("Invalid command", IggyProtocolError),
    ("Feature is unavailable", IggyProtocolError),
    ("Too big message payload", IggyProtocolError),
    ("Too many messages", IggyProtocolError),
    ("Invalid TLS certificate path", IggyProtocolError),
    ("Incompatible protocol version", IggyProtocolError),
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_break_leaves_a_send_open_and_nothing_else(text):
    sent = classify(RuntimeError(text), "send", server="h:1", sending=True)
    assert type(sent) is UnknownOutcomeError
    asked = classify(RuntimeError(text), "ask", server="h:1")
    assert type(asked) is IggyUnavailableError


@pytest.mark.parametrize(("text", "kind"), REFUSED)
def test_a_refusal_is_fatal_and_names_what_and_where(text, kind):
    error = classify(RuntimeError(text), 'send to topic "t"', server="h:1", login='user "ann"')
    assert type(error) is kind
    assert isinstance(error, FatalError)
    assert str(error).startswith('send to topic "t": ')
    assert "h:1" in str(error)


@pytest.mark.parametrize(("text", "kind"), REFUSED)
def test_a_refused_send_is_fatal_unless_its_place_is_gone(text, kind):
    """It was deleted or renamed while the source ran: a recovery looks at all topics, and names the ways out."""
    error = classify(RuntimeError(text), 'send to topic "t"', server="h:1", sending=True)
    gone = "was not found" in text
    assert type(error) is (IggyUnavailableError if gone else kind)
    assert str(error).startswith('send to topic "t": ')
    assert "h:1" in str(error)


def test_credentials_are_named():
    assert 'user "ann"' in str(classify(RuntimeError("Invalid credentials"), "connect", server="h", login='user "ann"'))


@pytest.mark.parametrize("error", [ValueError("bad"), TypeError("bad"), OverflowError("bad")])
def test_bad_arguments_were_never_sent(error):
    assert type(classify(error, "send", server="h", sending=True)) is IggyProtocolError


def test_our_own_errors_stay():
    error = ConfigError("x")
    assert classify(error, "send", server="h", sending=True) is error


@pytest.mark.parametrize(("sending", "kind"), [(True, UnknownOutcomeError), (False, IggyUnavailableError)])
def test_a_server_whose_disk_refuses_is_said_so(sending, kind):
    error = classify(RuntimeError("Cannot append message"), 'send to topic "t"', server="h:1", sending=sending)
    assert type(error) is kind
    assert 'topic "t"' in str(error)
    assert "is the disk of the server full?" in str(error)


@pytest.mark.parametrize("sending", [False, True])
def test_a_full_disk_is_named_and_needs_a_person_whichever_request_tells_of_it(sending):
    told = [
        classify(RuntimeError("Cannot append message"), "send", server="h", sending=sending),
        not_sent("read", "Cannot append message", server="h"),
    ]
    assert [error.exit_code for error in told] == [3, 3]
    assert all("is the disk of the server full?" in str(error) for error in told)
    assert not_sent("read", "no answer", server="h").exit_code == 1


def test_advice_about_a_refused_login_is_about_the_given_one():
    refused = RuntimeError("Invalid personal access token")
    said = str(classify(refused, "connect", server="iggy:8090", login="the access token"))
    assert "does not accept the access token" in said
    assert "check [iggy] token, or what follows token= in url" in said
    assert "password" not in said
    said = str(classify(RuntimeError("Invalid credentials"), "connect", server="iggy:8090", login='user "iggy"'))
    assert "[iggy] username and password" in said
    assert "a variable ${env:NAME}" in said


def test_a_server_that_does_not_answer_may_speak_tls_or_another_transport():
    said = str(classify(RuntimeError("Cannot establish connection"), "connect", server="iggy:8090"))
    assert "check that the server runs, and host, port, transport and TLS in [iggy]" in said


def test_a_missing_permission_names_the_command_that_tells_which():
    said = str(classify(RuntimeError("Unauthorized"), 'make topic "t"', server="iggy:8090", login='user "ann"'))
    assert said.startswith('make topic "t": user "ann" may not do this on Iggy at iggy:8090')
    assert said.endswith("the command check names what is missing, also if the user was deleted")
