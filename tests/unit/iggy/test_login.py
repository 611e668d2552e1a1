"""`[iggy] username` and `password` beside `url`, and what messages show of them."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.loading import structure
from framework.errors import ConfigError
from s3_source.task import S3SourceConfig

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def read(environment=None, **iggy):
    iggy = {"url": "iggy://h:1", "stream": "s", "topic": "t", **iggy}
    sections = {"source": {"name": "n"}, "s3": {"bucket": "lake"}, "input": {"format": "jsonl"}, "iggy": iggy}
    return structure(sections, S3SourceConfig, environment=environment or {}).iggy


def mistake(environment=None, **iggy):
    with pytest.raises(ConfigError) as caught:
        read(environment, **iggy)
    return str(caught.value)


@given(text, text)
def test_both_are_taken_as_they_are(username, password):
    address = read(username=username, password=password).address()
    assert (address.user, address.password, address.host, address.port) == (username, password, "h", 1)


def test_a_password_of_the_environment_needs_no_encoding():
    iggy = read({"P": "p@ss/w:rd%41?#"}, url="iggy+tls://h:1?tls_domain=x", username="ann", password="${env:P}")
    assert iggy.address().password == "p@ss/w:rd%41?#"
    assert (iggy.address().tls, iggy.address().tls_domain) == (True, "x")
    assert "p@ss" not in repr(iggy)
    assert "p@ss" not in repr(attrs.evolve(iggy, stream="other"))


@pytest.mark.parametrize(
    ("iggy", "sentence"),
    [
        ({"username": "ann"}, "username and password belong together"),
        ({"password": "hunter22"}, "username and password belong together"),
        ({"username": "a", "password": "hunter22", "url": "iggy://b:c@h"}, "leave one of the two out"),
        ({"username": "a", "password": "hunter22", "url": "iggy://h?token=x"}, "leave one of the two out"),
        ({"username": "a", "password": "hunter22", "url": "embedded:./x"}, "takes no username"),
        ({"username": "a", "password": "hunter22", "url": "iggy://h:port"}, "the port is a number"),
    ],
    ids=str,
)
def test_mistakes(iggy, sentence):
    said = mistake(**iggy)
    assert said.startswith("[iggy] url: ")
    assert sentence in said
    assert "hunter22" not in said


@pytest.mark.parametrize("password", ["iggy", "topic", "user", "address", "password"])
def test_a_password_that_is_an_ordinary_word_blacks_out_no_names(password):
    """Masked, `[***] topik` would tell the reader what the password is."""
    said = mistake({"P": password}, url="iggy://iggy:${env:P}@h:1", topik="x")
    assert said == "[iggy] topik: unknown option; did you mean topic?"
    said = mistake({"P": password}, url="iggy://iggy:${env:P}@:1")
    assert said == "[iggy] url: the host is missing"


def test_an_address_without_a_secret_is_shown():
    assert mistake(url="embedded:") == (
        "[iggy] url: embedded: needs the path of a data folder, as in embedded:./iggy-data"
    )


def test_any_other_secret_is_masked():
    assert "hunter22" not in mistake({"P": "hunter22"}, url="iggy://hunter22:${env:P}@h:1?hunter22=1")
