"""`config init`, `config show`, `config schema`, `convert`, and `--set` before and behind a command."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest

from framework.cli.app import run
from framework.config.loading import load_config, structure
from framework.config.option import options_of, sections_of
from gcs_source.task import GcsSourceConfig, GcsSourceTask
from s3_source.kafka_connect import OPTIONS as S3_OPTIONS
from s3_source.task import S3SourceConfig, S3SourceTask

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROGRAMS = {"s3_source": (S3SourceTask, S3SourceConfig), "gcs_source": (GcsSourceTask, GcsSourceConfig)}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("IGGY_PASSWORD", "hunter22")


@pytest.fixture
def told(capsys):
    def tell(*arguments, program="s3_source"):
        code = run(program, PROGRAMS[program][0], [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "hunter22" not in out + err
        assert "Traceback" not in err
        return code, out, err

    return tell


# ---- init


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_starting_file_is_a_configuration_with_every_option(told, tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    path = Path("new.toml")
    code, out, err = told("config", "init", path, program=program)
    assert (code, err) == (0, "")
    assert f"python -m {program} check --config {path}" in out
    root = PROGRAMS[program][1]
    assert load_config(path, root).source.name == "orders"
    text = path.read_text()
    for section, cls in sections_of(root).items():
        part = re.split(rf"^\[{re.escape(section)}\]$", text, flags=re.MULTILINE)[1].split("\n[")[0]
        for option in options_of(cls):
            assert re.search(rf"^(# )?{option.name} = ", part, re.MULTILINE), (section, option.name)
    assert max(map(len, text.split("\n"))) <= 105
    assert "add at the end a line [[transforms]], a type and its options" in text
    path.write_text(f'{text}\n[[transforms]]\ntype = "delete_fields"\nfields = ["card"]\n')
    assert [transform.type for transform in load_config(path, root).transforms] == ["delete_fields"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_default_in_the_starting_file_is_the_default(told, tmp_path, program):
    path = tmp_path / "new.toml"
    told("config", "init", path, program=program)
    root = PROGRAMS[program][1]
    before = load_config(path, root)
    lines = [re.sub(r"^# (?=[a-z_]+ = (?!\())", "", line) for line in path.read_text().split("\n")]
    path.write_text("\n".join(lines))
    assert load_config(path, root) == before
    assert len(tomllib.loads(path.read_text())["discovery"]) > 10
    assert re.search(r'^allowed_lateness = "24h"$', path.read_text(), re.MULTILINE)  # as the guides write it


def test_init_overwrites_nothing(told, tmp_path):
    path = tmp_path / "there.toml"
    path.write_text("mine")
    code, _, err = told("config", "init", path)
    assert (code, path.read_text()) == (2, "mine")
    assert err == f"error: {path}: exists already, and config init overwrites nothing\n"
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "nothing")
    assert told("config", "init", link)[0] == 2
    assert not (tmp_path / "nothing").exists()


def test_init_shows_a_command_that_can_be_copied(told, tmp_path):
    path = tmp_path / "my file.toml"
    code, out, _ = told("config", "init", path)
    assert (code, path.exists()) == (0, True)
    assert shlex.split(out)[-2:] == ["--config", str(path)]


@pytest.mark.parametrize("place", ["no/such/folder/x.toml", "."])
def test_init_where_nothing_can_be_written(told, tmp_path, place):
    code, out, err = told("config", "init", tmp_path / place)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_init_under_a_name_that_is_not_utf_8_leaves_nothing_in_the_way(told, tmp_path):
    path = tmp_path / os.fsdecode(b"x\xff.toml")
    code, _, err = told("config", "init", path)
    assert code == 2
    assert "x\\udcff.toml': its name is not valid UTF-8, and the file itself shows it: choose another" in err
    assert not path.exists()


def test_init_on_a_full_disk_leaves_nothing_in_the_way(told, tmp_path):
    path = tmp_path / "x.toml"
    assert (
        told("config", "init", tmp_path / "other.toml")[0] == 0
    )  # else Python would cut off the bytecode that it stores
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        code, _, err = told("config", "init", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, err) == (2, f"error: {path}: cannot be written: File too large\n")
    assert not path.exists()
    assert told("config", "init", path)[0] == 0


# ---- show

FILE = """
include = ["common.toml"]
[source]
name = "orders"
[s3]
bucket = "${env:BUCKET}"
access_key_id = "hunter22-id"
secret_access_key = "${env:IGGY_PASSWORD}"
proxy = "http://u:hunter22@proxy:1"
prefixes = ["a/", "b/"]
[input]
format = "jsonl"
[spark.conf]
spark.ssl.keyPassword = "hunter22"
[iggy]
url = "iggy://ann:hunter22@h:1"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("BUCKET", "lake")
    (tmp_path / "common.toml").write_text('[iggy]\nstream = "lake"\ntopic = "x"\nrequest_timeout = "20s"\n')
    path = tmp_path / "main.toml"
    path.write_text(FILE)
    return path


def test_show_has_the_merged_values_masked_with_their_origins(told, file, monkeypatch):
    monkeypatch.setenv("IGGY_SOURCE__DISCOVERY__ALLOWED_LATENESS", "forever")
    code, out, err = told(
        "config", "show", "--config", file, "--no-defaults", "--set", "iggy.topic=y", "--set", "iggy.partitions=8"
    )
    assert (code, err) == (0, "")
    lines = [re.sub(r" +#", " #", line.replace(f"{file.parent}/", "")) for line in out.split("\n") if line]
    assert lines == [
        "[source]",
        'name = "orders" # main.toml',
        "[s3]",
        'prefixes = ["a/", "b/"] # main.toml',
        'proxy = "***" # main.toml',
        'bucket = "${env:BUCKET}" # main.toml',
        'access_key_id = "***" # main.toml',
        'secret_access_key = "${env:IGGY_PASSWORD}" # main.toml',
        "[input]",
        'format = "jsonl" # main.toml',
        "[iggy]",
        'url = "iggy://ann:***@h:1" # main.toml',
        'stream = "lake" # common.toml',
        'topic = "y" # --set iggy.topic',
        "partitions = 8 # --set iggy.partitions",
        'request_timeout = "20s" # common.toml',
        "[discovery]",
        'allowed_lateness = "forever" # IGGY_SOURCE__DISCOVERY__ALLOWED_LATENESS',
        "[spark]",
        'conf = { "spark.ssl.keyPassword" = "***" } # main.toml',
    ]


def test_show_with_defaults_is_toml_with_every_option(told, file):
    out = told("config", "show", "--config", file)[1]
    assert "hunter22" not in out
    content = tomllib.loads(out)
    assert content["input"]["prefetch_bytes"] == "8MiB"
    assert content["iggy"]["tls"] == {}
    for section, cls in sections_of(S3SourceConfig).items():
        for option in options_of(cls):
            assert re.search(rf"^(# )?{option.name} =", out, re.MULTILINE), (section, option.name)


def test_show_has_the_list_of_transforms(told, file):
    text = '\n[[transforms]]\ntype = "filter"\nfield = "n"\nvalue_pattern = { between = [1, 5] }\n'
    file.write_text(file.read_text() + text + text.replace("between = [1, 5]", 'equals = "x"'))
    out = told("config", "show", "--config", file)[1]
    wanted = [
        {"type": "filter", "field": "n", "value_pattern": {"between": [1, 5]}},
        {"type": "filter", "field": "n", "value_pattern": {"equals": "x"}},
    ]
    assert tomllib.loads(out)["transforms"] == wanted
    assert json.loads(told("config", "show", "--config", file, "--json")[1])["transforms"] == wanted


def test_show_has_an_address_that_stands_in_place_of_the_url(told, tmp_path):
    path = tmp_path / "address.toml"
    path.write_text(
        '[source]\nname = "orders"\n[s3]\nbucket = "lake"\n[input]\nformat = "jsonl"\n[iggy]\naddress = "localhost:8090"\n'
        'username = "iggy"\npassword = "iggy"\nstream = "lake"\ntopic = "orders"\npartitions = 1\n'
    )
    code, out, err = told("config", "show", "--no-defaults", "--config", path)
    assert (code, err) == (0, "")
    shown = tomllib.loads(out)["iggy"]
    assert shown["address"] == "localhost:8090"
    assert "url" not in shown


def test_show_as_json(told, file):
    shown = json.loads(told("config", "show", "--config", file, "--json", "--set", "spark.conf.a=b")[1])
    assert shown["s3"]["access_key_id"] == {"value": "***", "origins": [str(file)]}
    assert shown["s3"]["page_size"] == {"value": 1000, "origins": ["default"]}
    assert shown["spark"]["conf"]["value"] == {"spark.ssl.keyPassword": "***", "a": "***"}
    assert shown["spark"]["conf"]["origins"] == [str(file), "--set spark.conf.a"]


def test_a_secret_of_a_variable_or_a_setting_is_masked(told, file, monkeypatch):
    monkeypatch.setenv("IGGY_SOURCE__S3__SESSION_TOKEN", "hunter22-${env:X}")
    out = told("config", "show", "-c", file, "--no-defaults", "--set", "s3.access_key_id=hunter22")[1]
    assert 'session_token = "***"' in out
    assert 'access_key_id = "***"' in out


def test_what_looks_like_a_reference_in_a_variable_is_shown_as_a_file_would_have_it(told, file, monkeypatch):
    monkeypatch.setenv("IGGY_SOURCE__S3__SESSION_TOKEN", "${env:HOME}")  # a token of that text: masked as any other
    monkeypatch.setenv("IGGY_SOURCE__S3__START_AFTER", "a${b")
    out = told("config", "show", "-c", file, "--no-defaults")[1]
    assert 'session_token = "***"' in out
    assert 'start_after = "a$${b"' in out


def test_show_of_a_wrong_configuration_is_its_mistakes(told, file):
    code, out, err = told("config", "show", "-c", file, "--set", "iggy.partitions=0", "--set", "s3.x=hunter22")
    assert (code, out) == (2, "")
    assert "[iggy] partitions = 0: must be 1 to 1,000 (from --set iggy.partitions)" in err
    assert "--set s3.x: unknown option" in err


def test_settings_before_and_behind_the_command_count_and_the_last_wins(told, file):
    def topic(*arguments):
        return json.loads(told(*arguments)[1])["iggy"]["topic"]["value"]

    show = ("config", "show", "--json")
    assert topic("-c", file, "--set", "iggy.topic=a", *show) == "a"
    assert topic("--set", "iggy.topic=a", "--config", file, *show, "--set", "iggy.topic=b") == "b"
    assert topic(*show, "-c", file, "--set", "iggy.topic=b", "--set", "iggy.topic=c") == "c"


@pytest.mark.parametrize("command", [(), ("check",), ("plan",), ("status",), ("read",), ("offsets", "show")])
def test_every_command_takes_overrides(told, file, monkeypatch, command):
    monkeypatch.setenv("IGGY_SOURCE__IGGY__BATCH_LENGTH", "0")
    code, out, err = told(*command, "--config", file, "--set", "iggy.partitions=many")
    assert (code, out) == (2, "")
    assert '[iggy] partitions = "many": must be a whole number (from --set iggy.partitions)' in err
    assert "[iggy] batch_length = 0: must be 1 to 100,000 (from IGGY_SOURCE__IGGY__BATCH_LENGTH)" in err


@pytest.mark.parametrize("way", ["set", "environment", "include"])
def test_a_json_log_that_an_override_asks_for_has_json_errors(told, file, monkeypatch, way):
    arguments = ["--config", file, "--set", "iggy.partitions=0"]
    if way == "set":
        arguments += ["--set", "log.format=json"]
    elif way == "environment":
        monkeypatch.setenv("IGGY_SOURCE__LOG__FORMAT", "json")
    else:
        common = file.parent / "common.toml"
        common.write_text(f'{common.read_text()}[log]\nformat = "json"\n')
    code, _, err = told(*arguments)
    assert code == 2
    assert json.loads(err)["exit_code"] == 2


# ---- schema


def test_the_schema_command_writes_a_schema_that_accepts_the_starting_file(told, tmp_path):
    schema = json.loads(told("config", "schema")[1])
    told("config", "init", tmp_path / "a.toml")
    jsonschema.Draft7Validator(schema).validate(tomllib.loads((tmp_path / "a.toml").read_text()))
    assert schema["title"] == "Configuration of s3_source"


# ---- convert

AIVEN = r"""
# An S3 source of Aiven
name=orders
connector.class=io.aiven.kafka.connect.s3.source.S3SourceConnector
tasks.max=6
topic: orders
aws.access.key.id=AKIA-hunter22
aws.secret.access.key : hunter22
aws.s3.bucket.name lake
aws.s3.prefix=events/\
    2024/
aws.s3.region = eu-west-1
aws.s3.backoff.max.retries=5
aws.s3.backoff.delay.ms=250
aws.sts.role.arn=arn:aws:iam::123456789012:role/reader
aws.sts.role.session.duration=1800
input.format=JSONL
file.compression.type=gzip
distribution.type=object_hash
file.name.template=.*
errors.tolerance=all
errors.deadletterqueue.topic.name=bad
max.poll.records=500
transformer.max.buffer.size=4096
expected.max.message.size=1000000
native.start.key=events/2024/05
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter.schemas.enable=false
transforms=hoist
transforms.hoist.password=hunter22
my.own.option=hunter22
"""


@pytest.fixture
def convert(told, tmp_path):
    def converted(text, program="s3_source", name="aiven.properties"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return told("convert", path, program=program)

    return converted


TRANSFORMS_LEFT = (
    "warning: transforms are not converted: until you write [[transforms]], "
    "records keep what these removed or changed\n"
)


def rows(out):
    table = out.partition("# Property by property:\n")[2]
    return {line[1:].split()[0]: " ".join(line[1:].split()[1:]) for line in table.strip().split("\n")}


def test_an_aiven_source_becomes_a_configuration(convert):
    code, out, err = convert(AIVEN)
    assert (code, err) == (0, TRANSFORMS_LEFT)
    assert tomllib.loads(out) == {
        "source": {"name": "orders"},
        "s3": {
            "access_key_id": "${env:AWS_ACCESS_KEY_ID}",
            "secret_access_key": "${env:AWS_SECRET_ACCESS_KEY}",
            "bucket": "lake",
            "prefix": "events/2024/",
            "region": "eu-west-1",
            "max_attempts": 6,
            "retry_base": "250ms",
            "role_arn": "arn:aws:iam::123456789012:role/reader",
            "role_duration": "1800s",
            "start_after": "events/2024/05",
        },
        "input": {"format": "jsonl", "compression": "gzip", "chunk_size": 4096, "max_record_bytes": 1000000},
        "iggy": {
            "topic": "orders",
            "address": "localhost:8090",
            "username": "iggy",
            "password": "${env:IGGY_PASSWORD}",
            "stream": "lake",
            "partitions": 6,
        },
        "naming": {"distribution": "object_hash"},
        "runner": {"tasks_max": 6, "engine": "local"},
        "errors": {"tolerance": "skip_record", "dead_letter_topic": "bad"},
    }
    variables = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "IGGY_PASSWORD"), "x")
    assert structure(tomllib.loads(out), S3SourceConfig, environment=variables).s3.bucket == "lake"


def test_every_property_has_a_row(convert):
    found = rows(convert(AIVEN)[1])
    names = [re.split(r"[=:\s]", line)[0] for line in AIVEN.split("\n") if re.match(r"[a-z]", line)]
    assert [name for name in names if name not in found] == []
    assert found["aws.s3.bucket.name"] == "[s3] bucket"
    assert found["aws.secret.access.key"].startswith("[s3] secret_access_key the value is not copied")
    assert found["max.poll.records"].startswith("no counterpart requests are formed by bytes and time")
    assert found["transforms.hoist.password"].startswith("no counterpart single message transforms")
    assert found["my.own.option"].startswith("no counterpart unknown")
    assert found["file.name.template"] == "no counterpart every key is read, which is the default"


def test_every_known_property_of_s3_is_mapped_or_has_a_reason():
    options = {
        f"{name}.{option.name}" for name, cls in sections_of(S3SourceConfig).items() for option in options_of(cls)
    }
    assert [one.to for one in S3_OPTIONS.values() if one.to and one.to not in options] == []
    assert [name for name, one in S3_OPTIONS.items() if not one.to and not one.note] == []


def test_a_template_matches_the_same_keys_with_the_same_values(convert):
    """The keys are those of the connector's own documentation; there a template is searched for in the key."""
    from framework.config.key_template import NameTemplate

    text = "aws.s3.bucket.name=lake\nfile.name.template={{topic}}-{{partition}}-{{start_offset}}\n"
    naming = tomllib.loads(convert(text)[1])["naming"]
    template = NameTemplate.parse(naming["template"], regex=naming["regex"])
    for key, topic, partition, offset in (
        ("customer-topic-1-1734445664111.txt", "customer-topic", 1, 1734445664111),
        ("22-10-12/customer-topic-1-1734445664111.txt", "22", 10, 12),
    ):
        match = template.match(key)
        assert (match.topic, match.partition, match.start_offset) == (topic, partition, offset)
    assert template.match("customer/topic") is None


@pytest.mark.parametrize("template", ["(?<name>a)", "a(", "{{nothing}}", "{{topic}}{{topic}}"])
def test_a_template_that_is_none_here_is_left_out_with_the_reason(convert, template):
    code, out, _ = convert(f"aws.s3.bucket.name=lake\nfile.name.template={template}\n")
    assert code == 0
    assert "naming" not in tomllib.loads(out)
    assert rows(out)["file.name.template"].startswith("no counterpart not a valid expression here")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("aws.secret.access.key=${env:MY_KEY}", "${env:MY_KEY}"),
        ("aws.secret.access.key=${dir:/run/secrets:key}", "${file:/run/secrets/key}"),
        ("aws.secret.access.key=${vault:s3/hunter22:key}", "${env:AWS_SECRET_ACCESS_KEY}"),
    ],
)
def test_references_of_config_providers(convert, line, value):
    out = convert(f"aws.s3.bucket.name=lake\n{line}\n")[1]
    assert tomllib.loads(out)["s3"]["secret_access_key"] == value


@pytest.mark.parametrize(
    ("text", "prefix", "note"),
    [
        ("${env:STAGE}/data/", "${env:STAGE}/data/", ""),
        ("a/${dir:/etc/x:stage}/${b}/", "a/${file:/etc/x/stage}/$${b}/", ""),
        (
            "${vault:s3:a}-${env:B}-${file:/x:c}",
            "${env:S3_PREFIX}-${env:B}-${env:S3_PREFIX_2}",
            " was a reference of the config provider vault and file: set this variable",
        ),
    ],
)
def test_references_inside_of_a_value_stay_references(convert, text, prefix, note):
    """Kafka Connect replaces them; as literal text the source would read another prefix without a word."""
    out = convert(f"aws.s3.bucket.name=lake\naws.s3.prefix={text}\n")[1]
    assert tomllib.loads(out)["s3"]["prefix"] == prefix
    assert rows(out)["aws.s3.prefix"] == f"[s3] prefix{note}"


@pytest.mark.parametrize("text", ["cost$${env:TEAM}/", "${env:A}$${env:B}", "$${vault:a:b}"])
def test_a_dollar_before_a_reference_is_to_be_corrected(convert, text):
    """The two would be an escape, and the reference plain text."""
    _, out, err = convert(f"aws.s3.bucket.name=lake\naws.s3.prefix={text}\n")
    assert "prefix" not in tomllib.loads(out)["s3"]
    assert 'warning: to correct: aws.s3.prefix: its value has a "$" before a reference' in err


@pytest.mark.parametrize(
    ("text", "read"), [("a$$${b}/", "a$$${b}/"), ("a${b${env:TEAM}$", "a${bred$"), ("${env:TEAM}${env:TEAM}", "redred")]
)
def test_dollars_and_references_are_read_as_they_were(convert, text, read):
    text = f"name=x\naws.s3.bucket.name=lake\naws.s3.region=eu-west-1\ntopic=t\naws.s3.prefix={text}\n"
    values = tomllib.loads(convert(text)[1])
    assert structure(values, S3SourceConfig, environment={"TEAM": "red", "IGGY_PASSWORD": "x"}).s3.prefix == read


def test_a_reference_inside_of_a_value_that_is_computed_is_not_guessed(convert):
    out = convert("name=lake-${env:STAGE}\naws.s3.bucket.name=lake\naws.secret.access.key=a${env:B}hunter22\n")[1]
    assert "holds a reference beside other text: write it by hand" in rows(out)["name"]
    assert tomllib.loads(out)["s3"]["secret_access_key"] == "${env:AWS_SECRET_ACCESS_KEY}"


@pytest.mark.parametrize("name", ["aws.s3.endpoint", "aws_s3_endpoint", "aws.sts.config.endpoint", "gcs.endpoint"])
@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("https://user:hunter22@store:9000/s3", "https://store:9000/s3"),
        ("https://hunter22@store:9000", "https://store:9000"),
        ("https://us/er:hun@ter22@store:9000", "https://store:9000"),
        ("user:hunter22@store:9000", "store:9000"),
        ("https://store:9000/s3?X-Amz-Signature=hunter22#hunter22", "https://store:9000/s3"),
        (" https://store:9000/s3 ", "https://store:9000/s3"),
    ],
)
def test_a_login_inside_of_an_address_is_not_copied(convert, name, text, copied):
    program = "gcs_source" if name.startswith("gcs") else "s3_source"
    _, out, err = convert(f"connector.class=C\n{name}={text}\n", program=program)
    (section,) = [tomllib.loads(out)[section] for section in ("s3", "gcs") if section in tomllib.loads(out)]
    assert copied in section.values()
    assert not any(secret in out + err for secret in ("hunter22", "ter22", "Signature"))
    assert "a login or a query in it is not copied" in out


def test_a_value_that_looks_like_a_reference_stays_text(convert):
    out = convert("aws.s3.bucket.name=lake\naws.s3.prefix=a${b}/\n")[1]
    assert tomllib.loads(out)["s3"]["prefix"] == "a$${b}/"


def test_a_number_of_thousands_of_digits_is_no_number(convert):
    code, out, _ = convert(f"name=x\ntasks.max={5000 * '9'}\naws.s3.bucket.name=lake\n")
    assert (code, rows(out)["tasks.max"]) == (0, "no counterpart its value is not a whole number")


def test_what_must_be_corrected_is_a_warning(convert):
    code, out, err = convert(
        "name=x\ntasks.max=many\naws.s3.bucket.name=Not A Bucket\ninput.format=xml\naws.s3.prefix=a\naws.s3.prefix=b\n"
    )
    assert code == 0
    assert rows(out)["tasks.max"] == "no counterpart its value is not a whole number"
    assert "warning: aws.s3.prefix is given more than once; the last value counts" in err
    assert "warning: to correct: [s3] bucket" in err
    assert 'warning: to correct: [input] format = "xml": unknown format' in err


def test_transforms_are_a_warning_when_there_are_some(convert):
    assert TRANSFORMS_LEFT in convert("aws.s3.bucket.name=lake\ntransforms=mask\n")[2]
    assert TRANSFORMS_LEFT not in convert("aws.s3.bucket.name=lake\ntransforms=\n")[2]


def test_snappy_of_xerial_is_named(convert):
    found = rows(convert("aws.s3.bucket.name=lake\nfile.compression.type=snappy\n")[1])
    assert "framing of its own" in found["file.compression.type"]


def test_the_json_of_the_rest_interface_is_read_too(convert):
    content = {"name": "orders", "config": {"aws.s3.bucket.name": "lake", "tasks.max": 2, "topic": "t"}}
    out = convert(json.dumps(content))[1]
    made = tomllib.loads(out)
    assert (made["source"]["name"], made["s3"]["bucket"], made["runner"]["tasks_max"]) == ("orders", "lake", 2)


def test_gcs(convert):
    text = 'name=g\ngcs.bucket.name=lake\ngcs.credentials.json={"private_key": "hunter22"}\ngcs.retry.backoff.max.attempts=6\n'
    code, out, err = convert(text, program="gcs_source")
    assert (code, err) == (0, "")
    assert tomllib.loads(out)["gcs"] == {"bucket": "lake", "max_attempts": 6}
    assert "write the JSON to a file" in rows(out)["gcs.credentials.json"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "has no property of a connector"),
        (b"hello world\n", "has no property of a connector"),
        (b'[source]\nname = "orders"\n[iggy.tls]\n', "has sections"),
        (b'[spark.conf]\n"spark.executor.memory" = "2g"\n', "has sections"),
        (b"a.b=\\u12", "line 1: "),
        (b"\0\1\2", "is binary"),
        (b"{", "is neither properties nor JSON"),
        (b'{"config": []}', "is no connector"),
        (b'{"config": {"a.b": {}}}', "is no connector"),
        (b"a.b=c\n" * 200_000, "longer than 1 MiB"),
    ],
)
def test_what_is_no_file_of_properties(convert, data, said):
    code, out, err = convert(data)
    assert (code, out) == (2, "")
    assert said in err


def test_a_file_that_cannot_be_read(told, tmp_path):
    assert (
        told("convert", tmp_path / "none")[2]
        == f"error: {tmp_path / 'none'}: cannot be read: No such file or directory\n"
    )
    assert told("convert", tmp_path)[0] == 2
    assert told("convert")[0] == 2


def test_the_properties_of_another_stores_connector_are_doubted(told, tmp_path):
    path = tmp_path / "other.properties"
    path.write_text("connector.class=FileStreamSourceConnector\naws.s3.bucket.name=lake\n")
    assert "is it the connector of another store?" not in told("convert", path)[2]
    _, _, err = told("convert", path, program="gcs_source")
    assert "no property is one of a connector whose store is [gcs]: is it the connector of another store?" in err


@pytest.mark.parametrize(
    ("form", "format_", "note"),
    [
        ("jsonl", "jsonl", "what the sink wrote"),
        ("Parquet", "parquet", "what the sink wrote"),
        ("csv", "csv", "what the sink wrote"),
        (None, "csv", "the default there"),
    ],
)
def test_the_format_that_a_sink_wrote_is_the_format_to_read(convert, form, format_, note):
    lines = ["connector.class=io.aiven.kafka.connect.gcs.GcsSinkConnector", "gcs.bucket.name=lake", "topics=orders"]
    _, out, err = convert("\n".join([*lines, *([f"format.output.type={form}"] if form else [])]), program="gcs_source")
    made = tomllib.loads(out)["input"]
    assert (made["format"], made.get("csv_header")) == (format_, False if format_ == "csv" else None)
    assert re.search(rf"\[input\] format +{note}", out)
    assert "[input] envelope" in out
    assert err == ""


def test_json_with_a_byte_order_mark_and_a_null(convert):
    text = '\ufeff\n{"name": "orders",\n"config": {"aws.s3.bucket.name": "lake", "aws.s3.prefix": null}}'
    code, out, _ = convert(text, name="aiven.json")
    assert code == 0
    assert tomllib.loads(out)["s3"]["bucket"] == "lake"
    assert rows(out)["aws.s3.prefix"].endswith("empty")


SECTION = "\n[iggy.tls]\nenabled = false\n#"


@pytest.mark.parametrize(
    "given",
    [
        {"aws.s3.prefix": f"${{vault{SECTION}:k}}"},
        {"aws.s3.prefix": f"a${{vault{SECTION}:k}}"},
        {"aws.s3.prefix": f"${{env:A{SECTION}}}"},
        {"aws.s3.prefix": f"${{dir:/a{SECTION}:b}}"},
        {"aws.s3.prefix": f'"""{SECTION}'},
        {"aws.s3.prefix": f"\"\r\x85\u2028\u2029\x0b{SECTION}'"},
        {"aws.s3.endpoint": f"https://store{SECTION}"},
        {"aws.secret.access.key": f"${{vault{SECTION}:k}}"},
        {"tasks.max": f"${{vault{SECTION}:k}}"},
        {"tasks.max": f"1{SECTION}"},
        {"aws.s3.backoff.delay.ms": f"${{vault{SECTION}:k}}"},
        {"errors.tolerance": f"all{SECTION}"},
        {"file.name.template": f"a{SECTION}("},
        {"file.name.template": f"a{SECTION}"},
        {"topics": f"a,b{SECTION}"},
        {f"my.own{SECTION}": SECTION},
    ],
)
@pytest.mark.parametrize("program", ["s3_source", "gcs_source"])
def test_no_text_of_the_input_leaves_its_comment_or_string(convert, given, program):
    config = {"aws.s3.bucket.name": "lake", "gcs.bucket.name": "lake", **given}
    code, out, err = convert(json.dumps({"name": "x", "config": config}), program=program)
    assert code == 0
    assert "tls" not in tomllib.loads(out)["iggy"]
    assert all(character.isprintable() for character in (out + err).replace("\n", ""))
    assert not any(line.startswith(("[iggy.tls]", "enabled")) for line in (out + err).splitlines())


@pytest.mark.parametrize(
    ("former", "current", "option"),
    [
        ("aws_s3_bucket=old", "aws.s3.bucket.name=new", "s3.bucket"),
        ("aws_s3_prefix=old", "aws.s3.prefix=new", "s3.prefix"),
        ("aws_s3_region=old", "aws.s3.region=new", "s3.region"),
        ("aws_s3_endpoint=https://old", "aws.s3.endpoint=new", "s3.endpoint"),
        ("aws_access_key_id=${env:old}", "aws.access.key.id=${env:new}", "s3.access_key_id"),
        ("aws_secret_access_key=${env:old}", "aws.secret.access.key=${env:new}", "s3.secret_access_key"),
        ("input.type=old", "input.format=new", "input.format"),
        ("format.output.type=old", "input.format=new", "input.format"),
        ("topics=old", "topic=new", "iggy.topic"),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_current_name_counts_over_the_former_one(convert, former, current, option, reverse):
    lines = [former, current][:: -1 if reverse else 1]
    _, out, err = convert("\n".join(["connector.class=a.b", *lines]))
    section, _, key = option.partition(".")
    name, counts = former.partition("=")[0], current.partition("=")[0]
    assert tomllib.loads(out)[section][key].strip("${}") in {"new", "env:new"}
    assert rows(out)[name] == f"no counterpart ignored: [{section}] {key} is set by {counts}, which counts"
    assert f"warning: {name} is ignored: [{section}] {key} is set by {counts}, which counts\n" in err
    assert list(rows(out))[1:3] == [line.partition("=")[0] for line in lines]


def test_a_current_name_without_a_value_leaves_the_former_one(convert):
    out = convert("aws_s3_bucket=old\naws.s3.bucket.name=\n")[1]
    assert tomllib.loads(out)["s3"]["bucket"] == "old"


@pytest.mark.parametrize(
    ("program", "name", "option", "advice"),
    [
        ("s3_source", "aws.s3.backoff.max.retries", "s3.max_attempts", "write one more than it holds"),
        (
            "s3_source",
            "errors.tolerance",
            "errors.tolerance",
            'write "none", or "skip_record" if it holds all',
        ),
        ("s3_source", "file.name.template", "naming.template", "write it as [naming] template"),
        ("gcs_source", "file.name.template", "naming.template", "write it as [naming] template"),
    ],
)
@pytest.mark.parametrize(
    ("reference", "ours"),
    [("${env:LATER}", "${env:LATER}"), ("${dir:/run/x:k}", "${file:/run/x/k}"), (" ${vault:a:k} ", None)],
)
def test_a_reference_to_what_must_be_read_is_to_be_written_by_hand(
    convert, program, name, option, advice, reference, ours
):
    """The option would take its text as another value: retries as attempts."""
    out, err = convert(f"connector.class=a.b\n{name}={reference}\n", program=program)[1:]
    section, _, key = option.partition(".")
    assert key not in tomllib.loads(out).get(section, {})
    advice = advice.format(ours or f"${{env:{section.upper()}_{key.upper()}}}")
    assert rows(out)[name].startswith("no counterpart its value ")
    assert f"[{section}] {key}" in rows(out)[name]
    assert rows(out)[name].endswith(advice)
    assert re.search(rf"(?m)^warning: to correct: {re.escape(name)}: .*{re.escape(advice)}$", err)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("aws.s3.backoff.delay.ms", "retry_base"),
        ("aws.s3.backoff.max.delay.ms", "retry_cap"),
        ("gcs.retry.backoff.initial.delay.ms", "retry_base"),
        ("gcs.retry.backoff.max.delay.ms", "retry_cap"),
        ("gcs.retry.backoff.total.timeout.ms", "retry_budget"),
    ],
)
def test_milliseconds_by_reference_are_read_as_milliseconds(convert, name, option):
    section = "gcs" if name.startswith("gcs") else "s3"
    bucket = "gcs.bucket.name" if section == "gcs" else "aws.s3.bucket.name"
    text = f"connector.class=a.b\nname=x\n{bucket}=lake\ntopic=t\n{name}= ${{env:DELAY}} \n"
    _, out, err = convert(text, program=f"{section}_source")
    values = tomllib.loads(out)
    assert (values[section][option], err) == ("${env:DELAY}ms", "")
    if section == "s3":
        values["s3"]["region"] = "eu-west-1"
    read = structure(values, PROGRAMS[f"{section}_source"][1], environment={"DELAY": "1500", "IGGY_PASSWORD": "x"})
    assert getattr(getattr(read, section), option) == 1.5


@pytest.mark.parametrize("template", ["a-${env:TPL}", "${file:/x:k}{{topic}}"])
def test_a_template_with_a_reference_is_to_be_written_by_hand(convert, template):
    out, err = convert(f"aws.s3.bucket.name=lake\nfile.name.template={template}\n")[1:]
    assert "naming" not in tomllib.loads(out)
    assert "warning: to correct: file.name.template: its value holds a reference" in err


@pytest.mark.parametrize("reference", ["${env:LATER}", "${dir:/no/such/folder:k}", "${vault:a:k}"])
def test_a_value_that_is_known_later_is_not_called_wrong(convert, reference):
    of_both = ["tasks.max", "input.format", "file.compression.type", "distribution.type", "transformer.max.buffer.size"]
    of_both += ["expected.max.message.size", "topic", "errors.deadletterqueue.topic.name", "name", "native.start.key"]
    of_both += ["topic.creation.default.partitions"]
    s3 = ["endpoint", "region", "prefix", "bucket.name"]
    sts = ["config.endpoint", "role.arn", "role.external.id", "role.session.name", "role.session.duration"]
    gcs = ["endpoint", "bucket.name", "credentials.path", "retry.backoff.max.attempts"]
    names = {
        "s3_source": [f"aws.s3.{name}" for name in s3] + [f"aws.sts.{name}" for name in sts],
        "gcs_source": [f"gcs.{name}" for name in gcs] + ["file.name.prefix"],
    }
    for program, own in names.items():
        code, out, err = convert("".join(f"{name}={reference}\n" for name in of_both + own), program=program)
        assert (code, err) == (0, "")
        assert [row for row in rows(out).values() if row.startswith("no counterpart")] == []


def test_a_duration_in_seconds_by_reference_is_read_as_seconds(convert):
    text = "name=x\naws.s3.bucket.name=lake\naws.s3.region=eu-west-1\ntopic=t\naws.sts.role.session.duration=${env:D}\n"
    values = tomllib.loads(convert(f"{text}aws.sts.role.arn=arn:aws:iam::123456789012:role/reader\n")[1])
    assert structure(values, S3SourceConfig, environment={"D": "1800", "IGGY_PASSWORD": "x"}).s3.role_duration == 1800


def test_mistakes_beside_a_value_that_is_known_later_are_told(convert):
    err = convert("aws.s3.bucket.name=Not A Bucket\ntasks.max=${env:N}\ninput.format=xml\naws.s3.prefix=${env:}\n")[2]
    assert "warning: to correct: [s3] bucket" in err
    assert "warning: to correct: [input] format" in err
    assert "warning: to correct: [s3] prefix: ${env:} must be ${env:NAME} or ${file:PATH}" in err
    assert "tasks_max" not in err


@pytest.mark.parametrize(
    "name", ["aws.s3.prefix", "name", "input.format", "file.name.template", "aws.secret.access.key"]
)
@pytest.mark.parametrize("text", ["a\ud800b", "${vault:\udfff:k}", "${env:\ud83d}"])
def test_half_a_character_is_to_be_corrected(convert, name, text):
    code, out, err = convert(json.dumps({"config": {"aws.s3.bucket.name": "lake", name: text, "x\ud800": "y"}}))
    assert code == 0
    tomllib.loads(out)
    assert rows(out)[name] == "no counterpart its value is not valid Unicode: write it by hand"
    assert f"warning: to correct: {name}: its value is not valid Unicode: write it by hand\n" in err
    assert rows(out)["x\\ud800"].startswith("no counterpart unknown")


def test_half_a_character_in_a_file_of_properties_is_to_be_corrected(convert):
    out, err = convert("aws.s3.bucket.name=lake\naws.s3.prefix=a\\ud800b\n")[1:]
    assert "prefix" not in tomllib.loads(out)["s3"]
    assert "warning: to correct: aws.s3.prefix: its value is not valid Unicode" in err


def test_two_halves_of_a_character_in_json_are_one(convert):
    out = convert('{"config": {"aws.s3.bucket.name": "lake", "aws.s3.prefix": "\\ud83d\\ude00"}}')[1]
    assert tomllib.loads(out)["s3"]["prefix"] == "\U0001f600"


SINK = "connector.class=io.aiven.kafka.connect.gcs.GcsSinkConnector\ngcs.bucket.name=lake\nname=x\n"


def test_the_defaults_of_a_source_are_not_those_of_a_sink(convert):
    made = tomllib.loads(convert("connector.class=a.b.S3SourceConnector\naws.s3.bucket.name=lake\n")[1])
    assert (made["input"]["format"], made["input"].get("csv_header")) == ("bytes", None)
    assert tomllib.loads(convert("gcs.bucket.name=lake\n", program="gcs_source")[1])["input"]["format"] == "csv"


@pytest.mark.parametrize(
    ("given", "key", "topic", "partition"),
    [
        ("{{topic}}(v1)+{{partition}}-{{start_offset}}.gz", "pre/orders(v1)+3-12.gz", "orders", 3),
        (
            "{{ topic }}/{{partition:padding=true}}-{{start_offset:padding=true}}",
            "pre/orders/0000000003-012",
            "orders",
            3,
        ),
        (
            "{{topic}}/{{timestamp:unit=yyyy}}{{ timestamp:unit=MM }}-{{ partition }}",
            "pre/orders/202401-3",
            "orders",
            3,
        ),
        ("all.{{key}}", "pre/all.k", None, None),
    ],
)
def test_the_template_of_a_sink_is_literal_text_behind_its_prefix(convert, given, key, topic, partition):
    from framework.config.key_template import NameTemplate

    text = f"{SINK}file.name.template={given}\nfile.name.prefix=pre/\n"
    _, out, err = convert(text, program="gcs_source")
    naming = tomllib.loads(out)["naming"]
    assert ("regex" in naming, err) == (False, "")
    match = NameTemplate.parse(naming["template"]).match(key)
    assert (match.topic, match.partition) == (topic, partition)
    assert NameTemplate.parse(naming["template"]).match(f"x{key}") is None


@pytest.mark.parametrize(
    ("prefix", "template", "read"),
    [
        ("usd$", "{{topic}}", "usd${{topic}}"),
        ("usd$", "{env:A}", "usd${env:A}"),
        ("a${b", "}{{topic}}", "a${b}{{topic}}"),
        ("${env:TEAM}$", "{{topic}}", "red${{topic}}"),
    ],
)
def test_a_dollar_before_the_template_of_a_sink_is_plain_text(convert, prefix, template, read):
    text = f"{SINK}topics=t\nfile.name.prefix={prefix}\nfile.name.template={template}\n"
    values = tomllib.loads(convert(text, program="gcs_source")[1])
    made = structure(values, GcsSourceConfig, environment={"TEAM": "red", "IGGY_PASSWORD": "x"})
    assert made.naming.template == read


def test_a_prefix_that_is_to_be_corrected_is_not_left_out_of_the_template_of_a_sink(convert):
    text = f"{SINK}file.name.prefix=a$${{env:P}}\nfile.name.template={{{{topic}}}}\n"
    _, out, err = convert(text, program="gcs_source")
    assert "naming" not in tomllib.loads(out)
    assert "prefix" not in tomllib.loads(out)["gcs"]
    assert 'warning: to correct: file.name.template: its prefix has a "$" before a reference' in err


def test_a_prefix_by_reference_stays_one_in_the_template_of_a_sink(convert):
    text = f"{SINK}file.name.prefix=a${{env:P}}\nfile.name.template={{{{topic}}}}-${{b}}\n"
    assert tomllib.loads(convert(text, program="gcs_source")[1])["naming"]["template"] == "a${env:P}{{topic}}-$${b}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "file.name.template={{topic}}/{{topic}}",
            "not a valid template here: {{topic}} stands twice; it may stand once",
        ),
        ("file.name.template={{nothing}}", "not a valid template here: unknown placeholder {{nothing}}; known are "),
        ("file.name.template={{topic}}\nfile.name.prefix={{a", "its prefix holds {{, which begins a placeholder"),
    ],
)
def test_a_template_of_a_sink_that_is_none_here_is_to_be_corrected(convert, lines, said):
    _, out, err = convert(f"{SINK}{lines}\n", program="gcs_source")
    assert "naming" not in tomllib.loads(out)
    assert f"warning: to correct: file.name.template: {said}" in err


S3_SINK = (
    "connector.class=io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector\naws.s3.bucket.name=lake\nname=x\n"
)


@pytest.mark.parametrize(
    ("given", "compression"),
    [
        ("", "gzip"),
        ("output_compression=none", "none"),
        ("output_compression=gzip", "gzip"),
        ("output_compression=none\nfile.compression.type=zstd", "zstd"),
        ("file.compression.type=none", "none"),
        ("format.output.type=jsonl", "gzip"),
        ("format.output.type=Parquet", "none"),
        ("format.output.type=parquet\nfile.compression.type=gzip", "none"),
    ],
)
def test_the_compression_is_what_the_sink_of_s3_wrote(convert, given, compression):
    """It writes gzip unless configured otherwise; Parquet it compresses inside."""
    assert tomllib.loads(convert(f"{S3_SINK}{given}\n")[1])["input"]["compression"] == compression


@pytest.mark.parametrize(("given", "compression"), [("", "none"), ("file.compression.type=gzip", "gzip")])
def test_the_compression_is_what_the_sink_of_gcs_wrote(convert, given, compression):
    made = tomllib.loads(convert(f"{SINK}{given}\n", program="gcs_source")[1])
    assert made["input"]["compression"] == compression


@pytest.mark.parametrize("name", ["file.compression.type", "output_compression"])
def test_a_compression_of_a_sink_that_cannot_be_read_is_not_replaced_by_the_default_there(convert, name):
    _, out, err = convert(f"{S3_SINK}{name}=snappy\n")
    assert tomllib.loads(out)["input"]["compression"] == "none"
    assert re.search(rf"\[input\] compression +to correct: see {name}\n", out)
    assert f"to correct: {name}: its value has a framing of its own" in err


@pytest.mark.parametrize("given", ["", "file.compression.type=zstd\n"])
def test_the_compression_of_a_sink_whose_format_is_a_reference_is_to_be_corrected(convert, given):
    _, out, err = convert(f"{S3_SINK}format.output.type=${{env:FORMAT}}\n{given}")
    assert tomllib.loads(out)["input"]["compression"] == ("zstd" if given else "gzip")
    assert 'to correct: [input] compression: write "none" if format.output.type holds parquet' in err


def test_a_sink_that_compresses_nothing_has_no_compression_to_correct(convert):
    lines = "format.output.type=${env:FORMAT}\nfile.compression.type=none\n"
    assert "to correct" not in convert(f"{S3_SINK}{lines}")[2]


def test_the_former_compression_alone_says_that_it_is_a_sink(convert):
    made = tomllib.loads(convert("connector.class=a.b\naws_s3_bucket=lake\noutput_compression=none\n")[1])["input"]
    assert (made["format"], made["compression"]) == ("csv", "none")


def test_the_sink_of_s3_puts_no_prefix_before_its_template(convert):
    """It reads no `file.name.prefix`, though its documentation names it."""
    lines = "topics=t\nfile.name.prefix=dir1/\nfile.name.template={{topic}}-{{partition}}-{{start_offset}}.gz\n"
    _, out, err = convert(f"{S3_SINK}{lines}")
    made = tomllib.loads(out)
    assert made["naming"]["template"] == "{{topic}}-{{partition}}-{{start_offset}}.gz"
    assert ("prefix" in made["s3"], err) == (False, "")
    assert rows(out)["file.name.prefix"].startswith("no counterpart Aiven's S3 sink does not use it")


@pytest.mark.parametrize("name", ["aws.s3.prefix", "aws_s3_prefix"])
def test_the_sink_of_s3_does_not_use_its_template_beside_a_prefix(convert, name):
    _, out, err = convert(f"{S3_SINK}topics=t\n{name}=dir1/\nfile.name.template={{{{topic}}}}\n")
    assert tomllib.loads(out)["s3"]["prefix"] == "dir1/"
    assert "naming" not in tomllib.loads(out)
    assert "warning: to correct: file.name.template: the sink does not use it beside the prefix" in err


def test_a_prefix_that_the_sink_of_s3_fills_in_is_to_be_corrected(convert):
    _, out, err = convert(f"{S3_SINK}topics=t\naws.s3.prefix=a/{{{{ utc_date }}}}/\n")
    assert "prefix" not in tomllib.loads(out)["s3"]
    assert "warning: to correct: aws.s3.prefix: its value holds {{, which the sink fills in" in err
    out = convert("connector.class=a.S3SourceConnector\naws.s3.bucket.name=lake\naws.s3.prefix=a{{b}}\n")[1]
    assert tomllib.loads(out)["s3"]["prefix"] == "a{{b}}"


def test_the_topic_of_a_sink_is_what_it_read(convert):
    assert rows(convert(f"{S3_SINK}topics=t\n")[1])["topics"] == "[iggy] topic the topic that the sink read"
    out = convert("connector.class=a.S3SourceConnector\naws.s3.bucket.name=lake\ntopics=t\n")[1]
    assert rows(out)["topics"] == "[iggy] topic the former name of topic"


def test_several_topics_are_not_one(convert):
    text = f"{SINK}topics=orders, clicks\n"
    _, out, err = convert(text, program="gcs_source")
    assert tomllib.loads(out)["iggy"]["topic"] == "records"
    assert "warning: to correct: topics: holds several topics: write " in err
    _, out, err = convert(f"{text}file.name.template={{{{topic}}}}-{{{{partition}}}}\n", program="gcs_source")
    assert ("topic" in tomllib.loads(out)["iggy"], err) == (False, "")
    assert rows(out)["topics"] == "[naming] template several topics: records go to the topic that their key names"
    assert structure(tomllib.loads(out), GcsSourceConfig, environment={"IGGY_PASSWORD": "x"}).iggy.topic is None
    _, out, _ = convert(f"{text}topic=one\n", program="gcs_source")
    assert tomllib.loads(out)["iggy"]["topic"] == "one"


def test_topics_by_reference_are_to_be_written_by_hand(convert):
    err = convert("aws.s3.bucket.name=lake\ntopics=${env:TOPICS}\n")[2]
    assert (
        'warning: to correct: topics: its value is a reference, which [iggy] topic cannot take as it is: write "${env:TOPICS}"'
        in err
    )
