"""The limit of open files: raised as far as the system allows, and never lowered."""

import resource

import pytest

from framework.model.open_files import WANTED, allow_open_files

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 524_288, WANTED),
        (1024, 4096, 4096),
        (1024, NO_LIMIT, WANTED),
        (100_000, 524_288, 100_000),
        (NO_LIMIT, NO_LIMIT, NO_LIMIT),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows(monkeypatch, soft, hard, then):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _what: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _what, new: limits.append(new))
    allow_open_files()
    assert limits[-1] == (then, hard)
