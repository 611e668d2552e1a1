"""Dead letters through the whole program: what is skipped is in the topic once, whatever is killed."""

import gzip
import json
import signal
from collections import Counter

import pytest
from apache_iggy import Durability

from framework.engine.iggy_target import IggyTarget
from framework.testing.options import source_config
from tests.integration.program_rig import (
    LONG,
    SERVERS,
    SLOW,
    TASKS,
    OwnServer,
    Program,
    chance,
    check_exactly,
    jsonl,
    rounds,
    wait_for_count,
    wait_until,
    with_client,
)

BAD = 13
"""One line of so many is bad."""

ERRORS = {"tolerance": "skip_record", "dead_letter_topic": "dead"}


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name, errors=ERRORS)
    yield made
    made.close()


def fill(bucket, objects, *, lines=300):
    """Objects of JSON lines, some of them bad: key -> {number: payload} of the good ones, and of the bad ones."""
    good, bad = {}, {}
    for number in range(objects):
        key = f"in/{number:03}.jsonl"
        made = [
            b"- bad %d of %s" % (at, key.encode())
            if at % BAD == number % BAD
            else b'{"k":"%s","n":%d}' % (key.encode(), at)
            for at in range(1, lines + number + 1)
        ]
        bucket.put(key, jsonl(made))
        good[key] = {at: line for at, line in enumerate(made, 1) if not line.startswith(b"-")}
        bad[key] = {at: line for at, line in enumerate(made, 1) if line.startswith(b"-")}
    return good, bad


def check_dead_letters(program, bad, *, repeated=False):
    """Each bad record has one letter, whose place is in its headers and whose id is no other's.

    Args:
        program: whose topic is looked at.
        bad: key -> bad records.
        repeated: whether it was killed: then a letter may be there twice, with the same id.
    """
    dead_letters = program.messages("dead")
    if repeated:
        dead_letters = list({one.id: one for one in dead_letters}.values())
    found = Counter((one.key, int(one.headers["record"]), one.payload) for one in dead_letters)
    assert found == Counter((key, number, line) for key, lines in bad.items() for number, line in lines.items())
    assert len({one.id for one in dead_letters}) == len(dead_letters)
    assert all(one.record == int(one.headers["record"]) for one in dead_letters)


@pytest.mark.parametrize("tasks", [1, 2])
def test_dead_letters_stand_where_the_configuration_says(program, moto_bucket, tasks):
    good, bad = fill(moto_bucket, 5, lines=60)
    ended = program.configure(runner={"tasks_max": tasks}, log={"format": "json"}).once()
    check_exactly(program.messages(), good)
    check_dead_letters(program, bad)
    lines = [json.loads(line) for line in ended.err.splitlines()]  # whichever process has something to say
    skipped = [line for line in lines if line["message"].startswith("skipped a record: ")]
    assert len(skipped) == sum(map(len, bad.values()))
    assert all(line["level"] == "warning" for line in skipped)
    assert f"stored {len(skipped)} dead letters in topic" in ended.err
    assert "dead letters" not in program.once().err
    check_dead_letters(program, bad)


@pytest.mark.parametrize(
    ("tasks", "headers"),
    [(1, "provenance"), (2, "none"), (2, "provenance")] if LONG else [(1, "provenance"), (2, "none")],
)
def test_killed_at_any_moment_no_dead_letter_is_lost_or_there_under_two_ids(
    tmp_path, moto_bucket, iggy_url, stream_name, tasks, headers
):
    good, bad = fill(moto_bucket, 12)
    total = sum(map(len, bad.values()))
    dice = chance(f"letters-{tasks}-{headers}")
    for number in range(rounds(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = Program(folder, moto_bucket, iggy_url, f"{stream_name}-{number}", errors=ERRORS)
        program.configure(**SLOW, runner={"tasks_max": tasks}).configure(iggy={"headers": headers})
        for _ in range(4):
            running = program.start("--once")
            wait_for_count(program, program.count("dead") + dice.randrange(1, total // 4), running, "dead")
            running.kill()
            assert running.process.returncode in (0, -signal.SIGKILL), running.err
        program.configure(runner={"tasks_max": 1}).once()
        if headers == "provenance":
            check_exactly(program.messages(), good)
        else:
            assert Counter(one.payload for one in program.messages()) == Counter(
                line for lines in good.values() for line in lines.values()
            )
        check_dead_letters(program, bad, repeated=True)
        program.close()


def test_an_object_cut_short_leaves_one_dead_letter(program, moto_bucket):
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b'{"n":2}']))
    moto_bucket.put("in/b.jsonl.gz", gzip.compress(jsonl([b'{"n":%d}' % n for n in range(50)]))[:-12])
    ended = program.once()
    (dead_letter,) = program.messages("dead")
    assert (dead_letter.headers["letter"], dead_letter.key, dead_letter.record) == (
        "object",
        "in/b.jsonl.gz",
        program.count() - 1,
    )
    assert dead_letter.headers["error"] == "TruncatedObjectError"
    assert dead_letter.payload == b'{"payload":"none"}'
    assert "the rest of 1 object" in ended.err
    program.once()
    assert program.count("dead") == 1


def test_a_wrong_format_stops_the_source_and_makes_no_bucket_of_dead_letters(program, moto_bucket):
    for number in range(4):
        moto_bucket.put(f"in/{number}.jsonl", b"a;b;c\n" * 5000)
    ended = program.configure(errors={"max_bad_records": 300}).run("--once")
    assert ended.code == 3
    assert "301 of the first 301 records of s3://" in ended.err
    assert "is [input] format right?" in ended.err
    assert program.count("dead") <= 300
    assert program.run("--once").code == 3
    assert program.count("dead") <= 300


def test_several_tasks_together_stop_at_the_limit_of_an_hour(program, moto_bucket):
    """Each alone stays below it."""
    fill(moto_bucket, 8, lines=300)
    program.configure(errors={"max_bad_records_per_hour": 120}, runner={"tasks_max": 2}, iggy={"partitions": 2})
    ended = program.run("--once")
    assert ended.code == 3
    assert "bad records and objects within an hour" in ended.err


@pytest.mark.parametrize("tasks", TASKS)
def test_iggy_is_killed_and_comes_back_and_every_dead_letter_is_there(tmp_path, moto_bucket, tasks):
    good, bad = fill(moto_bucket, 12)
    total = sum(map(len, bad.values()))
    dice = chance(f"letters-iggy-{tasks}")
    server = OwnServer(tmp_path / "own", SERVERS[-1]).start()
    try:
        for number in range(rounds(1)):
            folder = tmp_path / str(number)
            folder.mkdir()
            program = Program(folder, moto_bucket, server.url, f"s-{number}", errors=ERRORS)
            running = program.configure(**SLOW, runner={"tasks_max": tasks}).start()
            for _ in range(3):
                wait_for_count(
                    program, min(total, program.count("dead") + dice.randrange(1, total // 3)), running, "dead"
                )
                server.kill()
                server.start()
            wait_for_count(program, sum(map(len, good.values())), running)
            wait_for_count(program, total, running, "dead")
            ended = running.stop().no_secrets()
            assert ended.code == 0, ended.err
            check_exactly(program.messages(), good)
            check_dead_letters(program, bad, repeated=True)
            program.close()
    finally:
        server.kill()


def test_check_looks_at_the_topic_too(program, moto_bucket):
    moto_bucket.put("a.jsonl", b'{"n":1}\n')
    assert '"dead" of stream' in program.run("check").out
    program.once()
    assert '"dead" of stream' in program.run("check").out


# ---- shown and sent again


def test_shown_replayed_and_shown_again(program, moto_bucket, tmp_path):
    good, bad = fill(moto_bucket, 3, lines=60)
    program.once()
    shown = [json.loads(line) for line in program.run("dead-letter", "show", "--json").out.splitlines()]
    assert {(one["key"], one["record"]) for one in shown} == {(key, n) for key, lines in bad.items() for n in lines}
    assert {(one["error"], one["about"], one["replayed"]) for one in shown} == {("RecordError", "record", False)}
    table = program.run("dead-letter", "show", "--key", "in/001.jsonl", "--limit", "2").out
    assert table.count("in/001.jsonl, record ") == 2
    assert table.endswith("2 dead letters\n")
    target = tmp_path / "bad.bin"
    written = program.run("dead-letter", "show", "--letter", "0", "--payload", str(target))
    assert (written.code, written.out.startswith("wrote "), written.out.endswith(f" to {target}\n")) == (0, True, True)
    nowhere = program.run("dead-letter", "show", "--letter", "0", "--payload", str(target / "none"))
    assert nowhere.code == 2
    assert f"--payload {target}/none: cannot be written: Not a directory" in nowhere.said
    assert target.read_bytes() == bad[shown[0]["key"]][shown[0]["record"]]
    for which, why in (
        (("--key", "in/none.jsonl"), "none was selected"),
        ((), f"{len(shown)} were selected: select one with --letter"),
    ):
        refused = program.run("dead-letter", "show", *which, "--payload", str(target))
        assert refused.code == 2
        assert f"--payload writes the bytes of one dead letter, and {why}" in refused.said
    for command in ("show", "replay"):
        unknown = program.run("dead-letter", command, "--letter", "99")
        assert unknown.code == 2
        assert "--letter 99: the source has no such dead letter" in unknown.said

    still = program.run("dead-letter", "replay")
    assert still.code == 3
    assert "still failing: not JSON" in still.out
    program.configure(input={"validate": False})
    dry = program.run("dead-letter", "replay", "--dry-run")
    assert f"{sum(map(len, bad.values()))} dead letters" in dry.out
    assert program.count() == sum(map(len, good.values()))
    one = program.run("dead-letter", "replay", "--key", "in/000.jsonl")
    assert f"sent again: {len(bad['in/000.jsonl'])} records" in one.out
    rest = program.run("dead-letter", "replay", "--kind", "RecordError")
    assert (rest.code, f"{sum(map(len, bad.values())) - len(bad['in/000.jsonl'])} records" in rest.out) == (0, True)
    again = program.run("dead-letter", "replay").out
    assert "sent again: 0 records\nno dead letter was selected: " in again
    assert program.run("dead-letter", "show").out.endswith("0 dead letters\n")
    assert len(program.run("dead-letter", "show", "--replayed", "--json").out.splitlines()) == len(shown)

    assert "0 records of 0 objects" in program.once().err
    found = Counter((one.key, one.record, one.payload) for one in program.messages())
    assert found == Counter(
        (key, n, line) for lines in (good, bad) for key, some in lines.items() for n, line in some.items()
    )
    assert sum("replay" in one.headers for one in program.messages()) == len(shown)


def test_a_replay_killed_and_repeated_sends_nothing_twice(program, moto_bucket):
    good, bad = fill(moto_bucket, 8)
    program.configure(**SLOW).once()
    program.configure(input={"validate": False})
    before, total = program.count(), sum(map(len, bad.values()))
    dice = chance("replay")
    for _ in range(rounds(3)):
        running = program.start("dead-letter", "replay")
        wait_for_count(program, min(before + total, program.count() + dice.randrange(total)), running)
        running.kill()
    assert program.run("dead-letter", "replay").code == 0
    program.once()
    found = Counter(one.payload for one in program.messages())
    assert found == Counter(line for lines in (good, bad) for some in lines.values() for line in some.values())


def test_an_object_put_whole_again_is_read_on_from_where_it_was_given_up(program, moto_bucket):
    """Given up under a limit that was too low; the object itself is as it was."""
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b'{"n":2, "long":"' + b"x" * 200 + b'"}', b'{"n":3}']))
    program.configure(errors={"tolerance": "skip_object"}, input={"max_record_bytes": 100}).once()
    assert program.count() == 1
    ended = program.configure(input={"max_record_bytes": 1000}).run("dead-letter", "replay")
    assert "the next run resumes 1 object, each from its first missing record" in ended.out
    program.once()
    assert [one.record for one in program.messages()] == [1, 2, 3]


@pytest.mark.parametrize("choice", [("--key", "in/a.jsonl"), ("--prefix", "in/"), ("--all",)])
def test_a_reset_that_was_killed_behind_its_snapshot_is_finished_by_the_same_command(
    program, moto_bucket, monkeypatch, choice
):
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b"bad", b'{"n":3}']))
    program.once()
    with monkeypatch.context() as killed:
        killed.setattr("framework.engine.positions_admin.void_dead_letters", lambda *_: 0)
        assert program.run("offsets", "reset", *choice, "--yes").code == 0
    assert program.run("dead-letter", "show").out.endswith("1 dead letter\n")
    told = "reads every object whole" if choice == ("--all",) else "reads again: 0 objects"
    assert told in program.run("offsets", "reset", *choice, "--yes").out
    assert program.run("dead-letter", "show").out.endswith("0 dead letters\n")


def test_without_a_topic_or_dead_letters_one_sentence_says_so(program, moto_bucket):
    shown = program.run("dead-letter", "show", "--json")  # a monitor may ask before the first run
    assert (shown.code, shown.out, "nothing was skipped yet" in shown.err) == (0, "", True)
    assert program.run("dead-letter", "discard", "--yes").code == 0
    assert program.run("dead-letter", "show", "--letter", "0").code == 2
    program.configure(errors={"dead_letter_topic": None})
    ended = program.run("dead-letter", "replay")
    assert (ended.code, "set [errors] dead_letter_topic" in ended.err) == (2, True)


@pytest.mark.parametrize("kind", SERVERS)
def test_dead_letters_that_the_topic_dropped_are_said_to_be_gone(tmp_path, moto_bucket, kind, caplog):
    """Deleted as retention does it: a segment at a time, the oldest first."""
    bad = [b"- bad %d " % number + b"x" * 700_000 for number in range(6)]
    server = OwnServer(tmp_path / "own", kind).start()
    program = Program(tmp_path, moto_bucket, server.url, "s", errors=ERRORS)

    async def segmented(client):
        await client.create_stream("s")
        options = {"durability": Durability.PERSISTED, "messages_required_to_save": 1, "segment_size": 1 << 20}
        await client.create_topic("s", "dead", 1, **options)

    try:
        with_client(server.url, segmented)
        for number, line in enumerate(bad):
            moto_bucket.put(f"in/{number}.jsonl", line + b"\n")
            program.once()
        with IggyTarget(source_config(url=server.url)) as target, target.connect() as connection:
            connection.delete_segments("s", "dead", 0, 1)
            gone = wait_until(lambda: 6 - connection.get_topic("s", "dead").partitions[0].messages_count)
        assert 1 < gone < 6
        shown = program.run("dead-letter", "show", "--json")
        assert [(line["letter"], line["key"]) for line in shown.lines] == [
            (number, f"in/{number}.jsonl") for number in range(gone, 6)
        ]
        program.run("dead-letter", "replay", "--dry-run")
        unknown = program.run("dead-letter", "show", "--letter", "0")
        assert (unknown.code, f"left the topic from message {gone} on" in unknown.said) == (2, True)
        replayed = program.configure(input={"validate": False}).run("dead-letter", "replay")
        assert (replayed.code, f"sent again: {6 - gone} records" in replayed.out) == (0, True)
        assert sorted(message.payload for message in program.messages()) == bad[gone:]
        warnings = [text for text in caplog.messages if "dead letters among them" in text]
        said = f'topic "dead": its first {gone} messages are gone (retention or deleted segments)'
        assert [text.partition(";")[0] for text in warnings] == [said] * 3
    finally:
        program.close()
        server.kill()


def test_discarded_ones_are_closed_and_never_sent_and_failed_objects_stay_failed(program, moto_bucket):
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b"bad", b'{"n":3}', b"bad again"]))
    moto_bucket.put("in/b.jsonl.gz", gzip.compress(jsonl([b'{"n":%d}' % n for n in range(50)]))[:-12])
    program.once()
    sent = program.count()
    refused = program.run("dead-letter", "discard")
    assert (refused.code, "add --yes (or --dry-run" in refused.said) == (2, True)
    dry = program.run("dead-letter", "discard", "--key", "in/a.jsonl", "--dry-run")
    assert dry.out.endswith("2 dead letters\n")
    unknown = program.run("dead-letter", "discard", "--letter", "99", "--yes")
    assert (unknown.code, "--letter 99: the source has no such dead letter" in unknown.said) == (2, True)
    assert program.run("dead-letter", "show").out.endswith("3 dead letters\n")

    assert "`dead-letter discard` closes" in program.run("dead-letter", "replay", "--kind", "RecordError").out
    some = program.run("dead-letter", "discard", "--key", "in/a.jsonl", "--yes")
    assert (some.code, some.out) == (0, "discarded: 2 dead letters\n")
    assert program.run("dead-letter", "show").out.endswith("1 dead letter\n")
    again = program.run("dead-letter", "discard", "--key", "in/a.jsonl", "--yes")
    assert (again.code, again.out.startswith("no dead letter was selected: ")) == (0, True)
    replay = program.configure(input={"validate": False}).run("dead-letter", "replay", "--kind", "RecordError")
    assert (replay.code, again.out in replay.out, program.count()) == (0, True, sent)

    assert program.run("dead-letter", "discard", "--since", "1h", "--yes").out == "discarded: 1 dead letter\n"
    assert "resumes" not in program.run("dead-letter", "replay").out
    program.once()
    assert program.count() == sent
    assert '"state":"failed"' in program.run("offsets", "export").out.replace(" ", "")
    shown = program.run("dead-letter", "show", "--replayed", "--json").lines
    assert [(line["replayed"], line["discarded"]) for line in shown] == [(False, True)] * 3
    assert program.run("dead-letter", "show", "--replayed").out.count("  discarded  ") == 3


def test_what_a_replay_leaves_is_not_in_its_preview(program, moto_bucket):
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b"bad"]))
    program.once()
    assert program.run("dead-letter", "replay", "--dry-run").out.endswith("1 dead letter\n")
    moto_bucket.put("in/a.jsonl", jsonl([b'{"n":1}', b'{"n":2}']))
    program.once()
    assert program.run("dead-letter", "replay", "--dry-run").out.endswith("0 dead letters\n")
    ended = program.configure(input={"validate": False}).run("dead-letter", "replay")
    assert ended.code == 0
    assert "the object was reset or overwritten and read since: 1 dead letter" in ended.out
    assert program.count() == 3
    assert program.run("dead-letter", "discard", "--yes").out == "discarded: 1 dead letter\n"
    assert program.run("dead-letter", "show").out.endswith("0 dead letters\n")
