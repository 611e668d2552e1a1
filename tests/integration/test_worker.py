"""A worker over a folder: real processes, a real store's protocol, an embedded Iggy, and requests over HTTP."""

import os
import signal
import subprocess
import sys

import pytest

from tests.integration.program_rig import ROOT, Running, json_lines, jsonl, toml, wait_until
from tests.integration.worker_rig import KEY, WorkerRig, alive, children, request, trusting
from tests.support.stopwatch import run_within

RECORDS = 200


@pytest.fixture
def rig(tmp_path, iggy_url, stream_name):
    made = WorkerRig(tmp_path, iggy_url, stream_name)
    yield made
    made.kill()


@pytest.fixture
def bucket(bucket_of):
    return bucket_of("moto")


def put(bucket, name, objects=3, count=RECORDS):
    """Fills the prefix of a source; returns the records, sorted."""
    expected = []
    for number in range(objects):
        payloads = json_lines(f"{name}{number}", count + number)
        bucket.put(f"{name}/{number}.jsonl", jsonl(payloads))
        expected += payloads
    return sorted(expected)


def test_sources_run_beside_each_other_and_stop_in_order(rig, bucket, bucket_of):
    gcs = bucket_of("fake-gcs")
    orders, clicks = put(bucket, "orders"), put(gcs, "clicks")
    rig.add("orders", bucket)
    rig.add("clicks", gcs)
    rig.start().ready()
    for name in ("orders", "clicks"):
        rig.wait_for(name, "running")
    wait_until(lambda: rig.stats("orders")["messages_sent"] == len(orders), 60)
    wait_until(lambda: rig.stats("clicks")["messages_sent"] == len(clicks), 60)
    assert rig.source("orders")["path"] == "s3_source"
    assert rig.source("clicks")["path"] == "gcs_source"
    ended = rig.stop()
    assert ended.code == 0, ended.err
    ended.no_secrets()
    assert KEY not in ended.err
    assert rig.payloads("orders") == orders
    assert rig.payloads("clicks") == clicks
    for line in ended.err.splitlines():
        if "HTTP API" not in line and "worker of the folder" not in line and "SIGTERM" not in line:
            assert "orders" in line or "clicks" in line, line


def test_a_wrong_file_among_five_leaves_four_alone_and_says_what_check_says(rig, bucket):
    for number in range(4):
        put(bucket, f"s{number}", objects=1, count=5)
        rig.add(f"s{number}", bucket, runner={"tasks_max": 1})
    wrong = rig.add("wrong", bucket, discovery={"poll_intervall": 1})
    rig.start().ready()
    found = rig.wait_for("wrong", "error")
    for number in range(4):
        wait_until(lambda name=f"s{number}": rig.stats(name)["messages_sent"] == 5, 90, 0.2)
    check = checked(wrong)
    assert check.startswith(f"error: {found['last_error']['message']}")
    assert "did you mean poll_interval?" in check
    states = [source["status"] for source in rig.get("/sources").json]
    assert sorted(states) == ["error", *["running"] * 4]
    rig.add("wrong", bucket)  # a person corrects it
    assert "last_error" not in rig.wait_for("wrong", "running")
    assert rig.stop().code == 0


def checked(path):
    """What the command `check` says about a file."""
    command = [sys.executable, "-m", "s3_source", "check", "--config", str(path)]
    return run_within(60, command, cwd=ROOT).stderr


def test_files_of_one_source_name_added_changed_and_removed(rig, bucket):
    orders = put(bucket, "orders")
    rig.start().ready()
    assert rig.get("/sources").json == []
    rig.add("orders", bucket)
    rig.wait_for("orders", "running")
    first = rig.pid("orders")
    rig.add("orders", bucket, file="a-copy.toml")  # it sorts before the running one, which keeps its name
    copy = rig.wait_for("a-copy.toml", "error")
    assert str(rig.conf / "orders.toml") in copy["last_error"]["message"]
    assert str(rig.conf / "a-copy.toml") in copy["last_error"]["message"]
    assert rig.pid("orders") == first
    rig.add("orders", bucket, iggy={"batch_length": 17})
    wait_until(lambda: rig.pid("orders") not in {first, None}, 60, 0.1)
    assert rig.source("orders")["streams"][0]["batch_length"] == 17
    rig.wait_for_messages("orders", lambda count: count == len(orders), 60)
    (rig.conf / "a-copy.toml").unlink()
    (rig.conf / "orders.toml").unlink()
    wait_until(lambda: rig.get("/sources").json == [], 60, 0.1)
    wait_until(lambda: not children(rig.running.pid), 30, 0.1)
    assert rig.payloads("orders") == orders


def test_a_running_source_survives_a_change_that_is_wrong(rig, bucket):
    put(bucket, "orders")
    path = rig.add("orders", bucket)
    rig.start().ready()
    rig.wait_for("orders", "running")
    pid = rig.pid("orders")
    path.write_text("[source\nname = ")
    found = wait_until(lambda: "last_error" in (made := rig.source("orders")) and made, 60, 0.1)
    assert "not valid TOML" in found["last_error"]["message"]
    assert found["status"] == "running"
    assert rig.pid("orders") == pid


def test_a_source_that_starts_again_runs_what_the_worker_took_though_its_file_is_half_written(rig, bucket):
    """A half that is gone before the worker counts it as a change is corrected by nothing, once a process has read it."""
    put(bucket, "orders")
    path = rig.add("orders", bucket)
    rig.start().ready()
    rig.wait_for("orders", "running")
    first, whole = rig.pid("orders"), path.read_text()
    os.kill(first, signal.SIGKILL)
    second = wait_until(lambda: (pid := rig.pid("orders")) != first and pid, 60, 0.01)
    path.write_text(whole[: whole.index("[iggy]")])  # it takes some tenths of a second until it could read that
    assert rig.wait_for("orders", "running")["restarts"] == 1
    path.write_text(whole)
    wait_until(lambda: "refused_config" not in rig.source("orders"), 60, 0.1)
    assert (rig.pid("orders"), rig.source("orders")["status"]) == (second, "running")


def test_a_killed_source_and_a_killed_worker_lose_and_repeat_nothing(rig, bucket):
    """Kills at moments that differ from round to round: nothing is lost, nothing is there twice."""
    expected = {name: put(bucket, name, objects=8, count=400) for name in ("orders", "clicks")}
    for name in expected:
        rig.add(name, bucket, iggy={"batch_length": 31}, runner={"tasks_max": 2 if name == "clicks" else 1})
    targets = iter((300, 900, 1500, 2100))
    for round_number in range(2):
        rig.start().ready()
        for name in expected:
            target = next(targets)
            rig.wait_for_messages(name, lambda count, target=target: count >= target, 120)
            pid = rig.pid(name)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda name=name, pid=pid: rig.pid(name) not in {pid, None}, 60, 0.1)
                assert rig.source(name)["restarts"] == 1
        orphans = children(rig.running.pid)
        assert len(orphans) == 2
        rig.kill()
        if round_number:  # once it starts while the old processes still stop
            wait_until(lambda orphans=orphans: not any(map(alive, orphans)), 60, 0.1)
    rig.start().ready()
    for name, payloads in expected.items():
        rig.wait_for_messages(name, lambda count, payloads=payloads: count >= len(payloads), 120)
    assert rig.stop().code == 0
    for name, payloads in expected.items():
        assert rig.payloads(name) == payloads


def test_paused_and_stopped_stay_so_over_kills_of_the_worker(rig, bucket):
    expected = {name: put(bucket, name) for name in ("orders", "clicks")}
    for name in expected:
        rig.add(name, bucket)
    rig.start().ready()
    for name, payloads in expected.items():
        rig.wait_for_messages(name, lambda count, payloads=payloads: count == len(payloads), 60)
    assert rig.put("/connectors/orders/pause").status == 202
    assert rig.put("/connectors/clicks/stop").status == 204
    for name, state in (("orders", "PAUSED"), ("clicks", "STOPPED")):
        wait_until(lambda name=name, state=state: connect_state(rig, name) == state, 60, 0.1)
    for _ in range(2):
        rig.kill()
        rig.start().ready()
        assert connect_state(rig, "orders") == "PAUSED"
        assert connect_state(rig, "clicks") == "STOPPED"
        assert rig.source("orders")["status"] == "stopped"
        assert children(rig.running.pid) == []
    more = json_lines("more", 17)
    bucket.put("orders/more.jsonl", jsonl(more))
    assert rig.put("/connectors/orders/resume").status == 202
    everything = sorted([*expected["orders"], *more])
    rig.wait_for_messages("orders", lambda count: count == len(everything), 60)
    wait_until(lambda: connect_state(rig, "orders") == "RUNNING", 60, 0.1)
    assert rig.payloads("orders") == everything


def connect_state(rig, name):
    return rig.get(f"/connectors/{name}/status").json["connector"]["state"]


def test_offsets_are_reset_only_when_stopped_and_everything_is_sent_again(rig, bucket):
    orders = put(bucket, "orders")
    rig.add("orders", bucket)
    rig.start().ready()
    rig.wait_for_messages("orders", lambda count: count == len(orders), 60)
    refused = request(rig.port, "DELETE", "/connectors/orders/offsets")
    assert refused.status == 400
    assert "its offsets can be changed after PUT" in refused.json["message"]
    rig.put("/connectors/orders/stop")
    wait_until(lambda: connect_state(rig, "orders") == "STOPPED", 60, 0.1)
    shown = rig.get("/connectors/orders/offsets").json["offsets"]
    assert sorted(one["partition"]["key"] for one in shown) == [f"orders/{number}.jsonl" for number in range(3)]
    assert {one["offset"]["state"] for one in shown} == {"done"}
    change = {"offsets": [{"partition": shown[0]["partition"], "offset": None}]}
    assert request(rig.port, "PATCH", "/connectors/orders/offsets", change).status == 200
    assert len(rig.get("/connectors/orders/offsets").json["offsets"]) == 2
    done = request(rig.port, "DELETE", "/connectors/orders/offsets")
    assert done.status == 200, done.body
    assert rig.get("/connectors/orders/offsets").json == {"offsets": []}
    rig.put("/connectors/orders/resume")
    rig.wait_for_messages("orders", lambda count: count == 2 * len(orders), 60)
    assert rig.payloads("orders") == sorted([*orders, *orders])


def test_positions_are_set_only_when_stopped_and_the_rest_is_sent_again(rig, bucket):
    orders = put(bucket, "orders")
    rig.add("orders", bucket)
    rig.start().ready()
    rig.wait_for_messages("orders", lambda count: count == len(orders), 60)
    place = {"key": "orders/1.jsonl"}
    change = {"offsets": [{"partition": place, "offset": {"records": 2}}]}
    refused = request(rig.port, "PATCH", "/connectors/orders/offsets", change)
    assert (refused.status, "its offsets can be changed after PUT" in refused.json["message"]) == (400, True)
    rig.put("/connectors/orders/stop")
    wait_until(lambda: connect_state(rig, "orders") == "STOPPED", 60, 0.1)
    for offset, said in (
        ({"records": 10**9}, "1000000000 is more than the"),
        ({"records": 1, "version": "x"}, "not of 'x'"),
    ):
        change = {"offsets": [{"partition": place, "offset": offset}]}
        refused = request(rig.port, "PATCH", "/connectors/orders/offsets", change)
        assert refused.status == 409, refused.body
        assert said in refused.json["message"]
    change = {
        "offsets": [
            {"partition": place, "offset": {"records": 2}},
            {"partition": {"key": "orders/2.jsonl"}, "offset": {"done": True}},
        ]
    }
    done = request(rig.port, "PATCH", "/connectors/orders/offsets", change)
    assert done.status == 200, done.body
    shown = {one["partition"]["key"]: one["offset"] for one in rig.get("/connectors/orders/offsets").json["offsets"]}
    assert (shown["orders/1.jsonl"]["records"], shown["orders/1.jsonl"]["state"]) == (2, "reading")
    assert (shown["orders/2.jsonl"]["generation"], shown["orders/2.jsonl"]["state"]) == (2, "done")
    rig.put("/connectors/orders/resume")
    again = shown["orders/1.jsonl"]["total"] - 2
    rig.wait_for_messages("orders", lambda count: count == len(orders) + again, 60)
    rig.stop()
    assert set(rig.payloads("orders")) == set(orders)
    assert len(rig.payloads("orders")) == len(orders) + again


def test_a_configuration_is_stored_activated_while_it_runs_and_taken_back(rig, bucket):
    orders = put(bucket, "orders", objects=12, count=400)
    rig.add("orders", bucket, iggy={"batch_length": 31})
    rig.start().ready()
    rig.wait_for_messages("orders", lambda count: count >= 300, 60)
    sections = rig.sections("orders", bucket, iggy={"batch_length": 47})
    made = rig.post("/sources/orders/configs", {"name": "Faster", "plugin_config": sections})
    assert made.status == 200, made.body
    assert (made.json["version"], made.json["active"], made.json["name"]) == (1, False, "Faster")
    assert [one["active"] for one in rig.get("/sources/orders/configs").json] == [True, False]
    first = rig.pid("orders")
    assert rig.put("/sources/orders/configs/active", {"version": 1}).status == 204
    wait_until(lambda: rig.pid("orders") not in {first, None}, 60, 0.1)
    assert rig.get("/sources/orders/configs/active").json["streams"][0]["batch_length"] == 47
    rig.kill()  # the activation is kept
    rig.start().ready()
    assert rig.get("/sources/orders/configs/active").json["version"] == 1
    rig.wait_for_messages("orders", lambda count: count >= len(orders), 60)
    assert request(rig.port, "DELETE", "/sources/orders/configs?version=1").status == 204
    assert rig.get("/sources/orders/configs/active").json["version"] == 0
    assert rig.get("/sources/orders/configs/1").status == 404
    ended = rig.stop()
    ended.no_secrets()
    assert rig.payloads("orders") == orders


def test_no_answer_shows_a_password(rig, bucket):
    put(bucket, "orders")
    rig.add("orders", bucket)
    rig.start().ready()
    rig.wait_for("orders", "running")
    paths = ["/sources", "/sources/orders", "/sources/orders/configs", "/sources/orders/configs/active"]
    paths += [f"/sources/orders/configs/plugin?format={form}" for form in ("json", "toml", "yaml", "text")]
    paths += ["/sources/orders/configs/0", "/stats", "/metrics", "/connectors/orders/status", "/openapi.json"]
    for path in paths:
        answer = rig.get(path)
        assert answer.status == 200, (path, answer.body)
        for secret in (b"test-secret", b"iggy:iggy", KEY.encode()):
            assert secret not in answer.body, path
    shown = rig.get("/sources/orders/configs/active").json["plugin_config"]
    assert shown["iggy"]["url"].startswith("iggy://***@")
    refused = rig.post("/sources/orders/configs", {"plugin_config": shown})
    assert refused.status == 400
    assert "iggy.url" in refused.json["reason"]


def test_requests_without_key_too_long_and_with_unknown_fields(rig, bucket):
    put(bucket, "orders")
    rig.add("orders", bucket)
    rig.start().ready()
    for key in (None, "wrong", ""):
        assert rig.get("/sources", key=key).status == 401
        assert rig.put("/connectors/orders/stop", key=key).status == 401
    assert rig.get("/", key=None).body == b"Connector Runtime API"
    assert rig.get("/health", key=None).json == {"status": "healthy"}
    long = request(rig.port, "POST", "/sources/orders/configs", b"x" * 100_000_000)
    assert long.status == 413
    unknown = rig.post("/sources/orders/configs", {"plugin_config": {}, "enabeld": True})
    assert unknown.status == 422
    assert "enabeld: unknown field" in unknown.json["reason"]
    wrong = rig.post("/sources/orders/configs", {"plugin_config": rig.sections("orders", bucket, s3={"buckett": "x"})})
    assert wrong.status == 400
    assert "[s3] buckett: unknown option; did you mean bucket?" in wrong.json["reason"]
    assert rig.get("/sources/none").json == {"code": "source_not_found", "reason": "Source not found with key: none"}
    assert rig.source("orders")["status"] in {"starting", "running"}


def test_overrides_of_sources_in_the_environment_do_not_concern_the_worker(rig, bucket):
    orders = put(bucket, "orders")
    rig.add("orders", bucket)
    rig.start(environment={"IGGY_SOURCE__IGGY__TOPIC": "elsewhere", "IGGY_SOURCE__LOG__LEVEL": "debug"}).ready()
    rig.wait_for_messages("elsewhere", lambda count: count == len(orders), 60)
    assert rig.source("orders")["streams"][0]["topic"] == "elsewhere"
    assert rig.stop().code == 0


def test_a_second_worker_takes_over_as_a_standby(rig, bucket, tmp_path):
    orders = put(bucket, "orders", objects=12, count=400)
    rig.add("orders", bucket, iggy={"batch_length": 31})
    rig.start().ready()
    rig.wait_for_messages("orders", lambda count: count >= 300, 60)
    (tmp_path / "second").mkdir()
    second = WorkerRig(tmp_path / "second", rig.url, rig.stream)
    second.conf = rig.conf
    try:
        second.start("--standby").ready()
        wait_until(lambda: "standby" in second.running.err, 60)
        assert second.source("orders")["status"] == "starting"
        assert rig.stop().code == 0
        second.wait_for("orders", "running")
        rig.wait_for_messages("orders", lambda count: count >= len(orders), 60)
        assert second.stop().code == 0
    finally:
        second.kill()
    assert rig.payloads("orders") == orders


def test_tls_with_a_certificate(rig, tmp_path):
    certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", private, "-out", certificate], check=True, capture_output=True)
    rig.inner = {"http.tls": {"enabled": True, "cert_file": str(certificate), "key_file": str(private)}}
    rig.start()
    rig.running.wait_for("HTTP API at https://")
    answer = wait_until(lambda: request(rig.port, "GET", "/sources", tls=trusting(certificate)), 60)
    assert (answer.status, answer.json) == (200, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"api_key": None, "address": "0.0.0.0:0"}, "set api_key"),
        ({"address": "nonsense"}, "must be host:port"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(rig, change, said):
    rig.http |= change
    ended = rig.start().running.wait(60)
    assert ended.code == 2
    assert said in ended.said


def test_without_the_folder_the_exit_code_is_2(rig):
    rig.conf.rmdir()
    ended = rig.start().running.wait(60)
    assert ended.code == 2
    assert f"there is no folder {rig.conf}" in ended.said


def test_two_workers_do_not_share_a_state_folder(rig):
    first = rig.start().ready().running
    ended = rig.start().running.wait(60)
    rig.running = first
    assert ended.code == 1
    assert "another worker uses" in ended.said


def test_a_single_source_has_the_same_api_and_ends_with_its_own_exit_code(rig, bucket, tmp_path):
    orders = put(bucket, "orders")
    path = tmp_path / "orders.toml"
    http = {"enabled": True, **rig.http}
    path.write_text(toml(rig.sections("orders", bucket, http=http)))
    rig.running = single(tmp_path, path)
    rig.ready()
    rig.wait_for_messages("orders", lambda count: count == len(orders), 60)
    assert rig.put("/connectors/orders/pause").status == 202
    wait_until(lambda: connect_state(rig, "orders") == "PAUSED", 60, 0.1)
    rig.kill()
    rig.running = single(tmp_path, path)
    rig.ready()
    assert connect_state(rig, "orders") == "PAUSED"
    assert rig.put("/connectors/orders/resume").status == 202
    rig.wait_for("orders", "running")
    assert rig.stop().code == 0
    assert single(tmp_path, path, "--once").wait().code == 0
    path.write_text(
        toml(rig.sections("orders", bucket, http=http, iggy={"url": "iggy://iggy:wrong@" + place(rig.url)}))
    )
    ended = single(tmp_path, path).wait()
    assert ended.code == 3, ended.err
    assert rig.payloads("orders") == orders


def test_overrides_of_the_command_line_count_for_the_offsets_of_a_single_source(rig, bucket, tmp_path):
    """Another source of the same file keeps its positions."""
    orders = put(bucket, "orders", objects=1, count=5)
    path = tmp_path / "orders.toml"
    path.write_text(toml(rig.sections("orders", bucket, http={"enabled": False, **rig.http})))
    assert single(tmp_path, path, "--once").wait().code == 0
    rig.running = single(tmp_path, path, "--set", "source.name=copy", "--set", "http.enabled=true")
    rig.ready()
    rig.wait_for_messages("orders", lambda count: count == 2 * len(orders), 60)
    assert rig.put("/connectors/copy/stop").status == 204
    wait_until(lambda: connect_state(rig, "copy") == "STOPPED", 60, 0.1)
    assert request(rig.port, "DELETE", "/connectors/copy/offsets").status == 200
    assert rig.get("/connectors/copy/offsets").json == {"offsets": []}
    assert rig.stop().code == 0
    assert single(tmp_path, path, "--once").wait().code == 0
    assert rig.count("orders") == 2 * len(orders)


def place(url):
    return url.rpartition("@")[2]


def single(folder, path, *arguments):
    return Running(folder, "s3_source", ["--config", str(path), *arguments])


def test_exit_codes_of_sources_decide_what_happens_next(rig, bucket):
    """Wrong credentials wait for a person; a server that is away is tried again."""
    put(bucket, "orders")
    rig.add("orders", bucket, iggy={"url": "iggy://iggy:wrong@" + place(rig.url)})
    rig.add("away", bucket, iggy={"url": "iggy://iggy:iggy@127.0.0.1:9", "startup_timeout": 0.1})
    rig.start().ready()
    found = rig.wait_for("orders", "error")
    assert connect_state(rig, "orders") == "FAILED"
    assert found["restarts"] == 0
    wait_until(lambda: rig.source("away")["restarts"] >= 2, 60, 0.1)
    away = rig.wait_for("away", "error")
    assert "127.0.0.1:9" in away["last_error"]["message"]
    rig.add("orders", bucket)
    rig.wait_for("orders", "running")
    ended = rig.stop()
    assert ended.code == 0
    ended.no_secrets()
