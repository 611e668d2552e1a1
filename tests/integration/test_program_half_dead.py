"""A server of which a part has failed: it lets clients in, and answers polls as if partitions were empty."""

import pytest

from tests.integration.program_rig import OwnServer, Program, check_exactly, json_lines, jsonl
from tests.support.iggy_proxy import IggyProxy


@pytest.fixture
def server(tmp_path):
    made = OwnServer(tmp_path / "server").start()
    yield made
    made.kill()


@pytest.fixture
def proxy(server):
    with IggyProxy(server.port) as made:
        yield made


@pytest.fixture
def program(tmp_path, moto_bucket, server, proxy, stream_name):
    made = Program(tmp_path, moto_bucket, server.url, stream_name)
    made.configure(iggy={"url": f"iggy://iggy:iggy@127.0.0.1:{proxy.port}"})
    yield made
    made.close()


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_part_that_has_failed_is_named_and_the_run_goes_on_when_it_is_back(proxy, program, moto_bucket, tasks):
    """Not: that positions or records are gone, with ways out that would send all of them again."""
    program.configure(runner={"tasks_max": tasks})
    expected = {"0.jsonl": json_lines("0", 3000)}
    moto_bucket.put("0.jsonl", jsonl(expected["0.jsonl"]))
    program.once()
    expected["1.jsonl"] = json_lines("1", 3000)
    moto_bucket.put("1.jsonl", jsonl(expected["1.jsonl"]))
    proxy.blind = True
    running = program.start("--once")
    running.wait_for("answers as if there were none: a part of the server has failed", 60)
    assert 'topic "orders-offsets", partition 0' in running.err
    proxy.blind = False
    ended = running.wait(90).no_secrets()
    assert ended.code == 0, ended
    check_exactly(program.messages(), expected)


def test_the_commands_say_so_too_and_report_nothing_as_gone(proxy, program, moto_bucket):
    program.configure(errors={"tolerance": "skip_record", "dead_letter_topic": "dead"})
    moto_bucket.put("0.jsonl", jsonl([*json_lines("0", 3000), b"no JSON", b"nor this"]))
    program.once()
    proxy.blind = True
    for command in (
        ("status",),
        ("offsets", "show"),
        ("offsets", "reset", "--all"),
        ("read",),
        ("dead-letter", "show"),
        ("dead-letter", "replay"),
    ):
        ended = program.run(*command)
        assert (ended.code, "answers as if there were none" in ended.said) == (1, True), (command, ended)
