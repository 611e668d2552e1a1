"""What a command holds of the dead letters of a source."""

import gc
import tracemalloc

from framework.iggy.dead_letters.reader import MAX_ERRORS, DeadLetterLog
from framework.iggy.dead_letters.writer import read_dead_letter
from framework.testing.fakes.memory_iggy import MemoryIggy
from framework.testing.options import source_config
from tests.support.iggy_messages import append
from tests.unit.pipeline.test_dead_letters import DEAD, Source, usual


def read(source, *selected):
    with source.server.connect() as connection:
        return DeadLetterLog.read(connection, source.config, *selected)


def test_only_the_selected_dead_letters_are_held():
    source = usual()
    source.live()
    everything = read(source).stored
    assert read(source, lambda dead_letter: dead_letter.key == "b").stored == [x for x in everything if x.key == "b"]


def test_the_first_offset_is_that_of_the_first_message_left():
    source = usual()
    source.live()
    count = len(source.stored())
    assert read(source).first_offset == 0
    source.server.drop_head("kit", DEAD, 0, 2)
    assert read(source).first_offset == 2
    source.server.drop_head("kit", DEAD, 0, count)
    assert (read(source).stored, read(source).first_offset) == ([], count)
    source.server.purge_topic("kit", DEAD)
    assert read(source).first_offset == 0


def test_the_classes_of_errors_that_are_counted_have_a_limit():
    source = usual()
    source.live()
    whole = source.server.messages("kit", DEAD)[0]
    known = read(source).errors
    with source.server.connect() as connection:
        for number in range(2 * MAX_ERRORS):
            append(connection, "kit", DEAD, 0, b"x", headers={**whole.headers, "error": f"Forged{number}Error"})
    found = read(source)
    assert len(found.stored) == sum(known.values()) + 2 * MAX_ERRORS
    assert len(found.errors) == MAX_ERRORS
    assert {name: found.errors[name] for name in known} == known


def test_a_topic_that_is_not_there_has_no_dead_letters_and_a_warning_names_it(caplog):
    with MemoryIggy().connect() as connection:
        found = DeadLetterLog.read(connection, source_config(tolerance="skip_record", dead_letter_topic=DEAD))
    assert found == DeadLetterLog(
        stored=(), replayed=frozenset(), discarded=frozenset(), notes=(), first_offset=0, errors={}
    )
    assert found.waiting == []
    assert caplog.messages == [f'there is no topic "{DEAD}" in stream "kit": nothing was skipped yet']


def test_a_million_dead_letters_take_no_gigabyte():
    """A thousand of one object, here: they share the texts that are equal."""
    source = Source(max_bad_records=10_000).put("a" * 200, *[0] * 1000)
    source.live()
    messages = source.server.messages("kit", DEAD)
    tracemalloc.start()
    try:
        found = [read_dead_letter(message, "kit") for message in messages]
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / len(found) < 500
    finally:
        tracemalloc.stop()
