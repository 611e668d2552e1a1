"""A disk that is full under the embedded server: said clearly, nothing lost, and the source goes on when there is room."""

import resource

import pytest

from tests.integration.program_rig import OwnServer, Program, check_exactly, json_lines, jsonl, wait_for_exactly

ROOM = 200_000
"""Bytes that a file may have: what a full disk does to the file that is written, without filling one."""


@pytest.fixture
def server(tmp_path):
    made = OwnServer(tmp_path / "server").start()
    yield made
    made.kill()


@pytest.fixture
def program(tmp_path, moto_bucket, server, stream_name):
    made = Program(tmp_path, moto_bucket, server.url, stream_name)
    yield made
    made.close()


@pytest.fixture
def expected(moto_bucket):
    made = {f"{number}.jsonl": json_lines(f"{number}", 4000, width=90) for number in range(4)}
    for key, payloads in made.items():
        moto_bucket.put(key, jsonl(payloads))
    return made


def limit(server, size):
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_full_disk_is_said_and_the_source_goes_on_when_there_is_room(server, program, expected):
    limit(server, ROOM)
    program.configure(iggy={"batch_length": 100})
    running = program.start("--once")
    running.wait_for("is the disk of the server full?", 60)
    limit(server, resource.RLIM_INFINITY)
    ended = running.wait(90).no_secrets()
    assert ended.code == 0, ended
    check_exactly(program.messages(), expected)


def test_a_disk_that_stays_full_ends_the_run_with_a_sentence_and_the_next_one_goes_on(server, program, expected):
    limit(server, ROOM)
    program.configure(iggy={"batch_length": 100})
    ended = program.start("--once").wait(120).no_secrets()
    assert ended.code == 3
    assert "could not store it" in ended.said
    assert "is the disk of the server full?" in ended.said
    stored = program.count()
    assert stored > 0
    limit(server, resource.RLIM_INFINITY)
    program.once()
    check_exactly(program.messages(), expected)
    wait_for_exactly(program, 16_000)
