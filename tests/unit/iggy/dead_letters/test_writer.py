"""Messages of the dead letter topic that this program cannot have written: anybody may write there."""

from __future__ import annotations

import attrs
import pytest

from framework.errors import IggyTopicError, IggyUnavailableError, RecordError
from framework.iggy import topics
from framework.iggy.dead_letters.reader import DeadLetterLog
from framework.iggy.dead_letters.writer import (
    IggyDeadLetters,
    StoredDeadLetter,
    ensure_dead_letter_topic,
    read_dead_letter,
)
from framework.iggy.topics import PartitionDamagedError
from framework.model.message_ids import MAX_RECORD, MAX_SPLIT
from framework.model.objects import NativeObject, TopicPartition
from framework.model.positions import OffsetManagerEntry
from framework.pipeline.dead_letters import DeadLetter
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from tests.support.iggy_messages import append

DEAD = "dead"


@pytest.fixture
def server():
    made = MemoryIggy()
    with made.connect() as connection:
        ensure_dead_letter_topic(connection, "kit", DEAD)
        native = NativeObject(scheme="s3", bucket="b", key="k", size=1, version="v")
        dead_letter = DeadLetter(
            native=native,
            entry=OffsetManagerEntry.start(native, TopicPartition("t", 1)),
            record_number=7,
            error=RecordError("no", byte_offset=3),
            raw=b"x",
            length=1,
        )
        box = IggyDeadLetters(connection, source_config(dead_letter_bytes=9), DEAD)
        box.send([dead_letter])
        for kind in ("note", "replayed"):
            append(connection, "kit", DEAD, 0, b"{}", headers={"letter": kind, "source": "kit"})
    return made


@pytest.mark.parametrize(
    "forged",
    [
        {"record": "9" * 200},
        {"record": str(1 << 40)},
        {"record": "²"},
        {"record": "-1"},
        {"record": "1_0"},
        {"share": "99999999/1024"},
        {"partition": "1000"},
        {"partition": "x"},
        {"byte_offset": "9" * 5000},
        {"length": "9" * 30},
        {"topic": "17"},
        {"topic": "a\x1b[2J"},
    ],
    ids=lambda forged: f"{next(iter(forged))}={ascii(next(iter(forged.values())))[:12]}",
)
def test_dead_letters_that_this_program_cannot_have_written_are_passed_over(server, forged):
    message = server.messages("kit", DEAD)[0]
    dead_letter = read_dead_letter(message, "kit")
    assert isinstance(dead_letter, StoredDeadLetter)
    assert (dead_letter.record, dead_letter.topic_partition, dead_letter.byte_offset, dead_letter.length) == (
        7,
        TopicPartition("t", 1),
        3,
        1,
    )
    assert read_dead_letter(attrs.evolve(message, headers={**message.headers, **forged}), "kit") is None


def test_a_dead_letter_of_the_last_record_and_the_last_split_that_an_id_holds_is_read(server):
    message = server.messages("kit", DEAD)[0]
    most = {"record": str(MAX_RECORD), "share": f"{MAX_SPLIT}/1024"}
    dead_letter = read_dead_letter(attrs.evolve(message, headers={**message.headers, **most}), "kit")
    assert (dead_letter.record, dead_letter.split_number) == (MAX_RECORD, MAX_SPLIT)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"letters":[["x","0","record"]]}',
        b'{"letters":[[1e30,"0","record"]]}',
        b'{"letters":[],"ends":[[["a"],0,1]]}',
        b'{"letters":[],"ends":[["a",-1,1]]}',
        b'{"letters":[],"ends":[["a",0,"x"]]}',
        b'{"letters":7}',
        b"7",
    ],
    ids=lambda body: body[:40].decode(),
)
def test_notes_that_this_program_cannot_have_written_are_passed_over(server, body):
    for message in server.messages("kit", DEAD)[1:]:
        good = b'{"letters":[[5,"0a","object"]],"ends":[["t",0,4]]}'
        assert read_dead_letter(attrs.evolve(message, payload=good), "kit") is not None
        assert read_dead_letter(attrs.evolve(message, payload=body), "kit") is None


@pytest.mark.parametrize("late", [False, True], ids=["damaged", "late"])
def test_a_topic_that_does_not_return_its_last_dead_letter_is_damaged(server, monkeypatch, late):
    """As a real server leaves it that was killed while it wrote; a message that comes a moment later is no damage."""
    monkeypatch.setattr(topics, "DAMAGE_PAUSES_SECONDS", (0.0,))
    with server.connect() as connection:
        polls, whole = [], connection.poll

        def poll(*place, offset, count):
            polls.append(offset)
            return [] if len(polls) == 1 or not late else whole(*place, offset=offset, count=count)

        monkeypatch.setattr(connection, "poll", poll)
        if late:
            ensure_dead_letter_topic(connection, "kit", DEAD)
        else:
            with pytest.raises(
                PartitionDamagedError,
                match=r'topic "dead", partition 0, .* reports 2 as its last .* not return message 2',
            ):
                ensure_dead_letter_topic(connection, "kit", DEAD)
    assert polls == [2, 2]


def test_a_topic_without_partitions_or_that_cannot_be_read_is_no_topic_without_letters(server):
    config = source_config(dead_letter_topic=DEAD, tolerance="skip_record")
    with server.connect() as connection:
        assert len(DeadLetterLog.read(connection, config).stored) == 1
        for _ in range(2):
            append(connection, "kit", DEAD, 0, b"of another program")
        server.unreadable.add((DEAD, 0))
        with pytest.raises(IggyUnavailableError, match=r'topic "dead", partition 0, .*answers as if there were none'):
            DeadLetterLog.read(connection, config)
        server.delete_topic("kit", DEAD)
        connection.create_topic("kit", DEAD, 0)
        with pytest.raises(IggyTopicError, match='topic "dead" of stream "kit" has no partition'):
            DeadLetterLog.read(connection, config)


def test_dead_letters_that_lack_a_generation_are_counted_in_a_warning(server, caplog):
    """As version 0.1.0 wrote them: its bad records must not look as if there were none."""
    config = source_config(tolerance="skip_record", dead_letter_topic=DEAD, stream="kit")
    whole = server.messages("kit", DEAD)[0]
    headers = {name: value for name, value in whole.headers.items() if name != "generation"}
    with server.connect() as connection:
        assert len(DeadLetterLog.read(connection, config).stored) == 1
        assert not caplog.messages  # unreadable notes are no dead letters
        for source in ("kit", "kit", "other"):
            append(connection, "kit", DEAD, 0, b"x", headers={**headers, "source": source})
        assert len(DeadLetterLog.read(connection, config).stored) == 1
    (warning,) = caplog.messages
    assert warning == (
        'topic "dead": 2 dead letters of source "kit" cannot be read; the first is at offset 3: '
        "run the version that wrote them, such as 0.1.0"
    )
