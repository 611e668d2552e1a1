"""Files as configurations, their keys, and what others may see of them."""

import errno
import os

import attrs
import pytest

from framework.config.masked_view import MASK, has_mask, shown_mapping
from framework.config.option import option
from framework.errors import ConfigError
from framework.runtime.api_documents import transforms_of
from framework.runtime.configuration import Configuration, shown
from framework.runtime.folder import ConfigFolder
from framework.runtime.source_program import Kinds
from framework.runtime.state import KeptState, StateFolder
from framework.transform import Transform
from s3_source.task import S3SourceTask
from tests.unit.runtime.rig import KINDS, Rig, read, text


def made(tmp_path, content, name="orders.toml"):
    path = tmp_path / name
    path.write_text(content)
    return read(path)


def test_a_file_says_its_source_and_its_store(tmp_path):
    found = made(tmp_path, text())
    assert (found.key, found.source, found.label, found.kind.name, found.version) == ("orders",) * 3 + ("s3", 0)
    assert (found.enabled, found.mistake) == (True, "")


def test_the_head_of_a_connector_file_of_iggy(tmp_path):
    head = 'type = "source"\nkey = "lake-orders"\nenabled = false\nversion = 4\nname = "Orders of the lake"\n'
    found = made(tmp_path, text(head=head))
    assert (found.key, found.enabled, found.version) == ("lake-orders", False, 4)
    assert (found.label, found.mistake) == ("Orders of the lake", "")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ('type = "sink"', 'type = "sink": must be "source"'),
        ("type = 1", "type: must be a text"),
        ('key = "a/b"', 'key = "a/b": may hold only'),
        ('version = "2"', "version: must be a whole number"),
        ("version = -1", "version = -1: must be at least 0"),
        ("version = true", "version: must be a whole number"),
        ('enabled = "yes"', "enabled: must be true or false"),
        ("enabeld = true", "[enabeld]: unknown section"),
    ],
)
def test_a_wrong_head_is_a_sentence(tmp_path, head, said):
    assert said in made(tmp_path, text(head=f"{head}\n")).mistake


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the section of its store is missing"),
        ("[source\n", "not valid TOML"),
        ('[source]\nname = "a"\n', "the section of its store is missing"),
        (text() + "[gcs]\nbucket = 'x'\n", "sections of several stores, s3, gcs"),
        ("a = " + "[" * 20_000, "not valid TOML: values are nested too deep"),
        ("[nonsense]\n", "the section of its store is missing"),
        (
            text() + 'transforms = [{ type = "json" }]\n',
            "begin each transform with a line [[transforms]], or write the list",
        ),
        (text() + "[metrics]\nenabled = true\n", "[metrics] enabled: unknown option; known are address"),
        (
            text() + '[http.metrics]\nendpoint = "/sources"\n',
            '[http.metrics] endpoint = "/sources": is a path of the API; choose another, such as "/metrics"',
        ),
        (text() + '[http.metrics]\nendpoint = "/health/x"\n', 'endpoint = "/health/x": is a path of the API'),
        (
            text() + '[iggy.tls]\ntopic = "x"\n',
            "[iggy.tls] topic: unknown option; topic belongs to [iggy] or [offsets]",
        ),
        (
            text().replace("[s3]", "[s3s]"),
            "the section of its store is missing, for example [s3] or [gcs]; [s3s] is none",
        ),
        ("\xff", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_run_is_a_sentence_with_its_path(tmp_path, content, said):
    found = made(tmp_path, content, "bad.toml")
    assert found.mistake.startswith(str(tmp_path / "bad.toml")), found.mistake
    assert said in found.mistake or not content
    assert found.key in {"bad.toml", "a", "orders"}


def test_a_folder_named_like_a_file_and_hidden_files_are_no_sources(tmp_path):
    rig = Rig(tmp_path)
    rig.write()
    (rig.conf / "folder.toml").mkdir()
    rig.write(file=".hidden.toml")
    rig.write(file="orders.toml.swp")
    rig.tick()
    assert rig.keys() == ["orders"]
    rig.close()


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    assert "cannot be read" in read(tmp_path / "orders.toml").mistake


def test_of_two_files_of_one_source_the_second_names_both(tmp_path):
    rig = Rig(tmp_path)
    rig.write(file="b.toml")
    rig.tick()
    rig.write(file="a.toml")
    rig.write(file="c.toml", head='key = "orders-again"\n')
    rig.look()
    assert rig.source().active.path == rig.conf / "b.toml"
    for file in ("a.toml", "c.toml"):
        message = rig.source(file).last_error.message
        assert str(rig.conf / file) in message
        assert str(rig.conf / "b.toml") in message
    assert len(rig.children) == 1
    rig.look()
    (rig.conf / "b.toml").unlink()
    rig.look()
    assert rig.source().active.path == rig.conf / "a.toml"
    rig.close()


@pytest.mark.parametrize("head", ["", 'key = "lake-orders"\n'])
def test_a_copy_does_not_take_over_when_the_worker_starts_again(tmp_path, head):
    """`orders-old.toml` sorts before `orders.toml`."""
    rig = Rig(tmp_path)
    rig.write(head=head)
    rig.tick()
    rig.write(file="orders-old.toml", head=head)
    rig.look()
    key = "lake-orders" if head else "orders"
    for _ in range(2):
        assert rig.source(key).active.path == rig.conf / "orders.toml"
        assert "is also in" in rig.source("orders-old.toml").last_error.message
        rig.begin()
        rig.tick()
    rig.close()


def test_two_sources_under_one_key(tmp_path):
    rig = Rig(tmp_path)
    rig.write("a", head='key = "k"\n')
    rig.write("b", head='key = "k"\n')
    rig.tick()
    assert sorted(rig.keys()) == ["b.toml", "k"]
    assert 'the key "k" is also in' in rig.source("b.toml").last_error.message
    rig.close()


def test_kinds_are_found_by_their_section():
    kinds = Kinds("s3_source", S3SourceTask)
    assert kinds.of({"gcs": {}}).arguments == ("-m", "gcs_source")
    assert kinds.named("s3_source").name == "s3"
    for name in ("", "nothing", "../x", "os", "framework", "s3_source_source"):
        assert kinds.named(name) is None
    with pytest.raises(ConfigError):
        kinds.of({"s3": {}, "gcs": {}})


def test_includes_and_overrides_belong_to_the_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("IGGY_SOURCE__IGGY__TOPIC", "from-the-environment")
    (tmp_path / "common.inc").write_text('[source]\nname = "shared"\n[iggy]\nurl = "iggy://a:b@h:1"\nstream = "lake"\n')
    found = made(tmp_path, 'include = ["common.inc"]\n[s3]\nbucket = "lake"\n[input]\nformat = "jsonl"\n')
    assert (found.mistake, found.source, found.key) == ("", "shared", "shared")
    assert found.includes == (tmp_path / "common.inc",)
    assert shown(found)["iggy"] == {"url": "iggy://***@h:1", "stream": "lake", "topic": "from-the-environment"}


def test_a_change_of_an_included_file_is_a_change_and_a_comment_is_none(tmp_path):
    rig = Rig(tmp_path)
    (rig.conf / "common.inc").write_text("[discovery]\npoll_interval = 1\n")
    path = rig.write(head='include = ["common.inc"]\n')
    rig.tick()
    rig.look()
    path.write_text(f"{path.read_text()}# a comment\n")
    rig.look()
    assert (len(rig.children), rig.children[0].asked) == (1, 0)
    (rig.conf / "common.inc").write_text("[discovery]\npoll_interval = 2\n")
    rig.look()
    assert rig.children[0].asked == 1
    assert rig.children[1].configuration.mapping["discovery"] == {"poll_interval": 2}
    rig.close()


def test_an_included_file_that_is_missing_or_wrong_is_noticed_when_it_is_there(tmp_path):
    rig = Rig(tmp_path)
    inner = rig.conf / "inner.inc"
    (rig.conf / "common.inc").write_text('include = ["inner.inc"]\n')
    rig.write(head='include = ["common.inc"]\n')
    rig.tick()
    rig.look()
    assert "inner.inc: the configuration file cannot be read" in rig.source("orders.toml").last_error.message
    inner.write_text("[discovery]\npoll_interval = 1\n")
    rig.look()
    assert rig.source().active.mistake == ""
    assert len(rig.children) == 1
    inner.write_text("[discovery\n")
    for _ in range(3):  # also long after
        rig.look()
    assert "inner.inc: not valid TOML" in rig.source().last_error.message
    inner.write_text("[discovery]\npoll_interval = 2\n")
    rig.look()
    assert rig.source().last_error is None
    assert rig.children[-1].configuration.mapping["discovery"] == {"poll_interval": 2}
    rig.close()


# ---- what others may see


SECRET = "hunter2hunter2"


def test_no_secret_is_shown_wherever_it_stands(tmp_path):
    content = text(head="").replace("iggy:iggy@", f"iggy:{SECRET}@") + (
        f'[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "{SECRET}"\n'
    )
    content = content.replace('bucket = "lake"', f'bucket = "lake"\nsecret_key = "{SECRET}"\npasword = "{SECRET}"')
    found = shown(made(tmp_path, content + f'[nosection]\nx = "{SECRET}"\n'))
    assert SECRET not in str(found)
    assert SECRET not in repr(read(tmp_path / "orders.toml"))
    assert found["s3"] == {"bucket": "lake", "secret_key": MASK, "pasword": MASK}
    assert found["iggy"]["url"] == "iggy://***@localhost:8090"
    spark = "spark.conf.spark.hadoop.fs.s3a.secret.key"
    assert has_mask(found) == ["s3.secret_key", "s3.pasword", "iggy.url", spark, "nosection.x"]


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("iggy", "address", f"iggy:{SECRET}@localhost:8090"),
        ("iggy", "address", f"iggypat-{SECRET}@localhost:8090"),
        ("iggy", "address", f"localhost:8090?token={SECRET}"),
        ("iggy", "address", f"iggy:{SECRET}"),
        ("s3", "endpoint", f"https://me:{SECRET}@minio.example"),
    ],
)
def test_a_login_in_an_option_that_takes_none_is_not_shown(tmp_path, section, option, value):
    """The mistake that names the option hides the value, too."""
    content = text().replace(f"[{section}]", f'[{section}]\n{option} = "{value}"')
    found = made(tmp_path, content)
    assert found.mistake
    assert SECRET not in found.mistake
    assert shown(found)[section][option] == MASK


@pytest.mark.parametrize("start", ["embedded:", "iggy://"])
def test_a_secret_that_looks_like_an_address_is_masked(tmp_path, start):
    content = text().replace("iggy://iggy:iggy@localhost:8090", "iggy://localhost:8090")
    content = content.replace("[iggy]", f'[iggy]\nusername = "iggy"\npassword = "{start}{SECRET}"')
    found = made(tmp_path, content)
    assert found.mistake == ""
    assert shown(found)["iggy"]["password"] == MASK


def test_a_file_with_transforms_runs_and_shows_them(tmp_path):
    head = 'transforms = [{ type = "delete_fields", fields = ["secret_of_the_record"] }]\n'
    found = made(tmp_path, text(head=head))
    assert found.mistake == ""
    (transform,) = transforms_of(shown(found))
    assert transform.model_dump() == {"type": "delete_fields", "config": {"fields": ["secret_of_the_record"]}}


def test_transforms_are_shown_as_they_are_and_those_without_iggys_names_only_among_the_sections():
    transforms = [{"type": "add_fields", "fields": [{"key": "a", "value": {"static": 1}}]}, {"type": "filter"}]
    assert shown_mapping({"transforms": transforms}, {}) == {"transforms": transforms}
    (transform,) = transforms_of({"transforms": transforms})
    assert transform.model_dump() == {
        "type": "add_fields",
        "config": {"fields": [{"key": "a", "value": {"static": 1}}]},
    }


@pytest.mark.parametrize(
    ("url", "visible"),
    [
        ("iggy://a:b@c:1", "iggy://***@c:1"),
        ("iggy+tls://a:b@x@c:1", "iggy+tls://***@c:1"),
        ("iggy+tls://c:1?token=abc&tls_domain=d", "iggy+tls://c:1?token=***&tls_domain=d"),
        ("iggy://${env:U}:${env:P}@${env:H}:${env:N}", "iggy://***@${env:H}:${env:N}"),
        ("iggy://c:1?tokn=abc", MASK),
        (f"iggy://iggy:{SECRET}", MASK),
        (f"iggy://iggypat-{SECRET}", MASK),
        (f"iggy://c/{SECRET}", MASK),
        ("${env:IGGY_URL}", "${env:IGGY_URL}"),
        ("${env:IGGY_URL}abc", MASK),
        ("embedded:data", "embedded:data"),
        ("nonsense", MASK),
    ],
)
def test_an_address_is_shown_without_its_login(tmp_path, url, visible):
    found = made(tmp_path, text().replace("iggy://iggy:iggy@localhost:8090", url))
    assert shown(found)["iggy"]["url"] == visible


def test_a_file_of_a_name_that_is_the_key_of_another_takes_nothing_from_it(tmp_path):
    sources = {"a.toml": ("x", "x"), "b.toml": ("x", "x"), "y.toml": ("b.toml", "y")}
    for name in sources:
        (tmp_path / name).write_text(name)
    found = ConfigFolder(
        tmp_path, lambda path: Configuration(key=sources[path.name][0], path=path, source=sources[path.name][1])
    ).look()
    assert {key: each.path.name for key, each in found.items()} == {
        "x": "a.toml",
        "b.toml": "y.toml",
        "b.toml_": "b.toml",
    }


# ---- the kept state


def test_a_damaged_state_is_a_sentence_and_a_half_written_one_is_dropped(tmp_path):
    with StateFolder(tmp_path / "state") as state:
        state.change("orders", state="paused", active=3)
    (tmp_path / "state" / "state.json.tmp").write_text("{")
    with StateFolder(tmp_path / "state") as state:
        assert state.get("orders") == KeptState(state="paused", active=3)
        assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["state.json", "worker.lock"]
    (tmp_path / "state" / "folder.tmp").mkdir()  # no draft of ours
    mistyped = ('{"sources": {"a": {"state": "asleep"}}}', '{"sources": {"a": {"x": 1}}}')
    deep = '{"sources": {}, "x": ' + "[" * 100_000
    for content in ("{", "[]", *mistyped, "\0", "[" * 100_000, deep, '{"sources": {"\udcff": {}}}'):
        (tmp_path / "state" / "state.json").write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match="is damaged"), StateFolder(tmp_path / "state"):
            pass


def test_only_the_owner_reads_the_state(tmp_path):
    with StateFolder(tmp_path / "state") as state:
        path = state.add("orders", 1, b"x")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_link_in_the_folder_of_the_state_leads_to_no_file(tmp_path):
    folder, victim = tmp_path / "state", tmp_path / "victim"
    victim.write_text("mine")
    folder.mkdir()
    folder.chmod(0o777)
    with StateFolder(folder) as state:
        assert folder.stat().st_mode & 0o777 == 0o755
        for name in ("state.json.tmp", "source_orders_1.toml.tmp"):
            (folder / name).symlink_to(victim)
        state.change("orders", state="paused")
        assert state.add("orders", 1, b"x").read_bytes() == b"x"
    assert victim.read_text() == "mine"
    (folder / "worker.lock").unlink()
    (folder / "worker.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot be used: Too many levels of symbolic links"), StateFolder(folder):
        pass


def test_a_state_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "state").mkdir()
    if not os.geteuid():
        os.chown(tmp_path / "state", 54321, -1)  # root takes it as it is
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    match = r"--state-dir: .*/state belongs to another user \(uid \d+, not \d+\): name a folder of your own"
    with pytest.raises(ConfigError, match=match), StateFolder(tmp_path / "state"):
        pass
    assert not list((tmp_path / "state").iterdir())


def test_versions_belong_to_their_key_whatever_it_is_called(tmp_path):
    with StateFolder(tmp_path / "state") as state:
        for key in ("a", "a_1", "..", "a*", "ä.toml"):
            state.add(key, 2, key.encode())
        for key in ("a", "a_1", "..", "a*", "ä.toml"):
            assert [path.read_bytes() for path in state.versions(key).values()] == [key.encode()]
        assert not state.versions("*")


def test_a_state_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--state-dir: the folder .* cannot be used"), StateFolder(tmp_path / "file"):
        pass


def test_the_kinds_of_a_test_are_those_of_the_program():
    assert KINDS.of({"s3": {}}).task_class is S3SourceTask


def test_a_full_disk_names_the_file_that_cannot_be_written(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with StateFolder(tmp_path / "state") as state:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            state.change("orders", state="paused")
        assert caught.value.filename == str(tmp_path / "state" / "state.json")
        assert state.get("orders").state == "running"
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["worker.lock"]


def test_a_secret_of_a_transform_is_not_shown(tmp_path, monkeypatch):
    """A transform of one's own: the shipped ones have none."""

    @attrs.frozen(kw_only=True)
    class Options:
        token: str = option("", secret=True, doc="Token.")
        word: str = option("", doc="Word.")

    class Own(Transform):
        options_class = Options

    monkeypatch.setattr("framework.config.masked_view.transform_class", {"own": Own}.__getitem__)
    table = (
        f'[[transforms]]\ntype = "own"\ntoken = "{SECRET}"\nword = "a"\n[[transforms]]\ntype = "none"\nx = "{SECRET}"\n'
    )
    found = shown(made(tmp_path, text() + table))
    assert found["transforms"] == [{"type": "own", "token": MASK, "word": "a"}, {"type": "none", "x": MASK}]
    assert has_mask(found["transforms"], "transforms") == ["transforms.token", "transforms.x"]
