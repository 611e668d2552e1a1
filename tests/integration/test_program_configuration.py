"""Mistakes of a configuration: exit code 2, all of them at once, each with its place; no secret is ever shown."""

import json

import attrs
import pytest

from tests.integration.program_rig import Program


@attrs.frozen
class NoServer:
    access_key: str = "test-access"
    secret_key: str = "test-secret"


@attrs.frozen
class NoBucket:
    """A configuration with mistakes must touch neither S3 nor Iggy: both addresses lead nowhere."""

    name: str = "lake"
    endpoint: str = "http://127.0.0.1:1"
    server: NoServer = NoServer()

    def section(self):
        keys = {"access_key_id": self.server.access_key, "secret_access_key": self.server.secret_key}
        return {"s3": {"bucket": self.name, "endpoint": self.endpoint, "region": "us-east-1", **keys}}


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, NoBucket(), "iggy://iggy:iggy@127.0.0.1:1", "lake")


def refused(program, *arguments):
    ended = program.run(*arguments).no_secrets()
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert str(program.path) in ended.err
    return ended.err


@pytest.mark.parametrize("command", [(), ("--once",), ("check",), ("read",)])
def test_every_command_refuses_a_configuration_with_mistakes(program, command):
    program.configure(iggy={"topik": "x"})
    assert "[iggy] topik: unknown option; did you mean topic?" in refused(program, *command)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"s3": {"buckets": "x"}}, "[s3] buckets: unknown option; did you mean bucket?"),
        ({"s3": {"bucket": None}}, "[s3] bucket: missing"),
        ({"s3": {"bucket": ""}}, "[s3] bucket: must not be empty"),
        ({"runer": {"tasks_max": 2}}, "[runer]: unknown section; did you mean [runner]?"),
        ({"iggy": {"partitions": "4"}}, "[iggy] partitions"),
        ({"iggy": {"partitions": 0}}, "[iggy] partitions"),
        ({"iggy": {"partitions": True}}, "[iggy] partitions"),
        ({"source": {"name": 7}}, "[source] name"),
        ({"source": {"name": None}}, "[source] name: missing"),
        ({"discovery": {"poll_interval": "soon"}}, "[discovery] poll_interval"),
        ({"naming": {"template": "{{topic}}{{key}}"}}, "[naming] template"),
        ({"naming": {"template": "{{tpic}}/x"}}, "[naming] template"),
        ({"naming": {"distribution": "partition"}}, "needs {{partition}} in the template"),
        ({"input": {"format": "jsonll"}}, 'format = "jsonll": unknown format; did you mean "jsonl"?'),
        ({"input": {"format": None}}, "[input] format: missing"),
        ({"iggy": {"topic": None}}, "[iggy] topic: missing"),
        ({"errors": {"tolerance": "some"}}, "[errors] tolerance"),
        ({"runner": {"tasks_max": 4}}, "[runner] tasks_max = 4: must not be more than [iggy] partitions (3)"),
        ({"iggy": {"url": "http://iggy:drowssap@h:1"}}, "[iggy] url"),
    ],
    ids=str,
)
def test_one_mistake_is_named_with_its_place(program, changes, sentence):
    program.configure(**changes)
    assert sentence in refused(program)


def test_three_mistakes_are_reported_at_once(program):
    program.configure(s3={"bucket": None, "regoin": "eu"}, iggy={"partitions": "many"}, naming={"template": "{{x}}"})
    said = refused(program)
    assert "4 mistakes:" in said
    for part in ("[s3] bucket: missing", "[s3] regoin: unknown option; did you mean region?"):
        assert part in said
    assert "[iggy] partitions" in said
    assert "[naming] template" in said


def test_a_missing_file_is_named(program):
    program.path.unlink()
    assert "cannot be read: No such file or directory" in refused(program)


def test_a_folder_in_place_of_the_file_is_named(program):
    program.path.unlink()
    program.path.mkdir()
    assert "cannot be read: Is a directory" in refused(program)


def test_toml_that_cannot_be_parsed_is_named_with_its_line(program):
    program.path.write_text('[source]\nname = "orders\n')
    assert "not valid TOML" in refused(program)
    assert "line 2" in refused(program)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[source]\nname = orders\n", 'a text stands in quotes: name = "..."'),
        ("source:\n  name: orders\n", "this looks like YAML"),
        ("aws.s3.bucket.name=lake\ntopics=x\n", "this looks like a .properties file"),
        ("[s3]\nsecret_access_key = hunter22\n", 'secret_access_key = "..."'),
        ("[source\n", "not valid TOML"),
    ],
)
def test_toml_that_cannot_be_parsed_is_told_what_it_should_be(program, text, sentence):
    program.path.write_text(text)
    said = refused(program)
    assert sentence in said
    assert "hunter22" not in said


def test_a_section_of_the_other_source_names_its_program(program):
    program.configure(gcs={"bucket": "lake"})
    assert "[gcs]: unknown section; it belongs to another program: python -m gcs_source" in refused(program)


def test_a_file_that_is_no_text_is_named(program):
    program.path.write_bytes(b"\xff\xfe[\0s\0")
    assert "not UTF-8 text" in refused(program)


def test_a_missing_variable_is_named(program, monkeypatch):
    monkeypatch.delenv("ORDERS_KEY", raising=False)
    program.configure(s3={"secret_access_key": "${env:ORDERS_KEY}"})
    assert "ORDERS_KEY" in refused(program)


def test_secrets_of_variables_and_files_are_in_no_message(program, monkeypatch, tmp_path):
    monkeypatch.setenv("ORDERS_URL", "iggy://iggy:drowssap@h:port-that-is-none")
    secret = tmp_path / "secret"
    secret.write_text("drowssap-of-s3\n")
    program.configure(
        s3={"secret_access_key": f"${{file:{secret}}}", "access_key_id": None, "page_size": 10**9},
        iggy={"url": "${env:ORDERS_URL}"},
    )
    said = refused(program)
    assert "[iggy] url" in said
    assert "[s3] page_size" in said
    assert "[s3] access_key_id: missing" in said


def test_without_a_configuration_it_says_what_to_add(program):
    ended = program.run("--once", config=False)
    assert ended.code == 2
    assert ended.err.startswith("error: no configuration: add --config FILE")
    assert "the command config init writes one" in ended.err


@pytest.mark.parametrize("arguments", [("--onec",), ("chek",), ("read", "--limit", "x"), ("--config",)])
def test_a_wrong_command_line_is_refused_with_usage(program, arguments):
    ended = program.run(*arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert "error" in ended.err.lower()


def test_the_real_process_gives_the_code_and_one_sentence(program):
    program.configure(iggy={"topik": "x"})
    ended = program.start("--once").wait().no_secrets()
    assert ended.code == 2
    assert ended.err == f"error: {program.path}: [iggy] topik: unknown option; did you mean topic?\n"
    assert ended.out == ""


def test_secrets_are_in_no_log_line_of_any_format(program):
    for form in ("plain", "json"):
        program.configure(log={"format": form, "level": "debug"}, iggy={"connect_timeout": 0.2})
        ended = program.run("--once").no_secrets()
        assert ended.code == 1
        if form == "json":
            assert all(json.loads(line)["message"] for line in ended.err.strip().splitlines())
