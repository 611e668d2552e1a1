"""The HTTP API over fake processes: its documents beside those of Iggy's runtime, and every answer beside its description.

The files in `golden` were written by hand from the types in `core/connectors/sdk/src/api.rs` and
`core/connectors/runtime/src/{api/models.rs,configs/connectors.rs}` of Apache Iggy. Types that skip an absent value have
no field for it there; those that do not have null.
"""

import contextlib
import gc
import http.client
import json
import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from framework.config.http_sections import API_PATHS, HttpMetricsSection, HttpTlsSection
from framework.errors import ConfigError
from framework.runtime import server
from framework.runtime.api import MAX_BODY_BYTES, make_api
from framework.runtime.api_documents import semver
from framework.runtime.commands import CommandError
from framework.runtime.configuration import Configuration
from framework.runtime.managed_source import Failure
from framework.runtime.options import WorkerHttpSection
from framework.runtime.server import ApiServer
from framework.runtime.source_program import Kinds
from framework.runtime.state import StateFolder
from framework.runtime.worker import Worker
from s3_source.task import S3SourceTask
from tests.integration.program_rig import toml
from tests.support.examples import THOROUGH
from tests.unit.runtime.rig import FakeChild, load, text

GOLDEN = Path(__file__).parent / "golden"
OURS = {"file", "refused_config", "restarts"}
"""Fields that Iggy's types do not have; its clients ignore them."""

KEY = "drowssap"


class ApiRig:
    """A worker over fake processes, and its port."""

    def __init__(self, folder, *, api_key=KEY, **http):
        self.key = api_key
        self.conf = folder / "conf.d"
        self.conf.mkdir(exist_ok=True)
        self.children = {}
        self.commands = []
        self.rows = []
        self.fails = None
        self.state = StateFolder(folder / "state").__enter__()
        self.worker = Worker(
            self.conf,
            self.state,
            Kinds("s3_source", S3SourceTask),
            load,
            start=self._start,
            command=self._command,
        )
        self.section = WorkerHttpSection(address="127.0.0.1:0", api_key=api_key, **http)
        self.server = ApiServer(make_api(self.worker, self.section), self.section).__enter__()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def _start(self, configuration, _changed):
        child = self.children[configuration.key] = FakeChild(configuration, 100)
        child.runs()
        return child

    def _command(self, configuration, arguments, **_options):
        self.commands.append((configuration.key, arguments))
        if self.fails is not None:
            raise self.fails
        return self.rows

    def write(self, name, head=""):
        (self.conf / f"{name}.toml").write_text(text(name, head))
        return self

    def tick(self):
        self.worker.supervisor.tick()
        return self

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        if body is not None and not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"content-type": "application/json", **headers}
        headers = headers if self.key is None else {"api_key": self.key, **headers}
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data and "json" in answer.headers.get(
                "content-type", ""
            ) else data
        finally:
            connection.close()

    def close(self):
        self.server.__exit__(None, None, None)
        self.state.__exit__(None, None, None)


@pytest.fixture
def rig(tmp_path):
    made = ApiRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def orders(rig):
    return rig.write("orders").tick()


@pytest.fixture
def two(rig):
    """Sources as the golden documents have them."""
    rig.write("clicks").write("orders", 'type = "source"\nversion = 4\nname = "Orders of the lake"\n').tick()
    rig.children["orders"].runs(records_read=120, records=100, records_filtered=4, skipped=2, failed=1)
    rig.children["clicks"].code, rig.children["clicks"].error = 3, "no such bucket"
    rig.tick()
    with rig.worker.supervisor.source("clicks") as source:
        source.last_error = Failure("no such bucket", 1_700_000_000_000_000)
    return rig


def look(rig):
    """Two looks at the folder: a change counts when they agree."""
    for _ in range(2):
        rig.worker.supervisor._look_at = 0.0
        rig.tick()


@pytest.mark.parametrize("wrong", ["[sour", 'name = "Other"\n' + text("orders").replace('"lake"', "7")])
def test_a_wrong_change_is_shown_beside_the_configuration_that_runs_on(rig, caplog, wrong):
    rig.write("orders", 'name = "Orders"\nversion = 4\n').tick()
    before = rig.ask("GET", "/sources/orders")[1]
    assert (before["status"], before["streams"][0]["topic"], "refused_config" in before) == ("running", "orders", False)
    file = rig.conf / "orders.toml"
    file.write_text(wrong)
    look(rig)
    after = rig.ask("GET", "/sources/orders")[1]
    refused, error = after.pop("refused_config"), after.pop("last_error")
    assert after == before
    assert refused == {"version": 0, "file": str(file), "message": error["message"]}
    assert str(file) in refused["message"]
    assert rig.ask("GET", "/stats")[1]["connectors"][0]["name"] == "Orders"
    rig.children["orders"].code = 1
    rig.tick()
    ended = rig.ask("GET", "/sources/orders")[1]
    assert (ended["status"], ended["last_error"]["message"]) == ("error", refused["message"])
    assert "refused_config" not in ended
    assert "starting again" not in caplog.text
    rig.write("orders", 'name = "Orders"\nversion = 4\n')
    look(rig)
    assert rig.ask("GET", "/sources/orders")[1] == before


# ---- beside Iggy's runtime


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def same_fields(ours, theirs, place=""):
    """Compares names, types and values; our own fields are left out."""
    if isinstance(theirs, dict):
        assert set(ours) - OURS == set(theirs), place
        for name in theirs:
            same_fields(ours[name], theirs[name], f"{place}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), place
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            same_fields(mine, other, f"{place}[{number}]")
    else:
        assert type(ours) is type(theirs), place
        assert ours == theirs, place


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/sources", "sources"),
        ("/sources/orders", "source"),
        ("/sources/orders/configs/active", "config"),
        ("/sources/orders/configs/4", "config"),
    ],
)
def test_documents_have_the_fields_of_iggys_runtime(two, path, document):
    status, answer = two.ask("GET", path)
    assert status == 200
    same_fields(answer, golden(document))


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("1.2.3", 1_002_003),
        ("0.2.0.dev0", 2000),
        ("0.10.12rc1", 10_012),
        ("2.0.0+local", 2_000_000),
        ("1.2", None),
        ("main", None),
    ],
)
def test_a_version_is_a_number_as_iggys_runtime_has_it(version, number):
    assert semver(version) == number


def test_the_statistics_have_the_fields_of_iggys_runtime(two):
    wanted = golden("stats")
    two.worker.version = wanted["connectors_runtime_version"]
    _, answer = two.ask("GET", "/stats")
    measured = ("process_id", "memory_usage", "total_memory", "available_memory", "run_time", "start_time")
    for name in (*measured, "cpu_usage", "total_cpu_usage"):
        assert type(answer[name]) is type(wanted[name]), name
        assert answer[name] >= wanted[name] or name.endswith("usage"), name
        wanted[name] = answer[name]
    assert answer["start_time"] > 1_700_000_000_000_000
    same_fields(answer, wanted)


def test_the_run_time_is_not_that_of_a_clock_that_was_set_back(two, monkeypatch):
    before = two.ask("GET", "/stats")[1]
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 7_200 * 10**9)
    after = two.ask("GET", "/stats")[1]
    assert 0 < before["run_time"] < after["run_time"]
    assert before["start_time"] == after["start_time"]


def test_greeting_health_and_lists_that_are_empty(rig):
    assert rig.ask("GET", "/") == (200, b"Connector Runtime API")
    assert rig.ask("GET", "/health") == (200, {"status": "healthy"})
    for path in ("/sources", "/sinks", "/connectors"):
        assert rig.ask("GET", path) == (200, [])


def test_the_errors_of_iggys_runtime(orders):
    unknown = {"code": "source_not_found", "reason": "Source not found with key: none"}
    for method, path in [("GET", ""), ("GET", "/configs"), ("GET", "/transforms"), ("GET", "/configs/active")]:
        assert orders.ask(method, f"/sources/none{path}") == (404, unknown)
    missing = {"code": "source_config_not_found", "reason": "Source config not found with key: orders, version: 7"}
    assert orders.ask("GET", "/sources/orders/configs/7") == (404, missing)
    assert orders.ask("PUT", "/sources/orders/configs/active", {"version": 7}) == (404, missing)
    assert orders.ask("DELETE", "/sources/orders/configs?version=7") == (404, missing)


def test_metrics_under_iggys_names_and_under_ours(two):
    _, answer = two.ask("GET", "/metrics")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.decode())
        for sample in family.samples
    }
    assert found[("iggy_connectors_sources_total",)] == 2
    assert found[("iggy_connectors_sources_running",)] == 1
    labels = (("connector_key", "orders"), ("connector_type", "source"))
    values = {"messages_produced": 120, "messages_sent": 100, "messages_filtered": 4, "errors": 3}
    for name, value in values.items():
        assert found[(f"iggy_connector_{name}_total", *labels)] == value
    assert found[("iggy_source_records_total", ("source", "orders"))] == 100
    assert found[("iggy_source_records_total", ("source", "clicks"))] == 0


def test_the_paths_that_metrics_may_not_have_are_those_of_the_api(rig):
    paths = rig.ask("GET", "/openapi.json")[1]["paths"]
    assert {path.split("/")[1] for path in paths} == {"", "metrics", *API_PATHS - {"openapi.json"}}


def test_metrics_at_another_path_or_off(tmp_path):
    for number, section in enumerate((HttpMetricsSection(endpoint="/prometheus"), HttpMetricsSection(enabled=False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        rig = ApiRig(folder, metrics=section)
        assert rig.ask("GET", "/metrics")[0] == 404
        assert rig.ask("GET", "/prometheus")[0] == (200 if section.enabled else 404)
        rig.close()


# ---- configurations


SECTIONS = {
    "source": {"name": "orders"},
    "s3": {"bucket": "lake"},
    "input": {"format": "jsonl"},
    "iggy": {"url": "iggy://a:b@h:1", "stream": "lake", "topic": "orders"},
}


def test_a_configuration_as_iggys_clients_send_it(orders):
    _, shown = orders.ask("GET", "/sources/orders/configs/active")
    sent = {name: shown[name] for name in shown if name not in {"key", "version", "active"}}
    sent["plugin_config"] = SECTIONS
    status, made = orders.ask("POST", "/sources/orders/configs", sent)
    assert (status, made["version"], made["active"]) == (200, 1, False)
    assert orders.ask("PUT", "/sources/orders/configs/active", {"version": 1}) == (204, b"")
    orders.tick().tick()
    assert orders.children["orders"].configuration.version == 1
    assert orders.ask("DELETE", "/sources/orders/configs") == (204, b"")
    assert orders.ask("GET", "/sources/orders/configs/active")[1]["version"] == 0


def test_a_version_is_read_again_when_a_file_that_it_includes_has_changed(orders, tmp_path):
    common = tmp_path / "common.inc"
    common.write_text("[input]\nmax_record_bytes = 1000\n")
    content = {"include": [str(common)], **SECTIONS}
    assert orders.ask("POST", "/sources/orders/configs", {"plugin_config": content})[0] == 200
    read = orders.worker.supervisor.versions
    assert read("orders")[1].mapping["input"]["max_record_bytes"] == 1000
    common.write_text("[input]\nmax_record_bytes = 2000\n")
    assert read("orders")[1].mapping["input"]["max_record_bytes"] == 2000


def test_a_version_keeps_its_number_when_a_file_that_it_includes_is_wrong(orders, tmp_path):
    common = tmp_path / "common.inc"
    common.write_text("[input]\nmax_record_bytes = 1000\n")
    content = {"include": [str(common)], **SECTIONS}
    assert orders.ask("POST", "/sources/orders/configs", {"plugin_config": content})[0] == 200
    orders.ask("PUT", "/sources/orders/configs/active", {"version": 1})
    look(orders)
    common.write_text("[input]\nmax_record_bytes =\n")
    look(orders)
    assert orders.ask("GET", "/sources/orders")[1]["refused_config"]["version"] == 1
    assert orders.ask("GET", "/sources/orders/configs/active")[1]["version"] == 1
    shown = orders.ask("GET", "/sources/orders/configs")[1]
    assert [(one["version"], one["active"]) for one in shown] == [(0, False), (1, True)]
    status, answer = orders.ask("DELETE", "/sources/orders/configs?version=1")
    assert status == 204, answer


def test_deleted_versions_take_no_memory(orders):
    def known():
        gc.collect()
        return sum(isinstance(each, Configuration) for each in gc.get_objects())

    counts = []
    for version in range(1, 5):
        assert orders.ask("POST", "/sources/orders/configs", {"plugin_config": SECTIONS})[1]["version"] == version
        if version > 2:
            counts.append(known())  # seconds, late in a process of many tests
        if version > 1:
            assert orders.ask("DELETE", f"/sources/orders/configs?version={version - 1}") == (204, b"")
    assert counts[1] == counts[0]


def test_a_version_may_include_its_store_and_its_name(orders, tmp_path):
    common, other = tmp_path / "common.inc", tmp_path / "other.inc"
    for path, name in ((common, "orders"), (other, "other")):
        path.write_text(toml({**SECTIONS, "source": {"name": name}}))
    content = {"include": [str(common)], "iggy": {"batch_length": 7}}
    assert orders.ask("POST", "/sources/orders/configs", {"plugin_config": content})[0] == 200
    found = orders.worker.supervisor.versions("orders")[1]
    assert (found.mapping["s3"]["bucket"], found.mapping["iggy"]["batch_length"]) == ("lake", 7)
    for path, said in ((other, "must be that of the file"), (tmp_path / "none.inc", "cannot be read")):
        status, answer = orders.ask("POST", "/sources/orders/configs", {"plugin_config": {"include": [str(path)]}})
        assert status == 400
        assert said in answer["reason"]


def test_an_active_version_that_cannot_be_read_leaves_the_ways_to_the_others_open(orders, tmp_path):
    for _ in range(2):
        assert orders.ask("POST", "/sources/orders/configs", {"plugin_config": SECTIONS})[0] == 200
    assert orders.ask("PUT", "/sources/orders/configs/active", {"version": 1})[0] == 204
    (file,) = (tmp_path / "state").glob("source_orders_1.toml")
    file.unlink()
    file.mkdir()  # a mode would refuse nothing to root
    status, versions = orders.ask("GET", "/sources/orders/configs")
    assert (status, [made["version"] for made in versions]) == (200, [0, 1, 2])
    assert orders.ask("GET", "/sources/orders/configs/2")[0] == 200
    status, answer = orders.ask("PUT", "/sources/orders/configs/active", {"version": 1})
    assert status == 409
    assert answer["reason"] == f"{file}: the configuration file cannot be read: Is a directory"
    for version in (2, 0):
        assert orders.ask("PUT", "/sources/orders/configs/active", {"version": version}) == (204, b"")
        assert orders.ask("GET", "/sources/orders/configs/active")[1]["version"] == version


def test_transforms_are_stored_with_a_version_and_shown_in_their_order(orders):
    transforms = [
        {"type": "delete_fields", "fields": ["a"]},
        {"type": "add_fields", "fields": [{"key": "b", "value": {"static": {"c": [1, "x", True]}}}]},
    ]
    sent = {"plugin_config": {**SECTIONS, "transforms": transforms}}
    status, made = orders.ask("POST", "/sources/orders/configs", sent)
    assert (status, made["plugin_config"]["transforms"]) == (200, transforms)
    orders.ask("PUT", "/sources/orders/configs/active", {"version": 1})
    _, shown = orders.ask("GET", "/sources/orders/transforms")
    assert [{"type": one["type"], **one["config"]} for one in shown] == transforms


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"plugin_config": {}}, 400, "the section of its store is missing"),
        ({"plugin_config": {**SECTIONS, "iggy": {}}}, 400, "[iggy] stream: missing"),
        ({"plugin_config": {**SECTIONS, "source": {"name": "other"}}}, 400, "must be that of the file"),
        ({"plugin_config": {**SECTIONS, "name": "x"}}, 400, "name: belongs beside plugin_config"),
        ({"plugin_config": {**SECTIONS, "s3": {"bucket": None}}}, 400, "s3.bucket: null is no value"),
        ({"plugin_config": {**SECTIONS, "s3": {"bucket": "b", "secret_key": "***"}}}, 400, "s3.secret_key: ***"),
        ({"plugin_config": {**SECTIONS, "source": {}}}, 400, "[source] name: missing"),
        ({"plugin_config": {**SECTIONS, "source": {"name": 5}}}, 400, "[source] name = 5: must be text"),
        ({"plugin_config": {**SECTIONS, "this.one": {}}}, 400, "[this.one]: unknown section; known are source, naming"),
        ({"plugin_config": {**SECTIONS, "transforms": [{"type": []}]}}, 400, "transforms[0].type: missing"),
        ({"path": "libiggy_random"}, 400, 'path: must be "s3_source"'),
        ({"streams": [{"stream": "x", "topic": "y", "schema": "json"}]}, 400, "streams: says other things"),
        ({"transforms": {"add_fields": {}}}, 400, "transforms: says other things"),
        ({"enabled": "yes"}, 422, "enabled: "),
        ({"nonsense": 1}, 422, "nonsense: unknown field"),
        ({"plugin_config": "x"}, 422, "plugin_config: "),
        ({"verbose": True}, 422, "verbose: "),
    ],
)
def test_a_wrong_configuration_is_refused_by_name_and_nothing_is_stored(orders, change, status, said):
    found, answer = orders.ask("POST", "/sources/orders/configs", {"plugin_config": SECTIONS, **change})
    assert (found, said in answer["reason"]) == (status, True), answer
    assert [one["version"] for one in orders.ask("GET", "/sources/orders/configs")[1]] == [0]
    assert sorted(path.name for path in orders.conf.parent.glob("state/*")) == ["worker.lock"]


def test_a_version_without_a_name_for_a_source_that_is_not_there(orders):
    sent = {"plugin_config": {**SECTIONS, "source": {}}}
    assert orders.ask("POST", "/sources/none/configs", sent)[0] == 404


def test_a_file_whose_transform_has_a_type_that_is_no_text_is_shown(rig):
    (rig.conf / "orders.toml").write_text(text() + '[[transforms]]\ntype = ["filter"]\n')
    rig.worker.supervisor.tick()
    for path in ("", "/configs", "/configs/active", "/transforms"):
        status, answer = rig.ask("GET", f"/sources/orders{path}")
        assert status == 200, answer
    assert rig.ask("GET", "/sources/orders")[1]["last_error"]["message"].count("transforms[0].type: missing") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            None,
            "common.inc: the configuration file cannot be read: No such file or directory (included by plugin_config)",
        ),
        ("a = \n", "common.inc: not valid TOML: Invalid value (at line 1, column 5)"),
        ("a = 1\n", "[a]: unknown section"),
        ("[iggy]\npartitions = 0\n", "[iggy] partitions = 0: must be 1 to 1,000 (from {folder}/common.inc)"),
    ],
)
def test_a_wrong_file_that_a_version_includes_is_named_and_no_draft_is(orders, tmp_path, content, said):
    common = tmp_path / "common.inc"
    if content is not None:
        common.write_text(content)
    sections = {"include": [str(common)], **SECTIONS}
    status, answer = orders.ask("POST", "/sources/orders/configs", {"plugin_config": sections})
    assert (status, said.format(folder=tmp_path) in answer["reason"]) == (400, True), answer
    status, found = orders.ask("PUT", "/connector-plugins/s3/config/validate", sections)
    errors = [text for check in found["configs"] for text in check["value"]["errors"]]
    assert (status, [text for text in errors if said.format(folder=tmp_path) in text]) == (200, errors)
    assert "draft" not in str((answer, errors))


def test_deeply_nested_bodies_and_those_of_other_bytes_are_refused(orders):
    for body in (b'{"plugin_config":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, b"[" * 100_000, b"\xff"):
        status, answer = orders.ask("POST", "/sources/orders/configs", body, content_type="application/json")
        assert status == 400
        assert answer["reason"] == "the body cannot be read: it must be JSON in UTF-8, and not nested deeply"
    for depth in (100, 400, 700, 900, 950):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        for name in (b"s3", b"deep"):
            content = b'%s,"%s":%s}' % (json.dumps(SECTIONS)[:-1].encode(), name, deep)
            status, _ = orders.ask(
                "POST", "/sources/orders/configs", b'{"plugin_config":%s}' % content, content_type="application/json"
            )
            assert status == 400
            path = "/connector-plugins/s3/config/validate"
            assert orders.ask("PUT", path, content, content_type="application/json")[0] in {200, 400}


@pytest.mark.parametrize("form", ["json", "yaml", "toml", "text", None])
def test_the_sections_in_each_format(orders, form):
    status, answer = orders.ask("GET", "/sources/orders/configs/plugin" + (f"?format={form}" if form else ""))
    assert status == 200
    assert b"iggy:iggy" not in (answer if isinstance(answer, bytes) else json.dumps(answer).encode())
    assert orders.ask("GET", "/sources/orders/configs/plugin?format=xml")[0] == 422


def test_validate_shows_no_login_that_a_mistake_holds(rig):
    content = {**SECTIONS, "s3": {"bucket": "lake", "endpoint": "http://user:drowssap@h:1"}}
    status, answer = rig.ask("PUT", "/connector-plugins/s3/config/validate", content)
    assert (status, answer["error_count"]) == (200, 1)
    assert "drowssap" not in json.dumps(answer)
    assert {one["value"]["name"]: one["value"]["value"] for one in answer["configs"]}["s3.bucket"] == "lake"


def test_validate_says_what_is_wrong_with_each_option(rig):
    content = {**SECTIONS, "s3": {"bucket": "", "buckett": 1}}
    status, answer = rig.ask("PUT", "/connector-plugins/s3/config/validate", content)
    assert (status, answer["error_count"]) == (200, 2)
    errors = {one["value"]["name"]: one["value"]["errors"] for one in answer["configs"] if one["value"]["errors"]}
    assert errors == {
        "s3.bucket": ["[s3] bucket: must not be empty"],
        "s3.buckett": ["[s3] buckett: unknown option; did you mean bucket?"],
    }
    shown = {one["value"]["name"]: one["value"]["value"] for one in answer["configs"]}
    assert shown["iggy.url"] == "iggy://***@h:1"
    assert rig.ask("PUT", "/connector-plugins/gcs_source/config/validate", {})[1]["error_count"] > 3
    assert rig.ask("PUT", "/connector-plugins/none/config/validate", {})[0] == 404


# ---- Kafka Connect's verbs


def state_of(rig, name="orders"):
    answer = rig.ask("GET", f"/connectors/{name}/status")[1]
    return answer["connector"]["state"]


def test_states_in_the_words_of_kafka_connect(two):
    status, answer = two.ask("GET", "/connectors/clicks/status")
    assert (status, answer["name"], answer["type"]) == (200, "clicks", "source")
    assert answer["tasks"][0]["trace"] == "no such bucket"
    assert (answer["connector"]["state"], answer["tasks"][0]["id"]) == ("FAILED", 0)
    for verb, code, state in (("pause", 202, "PAUSED"), ("stop", 204, "STOPPED"), ("resume", 202, "RUNNING")):
        assert two.ask("PUT", f"/connectors/orders/{verb}") == (code, b"")
        two.tick().tick()
        assert state_of(two) == state
    assert two.ask("GET", "/connectors/none/status") == (
        404,
        {"error_code": 404, "message": "Source not found with key: none"},
    )


def test_restart_of_a_failed_and_of_a_paused_source(two):
    assert two.ask("POST", "/connectors/clicks/restart") == (204, b"")
    two.tick()
    assert state_of(two, "clicks") == "RUNNING"
    two.ask("PUT", "/connectors/clicks/pause")
    assert two.ask("POST", "/sources/clicks/restart")[0] == 409


def test_offsets_are_shown_and_reset_by_the_programs_own_commands(orders):
    orders.rows = [b'{"bucket":"lake","key":"a","state":"done","records":3}']
    shown = {"partition": {"bucket": "lake", "key": "a"}, "offset": {"state": "done", "records": 3}}
    assert orders.ask("GET", "/connectors/orders/offsets") == (200, {"offsets": [shown]})
    assert orders.ask("DELETE", "/connectors/orders/offsets")[0] == 400
    orders.ask("PUT", "/connectors/orders/stop")
    orders.tick().tick()
    orders.rows = [b"forgotten, in epoch 4"]
    assert orders.ask("DELETE", "/connectors/orders/offsets") == (200, {"message": "forgotten, in epoch 4"})
    changes = [{"partition": {"key": "--yes"}, "offset": None}, {"partition": {"prefix": "in/"}, "offset": None}]
    assert orders.ask("PATCH", "/connectors/orders/offsets", {"offsets": changes})[0] == 200
    assert [arguments for _, arguments in orders.commands[1:]] == [
        ["offsets", "reset", "--all", "--yes"],
        ["offsets", "reset", "--key=--yes", "--yes"],
        ["offsets", "reset", "--prefix=in/", "--yes"],
    ]


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ([], 422, "offsets: "),
        ([{"partition": {"key": "a"}, "offset": {}}], 422, "offsets.0.offset: give either records or done"),
        ([{"partition": {"key": "a"}, "offset": {"records": 1, "done": True}}], 422, "give either records or done"),
        ([{"partition": {"key": "a"}, "offset": {"records": -1}}], 422, "offsets.0.offset.records: "),
        ([{"partition": {"key": "a"}, "offset": {"records": "1"}}], 422, "offsets.0.offset.records: "),
        ([{"partition": {"key": "a"}, "offset": {"records": True}}], 422, "offsets.0.offset.records: "),
        ([{"partition": {"key": "a"}, "offset": {"done": False}}], 422, "offsets.0.offset.done: "),
        ([{"partition": {"key": "a"}, "offset": {"position": 1}}], 422, "offsets.0.offset.position: unknown field"),
        ([{"partition": {"prefix": "a"}, "offset": {"records": 1}}], 400, "a prefix can only be reset"),
        ([{"partition": {"key": "a", "share": 2}, "offset": {"done": True}}], 400, "can only be reset"),
        ([{"partition": {"key": "a"}, "offset": None}, {"partition": {}, "offset": None}], 400, "either key or prefix"),
        ([{"partition": {"key": "a"}}], 422, "offsets.0.offset: missing"),
        ([{"partition": {}, "offset": None}], 400, "give either key or prefix"),
        ([{"partition": {"key": "a", "prefix": "a"}, "offset": None}], 400, "give either key or prefix"),
        ([{"partition": {"keys": "a"}, "offset": None}], 422, "offsets.0.partition.keys: unknown field"),
        (
            [{"partition": {"key": "a"}, "offset": None}, {"partition": {"bucket": "x", "key": "a"}, "offset": None}],
            400,
            'partition.bucket: "x" is not the bucket of this source, which is "lake"; leave it out',
        ),
    ],
)
def test_a_wrong_change_of_offsets_changes_nothing(orders, changes, status, said):
    orders.ask("PUT", "/connectors/orders/stop")
    orders.tick().tick()
    found, answer = orders.ask("PATCH", "/connectors/orders/offsets", {"offsets": changes})
    assert (found, answer["error_code"], orders.commands) == (status, status, [])
    assert said in answer["message"]


def test_a_key_that_is_no_unicode_hides_no_offsets(orders):
    """As `offsets export` writes it, of a source whose store has names of files."""
    orders.rows = [rb'{"bucket":"b","key":"in/\udc80","records":1}', b'{"bucket":"b","key":"in/a","records":2}']
    status, answer = orders.ask("GET", "/connectors/orders/offsets")
    assert (status, [row["partition"]["key"] for row in answer["offsets"]]) == (200, ["in/?", "in/a"])


def test_offsets_are_set_by_the_programs_own_command(orders):
    orders.ask("PUT", "/connectors/orders/stop")
    orders.tick().tick()
    orders.rows = [b"set, in epoch 4"]
    changes = [
        {"partition": {"bucket": "lake", "key": "--yes"}, "offset": {"records": 7}},
        {"partition": {"key": "a"}, "offset": {"done": True, "version": "e1"}},
    ]
    answer = orders.ask("PATCH", "/connectors/orders/offsets", {"offsets": changes})
    assert answer == (200, {"message": "set, in epoch 4; set, in epoch 4"})
    assert [arguments for _, arguments in orders.commands] == [
        ["offsets", "set", "--key=--yes", "--records=7", "--yes"],
        ["offsets", "set", "--key=a", "--done", "--version=e1", "--yes"],
    ]


def test_a_state_folder_that_is_gone_is_named_and_nothing_changes(orders, tmp_path):
    shutil.rmtree(tmp_path / "state")
    status, answer = orders.ask("PUT", "/connectors/orders/pause")
    path = tmp_path / "state" / "state.json"
    assert (status, answer["message"]) == (500, f"the state folder cannot be used: {path}: No such file or directory")
    status, answer = orders.ask("POST", "/sources/orders/configs", {"plugin_config": SECTIONS})
    assert (status, answer["reason"].startswith(f"the state folder cannot be used: {tmp_path}/state/")) == (500, True)
    assert orders.tick().ask("GET", "/connectors/orders/status")[1]["connector"]["state"] == "RUNNING"
    (tmp_path / "state").mkdir()
    assert orders.ask("PUT", "/connectors/orders/pause")[0] == 202


def test_a_position_that_cannot_be_set_is_a_conflict(orders):
    orders.ask("PUT", "/connectors/orders/stop")
    orders.tick().tick()
    orders.fails = CommandError(3, "lake/a: 7 is more than the 5 records")
    body = {"offsets": [{"partition": {"key": "a"}, "offset": {"records": 7}}]}
    status, answer = orders.ask("PATCH", "/connectors/orders/offsets", body)
    assert (status, answer["message"]) == (409, "lake/a: 7 is more than the 5 records")


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/source", 404, "there is no path /source: GET /openapi.json lists all"),
        ("POST", "/sources/orders/restart/", 404, "there is no path /sources/orders/restart/"),
        ("PUT", "/connectors/orders/pausee", 404, "there is no path /connectors/orders/pausee"),
        ("DELETE", "/sources", 405, "/sources has no method DELETE, only GET"),
        ("GET", "/connectors/orders/pause", 405, "/connectors/orders/pause has no method GET, only PUT"),
    ],
)
def test_a_path_or_method_that_is_not_there_is_a_sentence_and_no_redirect(orders, method, path, status, said):
    code, answer = orders.ask(method, path)
    assert (code, said in (answer.get("reason") or answer["message"])) == (status, True), answer


@pytest.mark.parametrize(("before", "done"), [(0, "nothing was changed"), (1, "those before it are done")])
def test_of_several_changes_the_answer_names_the_first_that_failed(orders, monkeypatch, before, done):
    orders.ask("PUT", "/connectors/orders/stop")
    orders.tick().tick()
    errors = iter([*[None] * before, CommandError(1, "Iggy is away")])

    def command(_configuration, _arguments):
        if (error := next(errors)) is not None:
            raise error
        return [b"forgotten"]

    monkeypatch.setattr(orders.worker, "_command", command)
    body = {"offsets": [{"partition": {"key": key}, "offset": None} for key in "abc"]}
    status, answer = orders.ask("PATCH", "/connectors/orders/offsets", body)
    assert (status, answer["message"]) == (503, f"change {before + 1} of 3, {done}: Iggy is away")


def test_only_a_stopped_source_lets_its_offsets_be_changed_and_the_answer_names_its_state(orders):
    orders.ask("PUT", "/connectors/orders/pause")
    orders.tick().tick()
    for state in ("paused", "running"):
        status, answer = orders.ask("DELETE", "/connectors/orders/offsets")
        assert (status, orders.commands) == (400, [])
        assert answer["message"] == (f"orders is {state}: its offsets can be changed after PUT /connectors/orders/stop")
        orders.ask("PUT", "/connectors/orders/resume")
        orders.tick().tick()
    orders.ask("PUT", "/connectors/orders/stop")
    _, answer = orders.ask("DELETE", "/connectors/orders/offsets")
    assert answer["message"].endswith(": its offsets can be changed when it has ended")


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b'{"version": 1', "application/json", "the body is not JSON (at character "),
        (b'{"version": 1}', "application/x-www-form-urlencoded", "the header content-type must be application/json"),
        (b'{"version": 1}', "text/plain", "the header content-type must be application/json"),
        (b"[]", "application/json", "the body must be a JSON object"),
        (b"", "application/json", "the body is missing: a JSON object"),
    ],
)
def test_a_body_that_is_no_json_object_is_named(orders, body, kind, said):
    """As `curl -d` sends it, without the header."""
    status, answer = orders.ask("PUT", "/sources/orders/configs/active", body, content_type=kind)
    assert (status, said in answer["reason"]) == (422, True), answer


def test_a_file_that_repeats_a_source_does_not_keep_it_from_new_configurations(rig):
    rig.write("orders")
    rig.conf.joinpath("second.toml").write_text(text("orders"))
    rig.tick()
    assert rig.ask("GET", "/connectors")[1] == ["orders", "second.toml"]
    assert rig.ask("POST", "/sources/orders/configs", {"plugin_config": SECTIONS})[0] == 200


def test_a_configuration_does_not_take_the_name_of_another_source(rig):
    rig.write("orders").conf.joinpath("broken.toml").write_text("[source")
    rig.tick()
    status, answer = rig.ask("POST", "/sources/broken.toml/configs", {"plugin_config": SECTIONS})
    assert (status, 'name = "orders": is that of the source orders' in answer["reason"]) == (400, True), answer


@pytest.mark.parametrize(("code", "status"), [(1, 503), (2, 400), (3, 409), (-9, 503)])
def test_a_failed_command_is_an_error_with_its_sentence(orders, code, status):
    orders.fails = CommandError(code, "Iggy is away")
    found, answer = orders.ask("GET", "/connectors/orders/offsets")
    assert (found, answer["message"]) == (status, "Iggy is away")


@pytest.mark.parametrize("path", ["/sources/orders/configs", "/connector-plugins/s3/config/validate"])
@pytest.mark.parametrize("option", ["topic", "\ud800"])
def test_text_that_is_no_unicode_is_named(orders, path, option):
    """JSON can say half of a pair of surrogates; neither TOML nor an answer can."""
    sections = {**SECTIONS, "iggy": {**SECTIONS["iggy"], option: "a\udc00b"}}
    body = {"plugin_config": sections} if path.endswith("configs") else sections
    method = "POST" if path.endswith("configs") else "PUT"
    status, answer = orders.ask(method, path, body)
    place = option.replace("\ud800", "?")
    assert (status, f"iggy.{place}: is no Unicode text" in str(answer)) == (400, True), answer


def test_a_key_with_a_null_byte_or_too_long_is_refused(orders):
    orders.ask("PUT", "/connectors/orders/stop")
    orders.tick().tick()
    for partition in ({"key": "a\0b"}, {"prefix": "\0"}, {"key": "x" * 200_000}):
        body = {"offsets": [{"partition": partition, "offset": None}]}
        assert orders.ask("PATCH", "/connectors/orders/offsets", body)[0] == 422
    assert orders.commands == []


def test_a_variable_that_is_no_unicode_is_named_and_answered(rig, monkeypatch):
    monkeypatch.setenv("IGGY_SOURCE__S3__PREFIX", os.fsdecode(b"caf\xe9/"))
    rig.write("orders").tick()
    (source,) = rig.ask("GET", "/sources")[1]
    assert source["status"] == "error"
    assert "IGGY_SOURCE__S3__PREFIX: the value of this environment variable is not UTF-8" in str(source["last_error"])
    for path in ("/stats", "/metrics", "/connectors", "/connectors/orders/status", "/sources/orders/configs/active"):
        assert rig.ask("GET", path)[0] == 200, path


def test_names_of_files_may_be_no_unicode(rig):
    """One such file does not keep the others out of the answers."""
    rig.write("orders")
    for name, content in ((b"caf\xe9.toml", "[sour"), (b"clicks\xe9.toml", text("clicks")), (b"x\xe9.toml", text())):
        (rig.conf / os.fsdecode(name)).write_text(content)
    rig.tick()
    found = {source["key"]: source for source in rig.ask("GET", "/sources")[1]}
    assert set(found) == {"orders", "clicks", "caf?.toml", "x?.toml"}
    assert found["clicks"]["file"].endswith("clicks?.toml")
    assert found["clicks"]["status"] == "running"
    for path in ("/stats", "/metrics", "/connectors", "/connectors/orders/status", "/sources/orders/configs/active"):
        assert rig.ask("GET", path)[0] == 200, path


def test_a_copy_of_a_source_has_no_metrics_in_its_name(rig):
    rig.write("orders")
    rig.conf.joinpath("a-copy.toml").write_text(text("orders"))
    rig.tick()
    samples = [
        (sample.name, *sorted(sample.labels.items()))
        for family in text_string_to_metric_families(rig.ask("GET", "/metrics")[1].decode())
        for sample in family.samples
    ]
    assert len(samples) == len(set(samples)) > 20


def test_a_version_of_a_file_without_a_key(rig):
    """Its key is the name of the file, which a configuration could not say."""
    rig.conf.joinpath("my orders.toml").write_text("[sour")
    rig.tick()
    status, answer = rig.ask("POST", "/sources/my%20orders.toml/configs", {"plugin_config": SECTIONS})
    assert (status, answer["key"], answer["version"]) == (200, "my orders.toml", 1), answer
    assert rig.ask("PUT", "/sources/my%20orders.toml/configs/active", {"version": 1})[0] == 204
    rig.tick()
    assert rig.ask("GET", "/sources/my%20orders.toml")[1]["status"] == "running"


def test_a_version_of_a_copy_does_not_take_the_name_of_its_source(rig):
    rig.write("orders").conf.joinpath("second.toml").write_text(text("orders"))
    rig.tick()
    status, answer = rig.ask("POST", "/sources/second.toml/configs", {"plugin_config": SECTIONS})
    assert (status, 'name = "orders": is that of the source orders' in answer["reason"]) == (400, True), answer


def test_health_is_told_while_all_threads_wait_for_commands(orders, monkeypatch):
    """A probe that is not answered would have the worker killed."""
    entered, leave = threading.Semaphore(0), threading.Event()

    def command(*_arguments, **_options):
        entered.release()
        assert leave.wait(60)
        return []

    monkeypatch.setattr(orders.worker, "_command", command)
    with ThreadPoolExecutor(45) as pool:
        asked = [pool.submit(orders.ask, "GET", "/connectors/orders/offsets") for _ in range(45)]
        for _ in range(40):
            assert entered.acquire(timeout=30)
        try:
            assert orders.ask("GET", "/health") == (200, {"status": "healthy"})
        finally:
            leave.set()
        assert [answer.result()[0] for answer in asked] == [200] * 45


# ---- who may ask


@pytest.fixture
def keyless(tmp_path):
    made = ApiRig(tmp_path, api_key=None).write("orders").tick()
    yield made
    made.close()


def test_without_a_key_only_programs_of_this_machine_may_ask(keyless):
    for host in (
        "evil.example",
        "evil.example:80",
        "10.0.0.1",
        "localhost.evil.example",
        "127.evil.example",
        "127.0.0.1.evil.example:1",
        "",
    ):
        assert keyless.ask("GET", "/sources", host=host)[0] == 403
    for host in ("localhost", "LocalHost:8081", "127.0.0.1:1", "[::1]:8081", "[::1]", "127.0.0.2"):
        assert keyless.ask("GET", "/sources", host=host)[0] == 200
    assert keyless.ask("GET", "/sources", origin="http://localhost")[0] == 403


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("x", 403), ("same-origin", 200), ("none", 200)]
)
def test_without_a_key_an_image_or_link_of_a_web_page_is_not_answered(keyless, site, status):
    """A browser sends no origin with it; commands on offsets, of which four run at once, would be kept from others."""
    for path in ("/sources", "/connectors/orders/offsets", "/health"):
        assert keyless.ask("GET", path, sec_fetch_site=site)[0] == status
    assert len(keyless.commands) == (status == 200)


def test_without_a_key_only_requests_that_read_are_answered(keyless):
    """Any user of the machine may send them, and a configuration runs code as the worker's user."""
    paths = keyless.ask("GET", "/openapi.json")[1]["paths"]
    refused = 0
    for path, methods in paths.items():
        for method in {*methods, "post", "put", "patch", "delete"} - {"get"}:
            place = path.replace("{key}", "orders").replace("{name}", "orders").replace("{kind}", "s3")
            status, answer = keyless.ask(method.upper(), place, {"plugin_config": SECTIONS})
            assert (status, answer.get("reason") or answer.get("message")) == (
                403,
                f"{method.upper()} needs a key: set [http] api_key, and send it in the header api-key",
            )
            refused += 1
    assert refused > 40
    assert keyless.ask("HEAD", "/sources")[0] == 405
    assert len(keyless.worker.supervisor.versions("orders")) == 1
    keyless.tick().tick()
    assert state_of(keyless) == "RUNNING"


def test_with_a_key_a_web_page_may_ask(rig):
    assert rig.ask("GET", "/sources", sec_fetch_site="cross-site", origin="http://x") == (200, [])


def test_with_a_key_every_path_but_two_needs_it(rig):
    paths = rig.ask("GET", "/openapi.json")[1]["paths"]
    rig.key = None
    assert len(paths) > 20
    for path, methods in paths.items():
        for method in methods:
            for headers in ({}, {"api_key": "drowssa"}, {"api_key": "drowssapp"}, {"authorization": "drowssap"}):
                status, _ = rig.ask(method.upper(), path, **headers)
                assert status == (200 if path in {"/", "/health"} else 401), path
    assert rig.ask("GET", "/sources", api_key=KEY, host="proxy.example", origin="http://x")[0] == 200
    assert rig.ask("GET", "/openapi.json")[0] == 401


@pytest.mark.parametrize("path", ["/", "/health", "/sources"])
def test_without_the_key_no_body_is_waited_for(rig, path):
    """Clients that never send theirs would hold all places for half a minute, and `/health` would not be answered."""
    with contextlib.ExitStack() as lines:
        for _ in range(server.MAX_CLIENTS + 1):
            line = lines.enter_context(socket.create_connection(("127.0.0.1", rig.server.port), timeout=10))
            line.sendall(b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\nx" % path.encode())
        assert rig.ask("GET", "/health") == (200, {"status": "healthy"})
        assert rig.ask("GET", "/sources") == (200, [])
        assert line.recv(12) == (b"HTTP/1.1 401" if path == "/sources" else b"HTTP/1.1 405")


def test_where_there_is_no_key_no_body_is_waited_for(keyless):
    with socket.create_connection(("127.0.0.1", keyless.server.port), timeout=10) as line:
        line.sendall(b"GET /sources HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\nx")
        assert line.recv(12) == b"HTTP/1.1 200"


def test_the_limit_of_a_body(orders):
    padding = MAX_BODY_BYTES - len(json.dumps({"version": 0}))
    body = json.dumps({"version": 0}).encode() + b" " * padding
    assert orders.ask("PUT", "/sources/orders/configs/active", body, content_type="application/json")[0] == 204
    assert orders.ask("PUT", "/sources/orders/configs/active", body + b" ")[0] == 413
    chunks = iter([b"x" * 65536] * 40)
    connection = http.client.HTTPConnection("127.0.0.1", orders.server.port, timeout=30)
    connection.request("POST", "/sources/orders/configs", chunks, {"content-type": "application/json", "api-key": KEY})
    assert connection.getresponse().status == 413
    connection.close()


def test_an_address_in_use_is_tried_again(rig):
    section = WorkerHttpSection(address=f"127.0.0.1:{rig.server.port}")
    with pytest.raises(ConfigError, match="cannot listen at") as caught:
        ApiServer(make_api(rig.worker, section), section)
    assert caught.value.exit_code == 1


def test_nonsense_on_the_line_does_not_end_the_server(rig):
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 5000,
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", rig.server.port), timeout=10) as line:
            line.sendall(data)
    assert rig.ask("GET", "/health") == (200, {"status": "healthy"})


@pytest.mark.parametrize("requests", [0, 1, 2])
def test_a_client_that_sends_half_a_request_does_not_hold_its_place(rig, monkeypatch, requests):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    healthy = b'{"status":"healthy"}'
    with socket.create_connection(("127.0.0.1", rig.server.port), timeout=30) as line, line.makefile("rb") as answers:
        for _ in range(requests):
            line.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(len(healthy)) == healthy
        line.sendall(b"GET /heal")
        assert answers.read() == b""


def test_the_oldest_of_too_many_clients_is_dropped_and_the_newest_is_answered(rig):
    with contextlib.ExitStack() as lines:
        silent = []
        for _ in range(3 * server.MAX_CLIENTS):
            line = lines.enter_context(socket.create_connection(("127.0.0.1", rig.server.port), timeout=10))
            line.sendall(b"GET /heal")
            silent.append(line)
        assert rig.ask("GET", "/health") == (200, {"status": "healthy"})
        for line in silent[: -server.MAX_CLIENTS]:
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(1) == b""


def test_a_request_that_came_with_the_one_before_it_may_take_its_time(monkeypatch):
    """Its answer may wait for Iggy; only what is not there yet counts as silence."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)

    async def app(scope, _receive, send):
        if scope["path"] == "/slow":
            await anyio.sleep(2 * server.REQUEST_SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    requests = [b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path for path in (b"/fast", b"/slow")]
    with (
        ApiServer(app, WorkerHttpSection(address="127.0.0.1:0")) as api,
        socket.create_connection(("127.0.0.1", api.port), timeout=30) as line,
        line.makefile("rb") as answers,
    ):
        line.sendall(b"".join(requests))
        for path in (b"/fast", b"/slow"):
            while answers.readline() not in {b"\r\n", b""}:
                pass
            assert answers.read(len(path)) == path


# ---- beside its own description


CONFORMANCE = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_every_answer_is_as_the_openapi_description_says(orders, mode):
    """Requests made from the description, right and wrong ones; every answer must be one that it names."""
    schema = schemathesis.openapi.from_url(f"{orders.url}/openapi.json", headers={"api-key": KEY}, timeout=60)
    statuses = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is schemathesis.GenerationMode.NEGATIVE and not can_be_wrong(operation):
            continue
        known = {
            parameter.name: "orders" for parameter in operation.iter_parameters() if parameter.name in {"key", "name"}
        }
        known |= {parameter.name: "s3" for parameter in operation.iter_parameters() if parameter.name == "kind"}
        for path_parameters in [None, known] if known and "{version}" not in operation.path else [None]:
            statuses |= answers_of(operation, mode, path_parameters)
        orders.tick()
    assert statuses >= ({200, 202, 204, 404} if mode is schemathesis.GenerationMode.POSITIVE else {400, 422})


def can_be_wrong(operation):
    """Any text is a right name: a thousand tries would find no wrong one."""
    kinds = [parameter.definition["schema"].get("type") for parameter in operation.iter_parameters()]
    return bool(list(operation.body)) or set(kinds) > {"string"}


def answers_of(operation, mode, path_parameters):
    """Asks one path some times; returns the statuses that came."""
    statuses = set()
    cases = operation.as_strategy(
        generation_mode=mode, **({"path_parameters": path_parameters} if path_parameters else {})
    )

    @seed(20261122)
    @settings(
        max_examples=5 if THOROUGH else 3,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(cases)
    def ask(case):
        statuses.add(case.call_and_validate(headers={"api-key": KEY}, checks=CONFORMANCE, timeout=60).status_code)

    ask()
    assert statuses
    return statuses


@pytest.mark.parametrize("option", ["cert_file", "key_file"])
def test_a_certificate_that_cannot_be_read_is_named(rig, tmp_path, option):
    (tmp_path / "there.pem").write_text("x")
    files = {"cert_file": tmp_path / "there.pem", "key_file": tmp_path / "there.pem"} | {option: tmp_path / "none.pem"}
    tls = HttpTlsSection(enabled=True, **{name: str(path) for name, path in files.items()})
    section = WorkerHttpSection(address="127.0.0.1:0", tls=tls)
    with pytest.raises(ConfigError, match=rf"\[http.tls\] {option}: .*none.pem cannot be read: No such file"):
        ApiServer(make_api(rig.worker, section), section)
