"""Translation of the official client's errors.

The client raises `RuntimeError` with a text, and leaves the names in it blank. The table of texts is only
here; `tests/integration/test_iggy_door.py` compares it with the answers of real servers.
"""

from __future__ import annotations

import enum
import re

from framework.config.iggy_address import ACCESS_TOKEN
from framework.errors import (
    EXIT_PERSON,
    IggyAuthError,
    IggyProtocolError,
    IggyTopicError,
    IggyUnavailableError,
    SourceError,
    UnknownOutcomeError,
)


class Answer(enum.Enum):
    """Meaning of a client error.

    `BROKEN` leaves open whether the request was carried out. All others are refusals by the server or the
    client: the request was not carried out, and the connection remains usable.
    """

    BROKEN = "broken"
    AUTH = "auth"
    DENIED = "denied"
    MISSING = "missing"
    EXISTS = "exists"
    VERSION = "version"
    REFUSED = "refused"


# The first match counts. Texts are those of apache-iggy 0.9. Any other one is that of a break, such as "Unauthenticated":
# the session is gone with its connection, and at login wrong credentials have their own text.
_TABLE: tuple[tuple[str, Answer], ...] = (
    (r"already exists", Answer.EXISTS),
    (r"was not found|not found in|does not exist", Answer.MISSING),
    (r"invalid credentials|invalid (username|password)|access token|user inactive", Answer.AUTH),
    (r"^unauthorized", Answer.DENIED),
    (r"protocol version|invalid version|incompatible", Answer.VERSION),
    (r"tls (certificate|domain)|failed to add certificate", Answer.REFUSED),
    (r"invalid (command|format|identifier|configuration)|feature is unavailable", Answer.REFUSED),
    (
        r"too big|too many|empty message|invalid (messages count|partitions count|topic|stream|header|size|offset)",
        Answer.REFUSED,
    ),
    (r"topic .*full|limit reached", Answer.REFUSED),
)


_STATUS_TEXTS = {
    20: "Resource was not found",
    40: "Unauthenticated",
    41: "Unauthorized",
    57: "Request transiently not committed",
    58: "Request transiently not accepted",
    59: "Request already applied",
    1009: "Stream was not found",
    1010: "Stream was not found",
    2010: "Topic was not found",
    2011: "Topic was not found",
    3007: "Partition was not found",
    4006: "Cannot save messages to segment",
    4010: "Cannot append message",
    10005: "Cannot append to file",
    10006: "Cannot write to file",
    10007: "Cannot write over file",
    10009: "Cannot sync file",
}
"""What a send or a membership can be answered with, in the official client's words as far as the table above needs them."""


_MESSAGES_REFUSED = range(4009, 4050)
"""Statuses for what messages hold."""


def text_of(status: int) -> str:
    """Return the text of a status in an answer of the server."""
    refused = "Invalid messages count, header or size, " if status in _MESSAGES_REFUSED else ""
    return _STATUS_TEXTS.get(status, f"{refused}status {status}")


CONNECT = "connect"
"""The call that connects, for `classify`."""

_NOT_STORED = re.compile(r"cannot (append|write|sync|create|save)", re.IGNORECASE)
"""The server's disk failed. It may work again in a moment, so this counts as a break."""


def answer_of(error: BaseException) -> Answer:
    """Return the meaning of a client error. An unknown text counts as broken: the outcome is then unknown."""
    if isinstance(error, (ValueError, TypeError, OverflowError)):
        return Answer.REFUSED  # bad arguments, refused before anything was sent
    text = str(error)
    for pattern, answer in _TABLE:
        if re.search(pattern, text, re.IGNORECASE):
            return answer
    return Answer.BROKEN


def classify(error: BaseException, what: str, *, server: str, login: str = "", sending: bool = False) -> SourceError:  # noqa: PLR0911  (a table)
    """Return the framework's error for a failed call.

    Args:
        error: as the client raised it, or the framework's `TimeoutError`.
        what: the call, with its names: `send to topic "orders", partition 3, of stream "lake"`.
        server: `host:port`.
        login: the user, for errors about credentials.
        sending: whether the call stores records; after a break it is then unknown whether they are
            stored.
    """
    if isinstance(error, SourceError):
        return error
    text = str(error).strip().rstrip(".") or type(error).__name__
    answer = answer_of(error)
    match answer:
        case Answer.BROKEN:
            return _broken(text, what, server=server, sending=sending)
        case Answer.AUTH:
            advice = (
                "check [iggy] token, or what follows token= in url; it may have expired"
                if login == ACCESS_TOKEN
                else "check who logs in: [iggy] username and password, or what stands before the @ in url, where a % in a "
                "password is written %25, and a variable ${env:NAME}"
            )
            return IggyAuthError(
                f"{what}: Iggy at {server} does not accept {login or 'the credentials'} ({text}); {advice}"
            )
        case Answer.VERSION:
            return IggyProtocolError(
                f"{what}: Iggy at {server} speaks another version of the protocol; this needs a server 0.9 ({text})"
            )
        case Answer.DENIED:
            return IggyAuthError(
                f"{what}: {login or 'the user'} may not do this on Iggy at {server} ({text}); "
                "grant it: the command check names what is missing, also if the user was deleted"
            )
        case Answer.MISSING if sending:
            # deleted or renamed while the source ran: a recovery looks at all topics and says what to do
            return IggyUnavailableError(f"{what}: no such stream, topic or partition any more on Iggy at {server}")
        case Answer.MISSING:
            return IggyTopicError(f"{what}: no such stream, topic or partition on Iggy at {server}")
        case Answer.EXISTS:
            return IggyTopicError(f"{what}: there is one already on Iggy at {server}")
        case _:
            hint = "; check [iggy] url or address" if what == CONNECT else ""
            return IggyProtocolError(f"{what}: refused by Iggy at {server} or its client: {text}{hint}")


def not_sent(what: str, failure: str, *, server: str) -> IggyUnavailableError:
    """Return the error for a request that waited behind a request that broke the connection."""
    head = f"{what}: not sent, the connection to Iggy at {server} is gone"
    if not _NOT_STORED.search(failure):
        return IggyUnavailableError(f"{head}: {failure}")
    error = IggyUnavailableError(f"{head}: it could not store it ({failure}); is the disk of the server full?")
    error.exit_code = EXIT_PERSON
    return error


def _broken(text: str, what: str, *, server: str, sending: bool) -> IggyUnavailableError:
    """Return the error for a request whose outcome is unknown."""
    kind = UnknownOutcomeError if sending else IggyUnavailableError
    if _NOT_STORED.search(text):
        error = kind(f"{what}: Iggy at {server} could not store it ({text}); is the disk of the server full?")
        error.exit_code = EXIT_PERSON  # when it outlasts all patience
        return error
    if sending:
        return kind(f"{what}: the connection to Iggy at {server} broke ({text}); the records may or may not be stored")
    hint = "; check that the server runs, and host, port, transport and TLS in [iggy]" if what == CONNECT else ""
    return kind(f"{what}: Iggy at {server} did not answer ({text}){hint}")
