"""Includes, environment variables and `--set`: which one wins, what is refused, and what messages say about the origin."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config import plugins
from framework.config.layers import MAX_BYTES, Layer, file_layers, merge
from framework.config.loading import ConfigWarning, load, load_config, structure
from framework.config.option import Bytes, Moment, Seconds, SecondsOrForever, option
from framework.errors import ConfigError
from s3_source.task import S3SourceConfig


@attrs.frozen(kw_only=True)
class Inner:
    enabled: bool = option(False, doc="Enabled.")
    file: str | None = option(None, doc="File.")


@attrs.frozen(kw_only=True)
class Store:
    bucket: str = option(doc="Bucket.", minimum=1)
    pages: int = option(1000, minimum=1, maximum=1000, doc="Pages.")
    wait: Seconds = option(5.0, doc="Wait.", former_names={"wait_seconds": ""})
    late: SecondsOrForever = option(5.0, doc="Late.")
    memory: Bytes | None = option(None, doc="Memory.")
    style: str = option("auto", choices=("auto", "path"), doc="Style.")
    strict: bool = option(True, doc="Strict.")
    password: str | None = option(None, secret=True, doc="Password.")
    since: Moment | None = option(None, doc="Since.")
    globs: tuple[str, ...] = option((), doc="Globs.")
    conf: Mapping[str, str] = option(attrs.Factory(dict), doc="Table.")
    tls: Inner = attrs.field(factory=Inner)

    def validate_options(self):
        if self.style == "path" and self.pages == 7:
            yield "style, pages: contradict each other"


@attrs.frozen(kw_only=True)
class Root:
    store: Store

    def validate_options(self):
        if self.store.bucket == "wrong":
            yield '[store] bucket = "wrong": does not fit [store] pages'


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.toml").write_text(text)
        return tmp_path / "main.toml"

    return write


def read(path, environment=None, *settings):
    return load_config(path, Root, environment=environment or {}, settings=settings).store


def mistakes(path, environment=None, *settings):
    with pytest.raises(ConfigError) as caught:
        read(path, environment, *settings)
    return [mistake.replace(f"{path.parent}/", "") for mistake in caught.value.mistakes]


MAIN = '[store]\nbucket = "lake"\n'


# ---- which value counts


def test_set_wins_over_the_environment_over_the_file_over_its_includes_over_the_default(folder):
    path = folder(
        main='include = ["one.toml", "two.toml"]\n[store]\nbucket = "file"\n',
        one='[store]\nbucket = "one"\npages = 1\nwait = "1s"\n',
        two='[store]\nbucket = "two"\npages = 2\n',
    )
    found = read(path)
    assert (found.bucket, found.pages, found.wait, found.style) == ("file", 2, 1.0, "auto")
    environment = {"IGGY_SOURCE__STORE__BUCKET": "env", "IGGY_SOURCE__STORE__PAGES": "3"}
    assert (read(path, environment).bucket, read(path, environment).pages) == ("env", 3)
    settings = ("store.bucket=first", "store.bucket=set")
    assert (read(path, environment, *settings).bucket, read(path, environment, *settings).pages) == ("set", 3)


def test_each_value_knows_its_origin(folder):
    path = folder(
        main=f'include = ["one.toml"]\n{MAIN}', one="[store]\npages = 1\nstrict = true\n[store.tls]\nfile = 'x'\n"
    )
    environment = {"IGGY_SOURCE__STORE__STRICT": "false"}
    merged = load(path, Root, environment=environment, settings=["store.tls.file=y"]).merged
    assert {".".join(place): origin.rpartition("/")[2] for place, origin in merged.origins.items()} == {
        "store.bucket": "",
        "store.pages": "one.toml",
        "store.strict": "IGGY_SOURCE__STORE__STRICT",
        "store.tls.file": "--set store.tls.file",
    }


def test_tables_are_merged_by_name_and_lists_are_replaced(folder):
    path = folder(
        main='include = ["one.toml"]\n[store]\nbucket = "b"\nglobs = ["x"]\n[store.conf]\na = "1"\nb = "1"\n',
        one='[store]\nglobs = ["y", "z"]\n[store.conf]\nb = "0"\nc.d = "0"\n',
    )
    assert read(path).globs == ("x",)
    assert read(path).conf == {"a": "1", "b": "1", "c.d": "0"}
    settings = ("store.conf.c.d=2", "store.conf.e=${x}=1")
    with pytest.raises(
        ConfigError, match=r"\[store\] conf\.e: .*must be \$\{env:NAME\}.*\(from --set store\.conf\.e\)"
    ):
        read(path, {}, *settings)
    assert read(path, {}, settings[0], "store.conf.e=k=v").conf == {"a": "1", "b": "1", "c.d": "2", "e": "k=v"}
    for text in ('{ "c.d" = "3", f = 4 }', '{ c.d = "3", f = 4 }'):
        environment = {"IGGY_SOURCE__STORE__CONF": text}
        assert read(path, environment).conf == {"a": "1", "b": "1", "c.d": "3", "f": "4"}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9)))))
def test_the_last_layer_with_a_value_gives_it_and_its_origin(layers):
    merged = merge([Layer(origin=str(number), values=values) for number, values in enumerate(layers)])
    for section in "abc":
        for name in "xyz":
            given = [
                (str(n), values[section][name]) for n, values in enumerate(layers) if name in values.get(section, {})
            ]
            if given:
                assert merged.values[section][name] == given[-1][1]
                assert merged.origins[section, name] == given[-1][0]
            else:
                assert (section, name) not in merged.origins


# ---- how a value of a variable or of --set is read


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("bucket", "lake", "lake"),
        ("bucket", "5", "5"),
        ("bucket", '"lake"', '"lake"'),
        ("bucket", "a = b", "a = b"),
        ("style", "path", "path"),
        ("pages", "7", 7),
        ("pages", "1_000", 1000),
        ("wait", "5s", 5.0),
        ("wait", '"5s"', 5.0),
        ("wait", "0.25", 0.25),
        ("late", "forever", float("inf")),
        ("memory", "2MiB", 2 << 20),
        ("memory", "2048", 2048),
        ("strict", "false", False),
        ("since", "2024-05-31", "2024-05-31T00:00:00+00:00"),
        ("since", "now", "now"),
        ("globs", '["a", "b"]', ("a", "b")),
        ("globs", "[]", ()),
        ("conf", '{ a = "b" }', {"a": "b"}),
        ("wait_seconds", "3", 3.0),
    ],
)
@pytest.mark.parametrize("way", ["environment", "set"])
@pytest.mark.filterwarnings("ignore::framework.config.loading.ConfigWarning")
def test_texts_are_literal_and_everything_else_is_toml(folder, way, option, text, value):
    path = folder(main=MAIN)
    if way == "set":
        found = read(path, {}, f"store.{option}={text}")
    else:
        found = read(path, {f"IGGY_SOURCE__STORE__{option.upper()}": text})
    assert getattr(found, option.removesuffix("_seconds")) == value


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("pages", "many", '[store] pages = "many": must be a whole number'),
        ("pages", "1001", "[store] pages = 1001: must be 1 to 1,000"),
        ("pages", "1\nbucket = 5", "must be a whole number"),
        ("pages", "", "must be a whole number"),
        ("bucket", "", '[store] bucket = "": must not be empty'),
        ("strict", "yes", "must be true or false"),
        ("strict", "True", "must be true or false"),
        ("globs", "*.json", "must be a list in square brackets"),
        ("globs", "[1]", "every item must be text in quotes"),
        ("conf", "a=b", "must be a table of texts"),
        ("style", "paht", 'must be "auto" or "path"; did you mean "path"?'),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_origin(folder, option, text, said):
    path = folder(main=MAIN)
    variable = f"IGGY_SOURCE__STORE__{option.upper()}"
    (by_variable,) = mistakes(path, {variable: text})
    (by_set,) = mistakes(path, {}, f"store.{option}={text}")
    assert said in by_variable
    assert by_variable.endswith(f" (from {variable})")
    assert by_set.endswith(f" (from --set store.{option})")


def test_a_variable_is_literal_and_a_file_or_set_may_have_references(folder):
    path = folder(main='[store]\nbucket = "${env:B}"\n')
    environment = {"B": "lake", "IGGY_SOURCE__STORE__PASSWORD": "a${b", "IGGY_SOURCE__STORE__GLOBS": '["${x"]'}
    assert read(path, environment).bucket == "lake"
    assert read(path, environment).password == "a${b"
    assert read(path, environment).globs == ("${x",)
    environment["IGGY_SOURCE__STORE__GLOBS"] = r'["\u0024{env:B}", "$${x"]'
    environment["IGGY_SOURCE__STORE__CONF"] = '{ "${a}" = "${b}" }'
    assert read(path, environment).globs == ("${env:B}", "$${x")
    assert read(path, environment).conf == {"${a}": "${b}"}
    assert read(path, {"B": "x", "C": "y"}, "store.bucket=${env:C}").bucket == "y"


# ---- names that do not exist


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (
            "IGGY_SOURCE__STORE__BUKCET",
            "IGGY_SOURCE__STORE__BUKCET: this environment variable names no option; did you mean IGGY_SOURCE__STORE__BUCKET?",
        ),
        ("IGGY_SOURCE__STORE_BUCKET", "did you mean IGGY_SOURCE__STORE__BUCKET?"),
        ("IGGY_SOURCE__store__bucket", "did you mean IGGY_SOURCE__STORE__BUCKET?"),
        ("IGGY_SOURCE__STORE__TLS__FIEL", "did you mean IGGY_SOURCE__STORE__TLS__FILE?"),
        ("IGGY_SOURCE__QQQQQQQQQQQQQQQQQQQQ", "the form is IGGY_SOURCE__SECTION__OPTION"),
        ("IGGY_SOURCE__QQQQQQQQQ__X", "names no option; known sections are store, store.tls"),
        ("IGGY_SOURCE__", "names no option"),
    ],
)
def test_a_variable_that_names_no_option_is_an_error(folder, variable, said):
    (only,) = mistakes(folder(main=MAIN), {variable: "hunter22"})
    assert said in only
    assert "hunter22" not in only


@pytest.mark.parametrize(
    "variable", ["IGGY_SOURCE_STORE_BUCKET", "IGGY_SOURCE_STORE__BUCKET", "iggy_source__store__bucket"]
)
def test_a_variable_that_differs_from_an_options_in_underscores_or_case_is_an_error(folder, variable):
    assert mistakes(folder(main=MAIN), {variable: "hunter22"}) == [
        f"{variable}: this environment variable names no option; did you mean IGGY_SOURCE__STORE__BUCKET?"
    ]


def test_a_variable_that_resembles_an_options_is_a_warning(folder):
    said = "^IGGY_SOURCE_STORE_BUKCET: .* is ignored; did you mean IGGY_SOURCE__STORE__BUCKET\\?$"
    with pytest.warns(ConfigWarning, match=said):
        assert read(folder(main=MAIN), {"IGGY_SOURCE_STORE_BUKCET": "x"}).bucket == "lake"


@pytest.mark.parametrize("variable", ["IGGY_SOURCE_STORE_BUCKET", "IGGY_SOURCE_STORE_BUKCET"])
def test_a_variable_that_the_configuration_refers_to_is_the_users(folder, variable):
    environment = {variable: "x"}
    assert read(folder(main=f'[store]\nbucket = "${{env:{variable}}}"\n'), environment).bucket == "x"
    assert read(folder(main=MAIN), environment, f"store.globs=['${{env:{variable}}}']").globs == ("x",)
    included = folder(main=f'include = ["one.toml"]\n{MAIN}', one=f"[store.conf]\na = 'x-${{env:{variable}}}'\n")
    assert read(included, environment).conf == {"a": "x-x"}
    overridden = folder(main=f'[store]\nbucket = "${{env:{variable}}}"\n')
    assert read(overridden, {**environment, "IGGY_SOURCE__STORE__BUCKET": "y"}).bucket == "y"


@pytest.mark.parametrize(
    "variable",
    [
        "IGGY_SOURCE",
        "IGGY_SOURCE_CONFIG",
        "IGGY_SOURCE_SERVICE_HOST",
        "IGGY_SOURCE_PORT_8090_TCP_ADDR",
        "XIGGY_SOURCE__STORE__BUCKET",
    ],
)
def test_other_variables_are_none_of_ours(folder, variable):
    assert read(folder(main=MAIN), {variable: "x"}).bucket == "lake"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("store.bukcet=hunter22", "--set store.bukcet: unknown option; did you mean --set store.bucket?"),
        ("bucket=hunter22", "--set bucket: unknown option; did you mean --set store.bucket?"),
        ("zzz=hunter22", "--set zzz: unknown option; the form is --set section.option=value"),
        ("store.bucket", "--set store.bucket: the value is missing: --set section.option=value"),
        ("=hunter22", "--set : unknown option; the form is"),
        ("", "--set : the value is missing"),
        ("store.conf.=hunter22", "--set store.conf.: unknown option"),
        ("store.tls=hunter22", "--set store.tls: unknown option"),
        ("qqqq.zzzzzz=hunter22", "--set qqqq.zzzzzz: unknown option; known sections are store, store.tls"),
        ("store.pages.x=hunter22", "--set store.pages.x: unknown option"),
    ],
)
def test_a_setting_that_names_no_option_is_an_error(folder, setting, said):
    (only,) = mistakes(folder(main=MAIN), {}, setting)
    assert said in only
    assert "hunter22" not in only


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("store.bucket=hunter22\udcff", "store.bucket"),
        ("store.globs=['hunter22\udcff']", "store.globs"),
        ("store.conf.\udcff=hunter22", "store.conf.\udcff"),
        ("store.b\udcff=hunter22", "store.b\udcff"),
    ],
)
def test_what_is_not_utf_8_is_one_mistake(folder, setting, name):
    """As Python takes such bytes from the command line, and from the environment."""
    assert mistakes(folder(main=MAIN), {}, setting) == [
        f"--set {name}: not UTF-8 text; section, option and value must be"
    ]
    variable = "IGGY_SOURCE__STORE__PASSWORD"
    assert mistakes(folder(main=MAIN), {variable: "hunter22\udcff"}) == [
        f"{variable}: the value of this environment variable is not UTF-8 text"
    ]
    (by_reference,) = mistakes(folder(main='[store]\nbucket = "${env:B}"\n'), {"B": "hunter22\udcff"})
    assert "the environment variable B is not UTF-8 text" in by_reference
    assert "hunter22" not in by_reference


def test_mistakes_of_every_layer_come_at_once_and_no_secret_with_them(folder):
    path = folder(main='include = ["one.toml"]\n[store]\nbucket = 5\n', one="[stroe]\nx = 1\n[store]\npags = 7\n")
    found = mistakes(
        path, {"IGGY_SOURCE__STORE__PASSWORD": "", "IGGY_SOURCE__X": "1"}, "store.style=x", "store.password=hunter22"
    )
    assert found == [
        "[stroe]: unknown section; did you mean [store]? (from one.toml)",
        "[store] pags: unknown option; did you mean pages? (from one.toml)",
        "[store] bucket = 5: must be text in quotes",
        '[store] style = "x": must be "auto" or "path" (from --set store.style)',
        "IGGY_SOURCE__X: this environment variable names no option; the form is IGGY_SOURCE__SECTION__OPTION",
    ]


def test_a_contradiction_names_the_origin_of_each_option(folder):
    path = folder(main=f'include = ["one.toml"]\n{MAIN}', one="[store]\npages = 7\n")
    assert mistakes(path, {"IGGY_SOURCE__STORE__STYLE": "path"}) == [
        "[store] style, pages: contradict each other ([store] style from IGGY_SOURCE__STORE__STYLE, [store] pages from one.toml)"
    ]
    assert mistakes(folder(main=f"{MAIN}pages = 8\n"), {"IGGY_SOURCE__STORE__BUCKET": "wrong"}) == [
        '[store] bucket = "wrong": does not fit [store] pages ([store] bucket from IGGY_SOURCE__STORE__BUCKET)'
    ]


def test_a_former_name_gives_way_to_an_override_and_never_to_a_lower_layer(folder):
    path = folder(main=f"{MAIN}wait_seconds = 2\n")
    with pytest.warns(ConfigWarning, match=r"\[store\] wait_seconds: now called wait"):
        assert read(path, {}, "store.wait=9").wait == 9.0
    path = folder(main=f'include = ["one.toml"]\n{MAIN}wait_seconds = 2\n', one="[store]\nwait = 1\n")
    with pytest.warns(ConfigWarning):
        assert read(path).wait == 2.0
    path = folder(main=f'include = ["one.toml"]\n{MAIN}', one="[store]\nwait = 1\nwait_seconds = 2\n")
    assert mistakes(path) == ["[store] wait_seconds: a former name of wait, which is there too (from one.toml)"]


# ---- include


def test_a_file_is_found_beside_the_one_that_includes_it(tmp_path, monkeypatch):
    (tmp_path / "conf" / "deep").mkdir(parents=True)
    (tmp_path / "conf" / "main.toml").write_text(f'include = ["deep/one.toml"]\n{MAIN}')
    (tmp_path / "conf" / "deep" / "one.toml").write_text('include = ["two.toml", "../../three.toml"]\n')
    (tmp_path / "conf" / "deep" / "two.toml").write_text("[store]\npages = 2\nwait = 2\n")
    (tmp_path / "three.toml").write_text("[store]\npages = 3\n")
    monkeypatch.chdir(tmp_path)
    assert (read("conf/main.toml").pages, read("conf/main.toml").wait) == (3, 2.0)


def test_a_file_may_be_included_twice_but_not_by_itself(folder):
    path = folder(
        main='include = ["one.toml", "two.toml"]\n[store]\nbucket = "b"\n',
        one='include = ["two.toml"]\n',
        two="[store]\npages = 2\n",
    )
    assert read(path).pages == 2
    path = folder(two='include = ["sub/../main.toml"]\n')
    (path.parent / "sub").mkdir()
    with pytest.raises(ConfigError, match=r"include: a file must not include itself: .*main\.toml -> .*one\.toml -> "):
        read(path)
    path = folder(main='include = ["main.toml"]\n')
    with pytest.raises(ConfigError, match="must not include itself"):
        read(path)


def test_an_included_link_that_leads_to_itself_is_a_file_that_cannot_be_read(folder):
    path = folder(main=f'include = ["one.toml"]\n{MAIN}')
    (path.parent / "one.toml").symlink_to("one.toml")
    said = "the configuration file cannot be read: Too many levels of symbolic links (included by main.toml)"
    assert mistakes(path) == [said]


def test_files_that_include_each_other_again_and_again_end(folder):
    files = {f"f{n}": f'include = ["f{n + 1}.toml", "f{n + 1}.toml"]\n' for n in range(30)}
    path = folder(main=f'include = ["f0.toml"]\n{MAIN}', f30="", **files)
    assert mistakes(path) == ["include: more than 100 files are included"]


@pytest.mark.parametrize("value", ['"one.toml"', "[5]", '[""]', "{}", '["a\\u0000b"]'])
def test_include_is_a_list_of_files(folder, value):
    (only,) = mistakes(folder(main=f"include = {value}\n{MAIN}"))
    assert only == 'include: must be a list of files above the first section, as in include = ["common.toml"]'


def test_an_include_inside_a_section_is_told_where_it_belongs(folder):
    assert mistakes(folder(main=f'{MAIN}include = ["one.toml"]\n')) == [
        "[store] include: unknown option; to include a file, write include above the first section"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the configuration file cannot be read: No such file or directory (included by main.toml)"),
        ("[store\n", "not valid TOML"),
        ("[store]\npassword = hunter22\n", "not valid TOML"),
    ],
)
def test_an_included_file_that_cannot_be_read_is_named_with_the_file_that_includes_it(folder, text, said):
    path = folder(main=f'include = ["one.toml"]\n{MAIN}', **({"one": text} if text is not None else {}))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert caught.value.origin.endswith("/one.toml")
    assert said in mistakes(path)[0]
    assert mistakes(path)[0].endswith("(included by main.toml)")
    assert "hunter22" not in str(caught.value)


# ---- with a real configuration


def test_every_option_has_a_variable_and_a_setting(tmp_path):
    """A wrong value comes back with the name that gave it, for every option of the S3 source."""
    from framework.config.option import options_of, sections_of

    path = tmp_path / "s3.toml"
    path.write_text("")
    names = [(section, one.name) for section, cls in sections_of(S3SourceConfig).items() for one in options_of(cls)]
    assert len(names) > 100
    environment = {"__".join(("IGGY_SOURCE", *section.split("."), name)).upper(): "\0" for section, name in names}
    settings = [f"{section}.{name}=\0" for section, name in names]
    for overrides in ({"environment": environment}, {"environment": {}, "settings": settings}):
        with pytest.raises(ConfigError) as caught:
            load(path, S3SourceConfig, **overrides)
        text = "\n".join(caught.value.mistakes)
        assert not re.search("names no option|unknown option", text)
    assert "(from --set runner.tasks_max)" in text


def test_of_very_many_unknown_transforms_not_each_is_looked_for(monkeypatch):
    looked = []
    monkeypatch.setattr(plugins, "registered", lambda group: looked.append(group) or ())
    with pytest.raises(ConfigError) as caught:
        structure({"transforms": [{"type": "x"}] * 5000}, S3SourceConfig, environment={})
    assert len(caught.value.mistakes) == 101
    assert len(looked) < 1000


def test_transforms_come_from_the_last_file_that_has_any_and_name_it(tmp_path):
    rest = '[source]\nname = "n"\n[s3]\nbucket = "lake"\n[input]\nformat = "jsonl"\n'
    rest += '[iggy]\nurl = "iggy://a:b@h"\nstream = "s"\ntopic = "t"\n'
    (tmp_path / "common.toml").write_text('[[transforms]]\ntype = "delete_fields"\nfields = ["a"]\n')
    path = tmp_path / "s3.toml"
    path.write_text(f'include = ["common.toml"]\n{rest}')
    assert [entry.type for entry in load_config(path, S3SourceConfig, environment={}).transforms] == ["delete_fields"]
    path.write_text(f'include = ["common.toml"]\n{rest}[[transforms]]\ntype = "json"\n')
    assert [entry.type for entry in load_config(path, S3SourceConfig, environment={}).transforms] == ["json"]
    (tmp_path / "common.toml").write_text('[[transforms]]\ntype = "delete_feilds"\n')
    path.write_text(f'include = ["common.toml"]\n{rest}')
    with pytest.raises(ConfigError, match=r'did you mean "delete_fields"\? \(from .*common\.toml\)'):
        load_config(path, S3SourceConfig, environment={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[store]\nbucket = "a"\nbucket = "b"\n', "bucket stands twice, or is a value and a table"),
        ('[store]\nbucket = "a"\n[store]\npages = 1\n', "the section [store] stands twice"),
        ("[store]\nbucket = “a”\n", 'quotes must be straight: bucket = "..."'),
        ('[store]\nbucket = "hunter22\npages = 1\n', 'the closing quote is missing: bucket = "..."'),
        ('{"store": {"bucket": "hunter22"}}', "this looks like JSON"),
        ("[store]\npages = vier\n", 'a text stands in quotes: pages = "..."'),
    ],
)
def test_the_probable_mistake_of_a_line_is_named(folder, text, said):
    path = folder(main=text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert said in str(caught.value)
    assert "hunter22" not in str(caught.value)
    assert str(caught.value).count(";") == 1


def test_a_list_of_tables_of_another_name_is_told_how_it_is_written(tmp_path):
    path = tmp_path / "main.toml"
    path.write_text('[[transform]]\ntype = "json"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, S3SourceConfig, environment={})
    assert "[transform]: unknown section; did you mean [[transforms]]?" in caught.value.mistakes


def test_a_server_that_is_not_named_is_reported_beside_all_other_mistakes(tmp_path):
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        load_config(path, S3SourceConfig, environment={})
    missing = "[iggy] url: missing; give url, or address with username and password, or address with token"
    assert missing in caught.value.mistakes
    path.write_text('[iggy]\nusername = "ann"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, S3SourceConfig, environment={})
    assert {missing, "[iggy] password: missing; username and password belong together"} <= {*caught.value.mistakes}
    path.write_text(
        '[source]\nname = "a"\n[s3]\nbucket = "lake"\n[input]\nformat = "text"\n[iggy]\nstream = "a"\ntopic = "b"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path, S3SourceConfig, environment={})
    assert caught.value.mistakes == (missing,)


@pytest.mark.parametrize(
    ("place", "setting"),
    [("[naming] template", 'naming.template="in/{topic}/{{key}}"'), ("[iggy] topic", "iggy.topic=all-{topic}")],
)
def test_a_placeholder_with_single_braces_is_refused(tmp_path, place, setting):
    """It is literal: no key matches it, or a topic of that name is made."""
    path = tmp_path / "main.toml"
    path.write_text(
        '[source]\nname = "a"\n[s3]\nbucket = "lake"\n[input]\nformat = "text"\n'
        '[iggy]\nurl = "embedded:x"\nstream = "a"\ntopic = "b"\n'
    )
    with pytest.raises(ConfigError, match=r"a placeholder has two braces on each side: \{\{topic\}\}") as caught:
        load_config(path, S3SourceConfig, environment={}, settings=[setting.replace('"', "")])
    assert caught.value.mistakes[0].startswith(place)


@pytest.mark.parametrize("endless", [True, False])
def test_a_file_without_end_is_no_configuration(tmp_path, endless):
    """A worker reads included files itself: one without end would take its memory."""
    long = tmp_path / "long.toml"
    long.write_text("#" * (MAX_BYTES + 1))
    path = tmp_path / "main.toml"
    path.write_text(f'include = ["{"/dev/zero" if endless else "long.toml"}"]\n')
    with pytest.raises(ConfigError, match="longer than 1 MiB"):
        file_layers(path)
    long.write_text("#" * MAX_BYTES)
    assert file_layers(long)
