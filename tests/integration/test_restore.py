"""Archived topics come back through the whole program: payloads, headers, times, partitions and order, each message once."""

import random
from collections import defaultdict

import attrs
import pytest

from tests.integration.program_rig import ENGINES, SLOW, Program, with_client
from tests.support import archives
from tests.support.archives import SECOND, archived_topic


@attrs.frozen(kw_only=True)
class Restored:
    payload: bytes
    headers: dict
    time_us: int


def restored(program, topic):
    """Partition -> its messages, read with the official client."""
    from apache_iggy import Consumer, PollingStrategy

    async def work(client):
        found = defaultdict(list)
        details = await client.get_topic(program.stream, topic)
        for partition in range(details.partitions_count if details else 0):
            offset = 0
            while batch := await client.poll_messages(
                program.stream,
                topic,
                consumer=Consumer.Single(1),
                polling_strategy=PollingStrategy.Offset(offset),
                count=2000,
                auto_commit=False,
                partition_id=partition,
            ):
                found[partition] += [
                    Restored(
                        payload=bytes(message.payload()),
                        headers=headers.to_scalar_dict() if (headers := message.user_headers()) else {},
                        time_us=message.origin_timestamp(),
                    )
                    for message in batch
                ]
                offset = batch[-1].offset() + 1
        return dict(found)

    return with_client(program.url, work)


def check(found, partitions, *, unit=SECOND, headers=lambda headers: headers):
    """Every message is there once, in the order of its partition."""
    assert sorted(found) == sorted(partitions)
    for partition, messages in partitions.items():
        assert [message.payload for message in found[partition]] == [message.payload for message in messages]
        assert [message.headers for message in found[partition]] == [headers(message.headers) for message in messages]
        assert [message.time_us for message in found[partition]] == [
            message.time_us // unit * unit for message in messages
        ]


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    made.configure(
        naming={"template": archives.IGGY_TEMPLATE, "distribution": "partition"},
        input={"envelope": "iggy-s3-sink"},
        iggy={"topic": None, "headers": "none"},
        discovery={"order": "start_offset"},
    )
    yield made
    made.close()


def put(program, objects):
    for key, data in objects:
        program.bucket.put(key, data)


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_topics_archived_by_iggys_sink_come_back_message_by_message(program, engine):
    events, orders = archived_topic("events", 3, 700), archived_topic("orders", 2, 300, seed=2)
    put(program, archives.iggy_objects(events, per_object=37))
    put(program, archives.iggy_objects(orders, per_object=11))
    program.bucket.put("archive/src/events/2024-03-16/14/00000-0-9.jsonl.lost", b"offset_range: 0-9\n")
    program.configure(runner=engine)
    program.once().no_secrets()
    check(restored(program, "events"), events)
    check(restored(program, "orders"), orders)
    assert "nothing to send" in program.once().err or "0 records" in program.once().err
    check(restored(program, "events"), events)


def test_an_archive_of_json_arrays_comes_back(program):
    events = archived_topic("events", 2, 200)
    put(program, archives.iggy_objects(events, per_object=30, array=True))
    program.configure(naming={"template": archives.IGGY_TEMPLATE.replace(".jsonl", ".json")}, input={"format": "json"})
    program.once()
    check(restored(program, "events"), events)


@pytest.mark.parametrize("engine", ENGINES[2:])
def test_spark_restores_the_order_of_each_object(program, engine):
    events = archived_topic("events", 3, 600)
    put(program, archives.iggy_objects(events, per_object=600))  # one object for each partition
    program.configure(runner=engine, discovery={"order": None})
    program.once()
    check(restored(program, "events"), events)


def test_a_restore_that_is_killed_again_and_again_loses_and_repeats_nothing(program):
    events = archived_topic("events", 3, 4000)
    put(program, archives.iggy_objects(events, per_object=50))
    program.configure(**SLOW)
    chance, ended = random.Random(5), False
    for _ in range(5):
        running = program.start("--once")
        before = program.count("events")
        wanted = before + chance.randrange(50, 800)
        while running.process.poll() is None and program.count("events") < wanted:
            pass
        ended = running.process.poll() is not None
        running.kill()
        if ended:
            break
    program.once()
    check(restored(program, "events"), events)


def test_the_objects_headers_stand_beside_the_archived_ones(program):
    events = archived_topic("events", 1, 60)
    put(program, archives.iggy_objects(events, per_object=60))
    program.configure(iggy={"headers": "provenance"})
    program.once()
    for message, archived in zip(restored(program, "events")[0], events[0], strict=True):
        assert message.headers["bucket"] == program.bucket.name
        assert message.headers["key"].startswith("archive/src/events/")
        assert {name: value for name, value in message.headers.items() if name in archived.headers} == archived.headers


def test_a_topic_comes_back_under_another_name_and_with_more_partitions(program):
    events = archived_topic("events", 3, 200)
    put(program, archives.iggy_objects(events, per_object=20))
    program.configure(iggy={"topic": "restored-{{topic}}", "partitions": 5})
    program.once()
    check(restored(program, "restored-events"), events)


def test_damaged_lines_are_skipped_with_their_place_and_the_others_come_back(program):
    events = archived_topic("events", 1, 30)
    ((key, data),) = archives.iggy_objects(events, per_object=30)
    lines = data.splitlines()
    lines[3] = lines[3][:40]
    lines[9] = lines[9].replace(b'"payload"', b'"body"')
    lines[20] = lines[20].replace(b'"partition_id":0', b'"partition_id":1')
    program.bucket.put(key, b"\n".join(lines))
    program.configure(errors={"tolerance": "skip_record", "dead_letter_topic": "letters"})
    ended = program.once()
    left = {0: [message for number, message in enumerate(events[0]) if number not in {3, 9, 20}]}
    check(restored(program, "events"), left)
    for record in (4, 10, 21):
        assert f"record {record}" in ended.err
    assert "partition 1" in ended.err
    assert program.count("letters") == 3
    # a replay takes off the envelope, too; two of the three lines stay damaged
    program.configure(input={"envelope_mismatch": "ignore"})
    replayed = program.run("dead-letter", "replay")
    assert "sent again: 1 record" in replayed.out
    assert "2 still failing" in replayed.out or replayed.out.count("1 still failing") == 2
    again = restored(program, "events")[0][-1]
    assert (again.payload, again.time_us) == (events[0][20].payload, events[0][20].time_us // SECOND * SECOND)
    assert {**again.headers, "replay": "1"} == {**events[0][20].headers, "replay": "1"}
    assert program.count("events") == 28


def test_a_damaged_line_ends_a_run_that_tolerates_none_behind_the_records_before_it(program):
    events = archived_topic("events", 1, 30)
    ((key, data),) = archives.iggy_objects(events, per_object=30)
    program.bucket.put(key, data.replace(b'"payload":', b'"other":', 13).replace(b'"other":', b'"payload":', 12))
    ended = program.run("--once")
    assert ended.code != 0
    assert "record 13" in ended.err
    check(restored(program, "events"), {0: events[0][:12]})


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "avro", "parquet"])
def test_topics_archived_by_aivens_sink_come_back_in_order_under_names_without_zeros(program, form):
    events = archived_topic("events", 2, 300)
    put(program, archives.aiven_objects(events, form, per_object=9))
    program.configure(
        naming={"template": archives.AIVEN_TEMPLATE},
        input={"envelope": "aiven", "format": form, "envelope_payload": None if "json" in form else "text"},
    )
    if form == "csv":
        program.configure(
            input={
                "csv_header": False,
                "envelope_payload": None,
                "envelope_columns": ["key", "value", "offset", "timestamp", "headers"],
            }
        )
    program.once()
    texts = {
        True: lambda headers: headers,
        False: lambda headers: {name: str(value) for name, value in headers.items()},
    }
    check(restored(program, "events"), events, unit=1000, headers=texts["json" in form])


def test_topics_archived_by_confluents_sink_come_back_without_time_and_headers(program):
    events = archived_topic("events", 2, 300)
    put(program, archives.confluent_objects(events, per_object=40))
    program.configure(naming={"template": archives.CONFLUENT_TEMPLATE}, input={"envelope": "confluent"})
    program.once()
    found = restored(program, "events")
    assert {partition: [message.payload for message in messages] for partition, messages in found.items()} == {
        partition: [message.payload for message in messages] for partition, messages in events.items()
    }


def test_an_archive_of_ones_own_comes_back_by_the_names_of_its_fields(program):
    program.bucket.put("t/0/7.jsonl", b'{"at":1710597600.5,"meta":{"a":"b"},"data":"aGk="}\n' * 2)
    program.configure(
        naming={"template": "{{topic}}/{{partition}}/{{start_offset}}.jsonl"},
        input={"envelope": "custom", "envelope_payload": "base64", "envelope_timestamp_unit": "seconds"},
        **{"input.envelope_fields": {"payload": "data", "headers": "meta", "timestamp": "at"}},
    )
    program.once()
    wanted = Restored(payload=b"hi", headers={"a": "b"}, time_us=1_710_597_600_500_000)
    assert restored(program, "t") == {0: [wanted, wanted]}
