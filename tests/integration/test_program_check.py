"""`check` fails where a run would, with the code that a run would end with, and makes nothing."""

import os
import socket
import threading
import time

import pytest
from apache_iggy import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

from framework.cli import check, worker
from framework.engine.spark import spark_context
from framework.iggy.rights import Right, hidden_stream, missing_rights
from framework.testing.servers.ports import free_port
from tests.integration.program_rig import NO_JAVA, OwnServer, Program, wait_for_count, with_client

LINE = b'{"n": 1}\n'


@pytest.fixture
def program(tmp_path, moto_bucket, iggy_url, stream_name):
    made = Program(tmp_path, moto_bucket, iggy_url, stream_name)
    yield made
    made.close()


def steps(ended):
    """step -> its marks and details, in order."""
    found = {}
    for line in ended.out.splitlines():
        found.setdefault(line[5:20].strip(), []).append((line[:4].strip(), line[20:]))
    return found


def only(ended, step):
    (found,) = steps(ended)[step]
    return found


# ---- the selection


def test_a_selection_that_matches_nothing_fails_and_says_why(program, moto_bucket):
    for name in ("a.jsonl", "b.jsonl", "_tmp/c"):
        moto_bucket.put(name, LINE)
    program.configure(naming={"template": "other/{{key}}"})
    ended = program.run("check")
    assert ended.code == 3
    mark, detail = only(ended, "selection")
    assert mark == "FAIL"
    assert detail.startswith("none of 3 objects chosen (hidden: 1, not matched by the template: 2)")


def test_a_selection_is_counted(program, moto_bucket):
    for name in ("a.jsonl", "b.jsonl", "c.txt"):
        moto_bucket.put(name, LINE)
    program.configure(discovery={"include": ["*.jsonl"]})
    ended = program.run("check")
    assert ended.code == 0
    assert only(ended, "selection") == ("ok", "2 of 3 objects chosen (not included: 1)")


@pytest.mark.parametrize("age", [{"modified_after": "now"}, {"min_age": "1h"}], ids=str)
def test_what_is_only_too_old_or_too_young_is_a_warning(program, moto_bucket, age):
    moto_bucket.put("a.jsonl", LINE)
    time.sleep(1.1)  # the store's clock has whole seconds
    ended = program.configure(discovery=age).run("check")
    assert ended.code == 0, ended.out
    mark, detail = only(ended, "selection")
    assert mark == "warn"
    assert ("a run takes that of the first start" in detail) == ("modified_after" in age)


FILTER = '[[transforms]]\ntype = "filter"\nfield = "n"\nvalue_pattern = { equals = 1 }\n'
TIMESTAMP = '[[transforms]]\ntype = "timestamp"\nfield = "x"\nformat = "iso8601"\n'
RECORDS = {
    "jsonl": ("jsonl", "", LINE * 3, "ok", "the first 3 records of {} can be read"),
    "jsonl that is csv": (
        "jsonl",
        "",
        b"a,b\n" * 30,
        "warn",
        "20 bad records in the first 20 records of {}: {}, record 1",
    ),
    "one bad line": (
        "jsonl",
        "",
        LINE + b"no\n" + LINE,
        "warn",
        "1 bad record in the first 3 records of {}: {}, record 2",
    ),
    "parquet": ("parquet", "", LINE, "warn", "{}, record 1: not a Parquet file"),
    "some filtered": (
        "jsonl",
        FILTER,
        b'{"n":1}\n{"n":2}\n',
        "ok",
        "the first 2 records of {} can be read, 1 filtered",
    ),
    "all filtered": (
        "jsonl",
        FILTER,
        b'{"n":2}\n' * 2,
        "warn",
        "the transforms leave nothing of the first 2 records of {}",
    ),
    "bad for a transform": ("jsonl", TIMESTAMP, b"{}\n", "warn", "1 bad record in the first record of {}"),
    "no record": ("jsonl", "", b"\n", "ok", "{} has no record"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_the_first_records_are_decoded_and_transformed(program, moto_bucket, case):
    name, program.transforms, data, mark, detail = RECORDS[case]
    moto_bucket.put("a.jsonl", data)
    ended = program.configure(input={"format": name}).run("check")
    assert ended.code == 0, ended
    said = only(ended, "records")
    assert said[0] == mark
    assert said[1].startswith(detail.replace("{}", f"s3://{moto_bucket.name}/a.jsonl"))
    ends = said[1].endswith('; with [errors] tolerance = "none" a run ends there')
    assert ends == ("bad record" in said[1] or "not a Parquet" in said[1])


def test_a_prefix_that_shows_nothing_is_a_warning(program, moto_bucket):
    moto_bucket.put("events/a.jsonl", LINE)
    ended = program.configure(s3={"prefix": "evnts/"}).run("check")
    assert ended.code == 0
    assert only(ended, "selection")[0] == "warn"
    assert f"s3://{moto_bucket.name}/evnts/ contains no object" in only(ended, "selection")[1]


def test_a_topic_of_another_number_of_partitions_is_told_the_ways_out(program, moto_bucket, iggy_url, stream_name):
    moto_bucket.put("a.jsonl", LINE)
    program.configure(iggy={"partitions": 3}).once()
    ended = program.configure(iggy={"partitions": 2}).run("check")
    marks = [detail for mark, detail in steps(ended)["topic"] if mark == "FAIL"]
    assert len(marks) == 1
    assert "has 3 partitions, the configuration says 2: set [iggy] partitions = 3, or name another topic" in marks[0]
    shown = program.configure(iggy={"partitions": 3}).run("read", "--offset", "7")
    assert (shown.code, shown.out) == (0, "")
    assert "has no record from offset 7 on" in shown.err


def test_nothing_chosen_so_far_of_a_large_bucket_is_a_warning(program, moto_bucket, monkeypatch):

    monkeypatch.setattr(check, "LOOKED_AT", 3)
    for number in range(40):
        moto_bucket.put(f"{number:02}.old", LINE)
    ended = program.configure(discovery={"include": ["*.jsonl"]}).run("check")
    assert ended.code == 0
    assert only(ended, "selection")[0] == "warn"
    assert "none of the first 30 objects chosen" in only(ended, "selection")[1]


def test_a_key_that_says_an_impossible_partition_is_counted(program, moto_bucket):
    moto_bucket.put("x/99", LINE)
    program.configure(naming={"template": "{{key}}/{{partition}}", "distribution": "partition"})
    ended = program.run("check")
    assert ended.code == 3
    assert only(ended, "selection")[0] == "FAIL"
    moto_bucket.put("x/0", LINE)
    ended = program.run("check")
    assert ended.code == 0
    result, detail = only(ended, "selection")
    assert result == "warn"
    assert detail.startswith("1 of 2 objects chosen (its name says partition 99, but topic ")
    assert detail.endswith(': 1, the first x/99); with [errors] tolerance = "none" a run ends there')
    assert "x/99: its name says partition 99" in program.run("--once").err


# ---- the ports of the metrics and of the HTTP API


@pytest.mark.parametrize("section", ["metrics", "http"])
def test_a_port_that_is_taken_fails(program, moto_bucket, section):
    moto_bucket.put("a.jsonl", LINE)
    on = {"enabled": True} if section == "http" else {}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        program.configure(**{section: {**on, "address": f"127.0.0.1:{other.getsockname()[1]}"}})
        ended = program.run("check")
    assert ended.code == 1
    assert only(ended, section)[0] == "FAIL"
    assert "Address already in use" in only(ended, section)[1]
    ended = program.configure(**{section: {"address": f"127.0.0.1:{free_port()}"}}).run("check")
    assert ended.code == 0


def test_the_libraries_of_the_http_api_are_missing(program, moto_bucket, monkeypatch):
    moto_bucket.put("a.jsonl", LINE)
    monkeypatch.setattr(worker, "API_LIBRARIES", ("uvicorn", "no_such_library"))
    ended = program.configure(http={"enabled": True, "address": f"127.0.0.1:{free_port()}"}).run("check")
    assert ended.code == 3
    missing = 'the HTTP API needs the Python package "no_such_library", which is not installed: install this project'
    assert only(ended, "http") == ("FAIL", f'{missing} with the extra `worker`, pip install ".[worker]"')


def test_what_the_http_api_cannot_use_fails_as_the_run_does(program, moto_bucket, tmp_path):
    moto_bucket.put("a.jsonl", LINE)
    program.configure(http={"enabled": True, "address": f"127.0.0.1:{free_port()}"})
    missing, state, no_folder = str(tmp_path / "none.pem"), tmp_path / "state", program.path / "state"
    for change, said in (
        ({"http": {"state_dir": str(no_folder)}}, f"state_dir: the folder {no_folder} cannot be used: Not a directory"),
        (
            {
                "http": {"state_dir": str(state)},
                "http.tls": {"enabled": True, "cert_file": missing, "key_file": missing},
            },
            f"cert_file: {missing} cannot be read: No such file or directory",
        ),
    ):
        checked = program.configure(**change).run("check")
        assert not state.exists()
        ran = program.run("--once")
        assert checked.code == ran.code == 2
        mark, detail = steps(checked)["http"][-1]
        assert mark == "FAIL"
        assert detail.endswith(said)
        assert detail in ran.said


def test_an_api_key_that_goes_in_the_clear_is_a_warning(program, moto_bucket):
    moto_bucket.put("a.jsonl", LINE)
    program.configure(http={"enabled": True, "address": f"0.0.0.0:{free_port()}", "api_key": "drowssap"})
    checked = program.run("check")
    assert checked.code == 0
    assert ("warn", "[http.tls] is off: the API key goes over the network in the clear") in steps(checked)["http"]


# ---- the engine


def test_no_java_fails_as_the_run_does(program, moto_bucket, monkeypatch, tmp_path):
    moto_bucket.put("a.jsonl", LINE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    program.configure(runner={"engine": "spark"})
    ended = program.run("check")
    assert ended.code == 3
    assert only(ended, "java")[0] == "FAIL"
    assert "needs Java 17" in only(ended, "java")[1]
    assert "ok   iggy" in ended.out


@NO_JAVA
@pytest.mark.parametrize("command", [("check",), ("--once",)])
def test_a_master_that_is_away_is_one_sentence_within_20_seconds(program, moto_bucket, command, monkeypatch):
    assert spark_context.REACH_SECONDS <= 8
    monkeypatch.setattr(spark_context, "REACH_SECONDS", 1.0)
    moto_bucket.put("a.jsonl", LINE)
    program.configure(runner={"engine": "spark"}, spark={"master": f"spark://127.0.0.1:{free_port()}"})
    ended = program.run(*command).no_secrets()
    assert ended.code == 1, ended
    assert ended.seconds < 13
    said = only(ended, "master")[1] if command == ("check",) else ended.said
    assert "no answer (Connection refused)" in said


@NO_JAVA
def test_a_master_that_takes_connections_and_says_nothing_is_one_sentence(program, moto_bucket):
    moto_bucket.put("a.jsonl", LINE)
    with socket.socket() as pit:
        pit.bind(("127.0.0.1", 0))
        pit.listen(50)
        program.configure(runner={"engine": "spark"}, spark={"master": f"spark://127.0.0.1:{pit.getsockname()[1]}"})
        limit = {"framework.engine.spark.spark_context.MASTER_SECONDS": 3.0}
        ended = program.start("--once", constants=limit).wait(120).no_secrets()
    assert ended.code == 1, ended
    assert ended.seconds < 18  # 3, and the start of a JVM
    assert spark_context.MASTER_SECONDS <= 30
    assert "waited 3 seconds for an answer of Spark's master" in ended.said
    assert ended.said.startswith("error: ")


@NO_JAVA
def test_all_is_well_with_spark(program, moto_bucket):
    moto_bucket.put("a.jsonl", LINE)
    program.configure(runner={"engine": "spark"}, spark={"master": "local[1]"})
    ended = program.start("check").wait()
    assert ended.code == 0, ended
    assert [found for found in steps(ended) if found in {"java", "master", "executors"}] == [
        "java",
        "master",
        "executors",
    ]


# ---- Iggy


def test_it_makes_no_folder_for_the_embedded_server(program, moto_bucket, tmp_path):
    moto_bucket.put("a.jsonl", LINE)
    folder = tmp_path / "deep" / "iggy-data"
    ended = program.configure(iggy={"url": f"embedded:{folder}"}).run("check")
    assert ended.code == 0, ended.out
    assert "is made in" in only(ended, "iggy")[1]
    assert not folder.parent.exists()


@pytest.mark.parametrize("folder", ["/proc/iggy-data", "{file}/iggy-data"])
def test_a_place_where_the_embedded_server_cannot_be_made(program, moto_bucket, tmp_path, folder):
    moto_bucket.put("a.jsonl", LINE)
    (tmp_path / "file").touch()
    ended = program.configure(iggy={"url": f"embedded:{folder.format(file=tmp_path / 'file')}"}).run("check")
    assert ended.code != 0, ended.out
    assert "cannot be made" in only(ended, "iggy")[1]


def test_a_folder_that_cannot_be_made_fails(program, moto_bucket, tmp_path):
    moto_bucket.put("a.jsonl", LINE)
    (tmp_path / "file").touch()
    ended = program.configure(iggy={"url": f"embedded:{tmp_path}/file/iggy-data"}).run("check")
    assert ended.code == 3
    assert only(ended, "iggy")[0] == "FAIL"


def test_iggy_that_is_away_is_to_be_tried_again(program, moto_bucket):
    moto_bucket.put("a.jsonl", LINE)
    ended = program.configure(iggy={"url": f"iggy://iggy:iggy@127.0.0.1:{free_port()}"}).run("check")
    assert ended.code == 1


def test_a_password_that_goes_in_the_clear_is_a_warning(program, moto_bucket, iggy_url):
    moto_bucket.put("a.jsonl", LINE)
    here = program.configure(iggy={"url": iggy_url}).run("check")
    there = program.configure(iggy={"url": iggy_url.replace("127.0.0.1", "0.0.0.0")}).run("check")  # reaches the same
    assert (here.code, "in the clear" in here.out) == (0, False)
    assert there.code == 0, there
    (line,) = [line for line in there.out.splitlines() if line.startswith("warn")]
    assert "password and records go to 0.0.0.0" in line


RIGHTS = [
    Right("read", "records", 1),
    Right("send", "records", 1),
    Right("create", "dead"),
    Right("send", "orders-offsets", 2),
    Right("manage", "orders-offsets", 2),
]


def stream_rights(**given):
    return Permissions(None, {7: StreamPermissions(**given)})


@pytest.mark.parametrize(
    ("permissions", "missing"),
    [
        (Permissions(GlobalPermissions(manage_streams=True)), []),
        (Permissions(GlobalPermissions(manage_topics=True, read_streams=True)), []),
        (Permissions(GlobalPermissions(manage_topics=True)), ["look up the stream"]),
        (stream_rights(manage_stream=True), []),
        (stream_rights(manage_topics=True, read_stream=True), []),
        (stream_rights(manage_topics=True), ["look up the stream"]),
        (Permissions(GlobalPermissions(read_streams=True, send_messages=True)), ["create", "delete old segments"]),
        (stream_rights(read_topics=True), ["look up the stream", "send", "create", "send", "delete old segments"]),
        (
            stream_rights(
                topics={
                    1: TopicPermissions(read_topic=True, send_messages=True),
                    2: TopicPermissions(manage_topic=True),
                }
            ),
            ["look up the stream", "create"],
        ),
        (Permissions(), ["look up the stream", "read", "send", "create", "send", "delete old segments"]),
    ],
)
def test_what_a_user_may_not_do_is_named(permissions, missing):
    found = missing_rights(permissions, 7, RIGHTS)
    assert len(found) == len(missing), found
    assert all(sentence.startswith(begin) for sentence, begin in zip(found, missing, strict=True)), found


@pytest.mark.parametrize(
    ("streams", "number"),
    [
        (None, -1),
        ({3: StreamPermissions(read_stream=True, send_messages=True)}, -1),
        ({3: StreamPermissions(manage_stream=True), 7: StreamPermissions(send_messages=True)}, 7),
        ({3: StreamPermissions(read_topics=True), 7: StreamPermissions(send_messages=True)}, None),
    ],
)
def test_a_stream_that_the_user_may_not_look_up_is_none_of_those_that_it_may(streams, number):
    """`check` passed, and the run was refused, for users of no stream, or of another one."""
    permissions = Permissions(GlobalPermissions(read_servers=True), streams)
    assert hidden_stream(permissions) == number
    if number == -1:
        assert len(missing_rights(permissions, number, RIGHTS)) == 6


def test_a_user_who_creates_nothing_needs_no_right_to_create():
    rights = [right for right in RIGHTS if right.deed != "create"]
    assert missing_rights(Permissions(), None, rights) == []


def test_without_the_stream_it_must_be_created():
    assert missing_rights(Permissions(GlobalPermissions(manage_topics=True)), None, RIGHTS) == [
        "create the stream (manage_streams)"
    ]


# ---- the positions


def test_an_object_that_is_half_read_under_other_options_is_a_warning(program, moto_bucket):
    """A run stops there, unless the object is gone or has a new version by then."""
    moto_bucket.put("a.jsonl", LINE + b"no JSON\n")
    assert program.run("--once").code == 3
    assert "warn positions" not in program.run("check").out
    program.configure(input={"format": "text"})
    ended = program.run("check")
    assert ended.code == 0, ended.out
    assert f"warn positions      {moto_bucket.name}/a.jsonl: 1 records were read with" in ended.out
    assert program.run("--once").code == 3


async def purge(client, stream):
    await client.purge_topic(stream, "records")


async def delete(client, stream):
    await client.delete_topic(stream, "records")


async def recreate(client, stream):
    await delete(client, stream)
    await client.create_topic(stream, "records", 3)


async def lose_the_log(client, stream):
    await client.delete_topic(stream, "orders-offsets")


async def purge_the_log(client, stream):
    await client.purge_topic(stream, "orders-offsets")


async def weaken_the_log(client, stream):
    await lose_the_log(client, stream)
    await client.create_topic(stream, "orders-offsets", 1, messages_required_to_save=100)


DAMAGES = [purge, delete, recreate, lose_the_log, purge_the_log]


@pytest.mark.parametrize("damage", [*DAMAGES, weaken_the_log], ids=lambda damage: damage.__name__)
def test_topics_that_do_not_hold_what_positions_count_fail_as_a_run_does(program, moto_bucket, damage):
    for number in range(6):
        moto_bucket.put(f"{number}.jsonl", LINE)
    program.once()
    saved = only(program.run("check"), "positions")
    assert saved[0] == "ok"
    assert "; the topics hold what they count" in saved[1]
    with_client(program.url, lambda client: damage(client, program.stream))
    failed = {
        (code, detail)
        for ended in [program.run("check")]
        for step, results in steps(ended).items()
        for mark, detail in results
        for code in [ended.code]
        if mark == "FAIL" and step in {"topic", "positions"}
    }
    if damage in DAMAGES:
        assert failed == {(3, program.run("plan").said.removeprefix("error: "))}
    run = program.run("--once")
    assert (run.code, run.said.removeprefix("error: ")) in failed


def test_beside_a_running_instance_the_positions_are_its_own_business(program, moto_bucket):
    moto_bucket.put("a.jsonl", LINE)
    running = program.start()
    wait_for_count(program, 1, running)
    (mark, detail) = only(program.run("check"), "positions")
    assert (mark, "; the instance on " in detail, f"(process {running.pid}" in detail) == ("ok", True, True)


def test_nothing_is_left_behind(program, moto_bucket):
    """No thread and no topic."""
    moto_bucket.put("a.jsonl", LINE)
    assert program.run("check").code == 0
    before = {thread.name for thread in threading.enumerate()}
    assert program.run("check").code == 0
    assert {thread.name for thread in threading.enumerate()} <= before
    assert program.count() == 0
    assert "it will be made" in program.run("check").out


@pytest.mark.parametrize(
    "command",
    [("status",), ("read",), ("offsets", "show"), ("offsets", "export"), ("offsets", "reset", "--all", "--yes")],
    ids=" ".join,
)
def test_no_command_that_looks_makes_the_folder(program, tmp_path, command):
    folder = tmp_path / "iggy-data"
    ended = program.configure(iggy={"url": f"embedded:{folder}"}).run(*command)
    assert ended.code == 3
    assert f"there is no folder {folder} yet: run the source first" in ended.said
    assert not folder.exists()


def test_a_plan_needs_no_folder(program, moto_bucket, tmp_path):
    moto_bucket.put("a.jsonl", LINE)
    folder = tmp_path / "iggy-data"
    ended = program.configure(iggy={"url": f"embedded:{folder}"}).run("plan")
    assert ended.code == 0
    assert "to read: 1 object, 9 bytes" in ended.out
    assert not folder.exists()


IS_REAL = "IGGY_SERVER_BINARY" in os.environ
"""The embedded server has one user."""


@pytest.fixture
def real_server(tmp_path):
    server = OwnServer(tmp_path / "server", "real")
    yield server.start()
    server.kill()


if IS_REAL:

    @pytest.mark.parametrize(
        ("given", "create", "code", "missing"),
        [
            ({"manage_topics": True, "read_stream": True}, True, 0, ()),
            ({"manage_topics": True}, True, 3, ("look up the stream",)),
            ({"read_stream": True, "send_messages": True}, True, 3, ("create the topic",)),
            ({"read_topics": True}, False, 3, ("send to the topic", "delete old segments")),
            ({"manage_topics": True, "read_stream": True, "no_servers": True}, True, 3, ("read_servers",)),
        ],
    )
    def test_the_permissions_of_a_user_on_a_real_server(
        tmp_path, moto_bucket, real_server, given, create, code, missing
    ):
        moto_bucket.put("a.jsonl", LINE)
        program = Program(tmp_path, moto_bucket, real_server.url, "lake")
        if not create:
            program.once()
        else:
            with_client(real_server.url, lambda client: client.create_stream("lake"))
        stream = with_client(real_server.url, lambda client: client.get_stream("lake")).id
        servers = GlobalPermissions(read_servers=not given.pop("no_servers", False))
        permissions = Permissions(servers, {stream: StreamPermissions(**given)})
        with_client(
            real_server.url, lambda client: client.create_user("reader", "p@ss/w:rd%41", permissions=permissions)
        )
        program.configure(
            iggy={"url": f"iggy://127.0.0.1:{real_server.port}", "username": "reader", "password": "p@ss/w:rd%41"}
        )
        ended = program.run("check").no_secrets()
        assert ended.code == code, ended.out
        assert "p@ss" not in ended.out + ended.err
        for words in missing:
            assert words in ended.out
        program.run("--once")
        again = program.run("--once")  # only a second start has an earlier instance to look for
        assert (again.code == 0) is (code == 0), again.err

    def test_with_create_topics_off_a_user_needs_no_right_to_create_them(tmp_path, moto_bucket, real_server):
        moto_bucket.put("a.jsonl", LINE)
        with_client(real_server.url, lambda client: client.create_stream("lake"))
        stream = with_client(real_server.url, lambda client: client.get_stream("lake")).id
        rights = StreamPermissions(read_stream=True, read_topics=True, send_messages=True)
        permissions = Permissions(GlobalPermissions(read_servers=True), {stream: rights})
        with_client(real_server.url, lambda client: client.create_user("reader", "p@ss", permissions=permissions))
        program = Program(tmp_path, moto_bucket, real_server.url, "lake")
        program.configure(
            iggy={
                "url": f"iggy://127.0.0.1:{real_server.port}",
                "username": "reader",
                "password": "p@ss",
                "create_topics": False,
            }
        )
        ended = program.run("check")
        assert ended.code == 3
        assert ended.out.count("is missing, make it first") == 2
        assert "create the topic" not in ended.out
