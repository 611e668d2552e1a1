"""What boto3 finds out for a store."""

import gzip
from pathlib import Path

import botocore
import pytest
from botocore.loaders import JSONFileLoader

from s3_source import session

DATA = Path(botocore.__file__).parent / "data"


@pytest.mark.parametrize("name", ["endpoints", "partitions", "s3/2006-03-01/service-2", "sts/2011-06-15/service-2"])
def test_descriptions_are_those_that_botocore_reads(name):
    path = str(DATA / name)
    assert session._Descriptions().exists(path)
    found = session._Descriptions().load_file(path)
    assert found == JSONFileLoader().load_file(path)
    assert type(found) is dict


def test_descriptions_plain_packed_or_missing(tmp_path):
    (tmp_path / "plain.json").write_bytes(b'{"of": "plain"}')
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(b'{"of": "packed"}'))
    for name, found in (("plain", {"of": "plain"}), ("packed", {"of": "packed"}), ("missing", None)):
        path = str(tmp_path / name)
        assert session._Descriptions().load_file(path) == found
        assert session._Descriptions().exists(path) is (found is not None)


def test_a_damaged_description_is_an_error(tmp_path):
    (tmp_path / "damaged.json").write_bytes(b"{")
    with pytest.raises(ValueError, match=r"EOF|unexpected end"):
        session._Descriptions().load_file(str(tmp_path / "damaged"))


def test_the_loader_reads_them():
    session._loader.cache_clear()
    loader = session._loader(None)
    assert isinstance(loader.file_loader, session._Descriptions)
    assert session._loader(None) is loader
