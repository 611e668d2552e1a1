"""What a listing repeats of its request, in the forms that stores write; and answers to other requests."""

from urllib.parse import quote, quote_plus

import pytest

from framework.errors import StoreUnavailableError
from s3_source.repeated_fields import Repeats

ASKED = {"prefix": "a b/é+%/", "after": "", "continuation": None}
TOKEN = "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM="


@pytest.mark.parametrize("form", [str, quote, lambda text: quote(text, safe=""), quote_plus, lambda _: ""])
def test_what_was_asked_for_is_known_in_every_form(form):
    check = Repeats("b").check
    check({"Name": "b", "Prefix": form(ASKED["prefix"])}, **ASKED)
    check({"StartAfter": form("a b/é+%/k\n+")}, **{**ASKED, "after": "a b/é+%/k\n+"})
    check({"ContinuationToken": form(TOKEN)}, **{**ASKED, "continuation": TOKEN})


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, {}),
        ({"Prefix": "a\ufffdb"}, {"prefix": "a\x01b"}),
        ({"StartAfter": "a\n"}, {"after": "a\r"}),
        ({"Prefix": "p"}, {"prefix": "/p"}),
        ({"ContinuationToken": TOKEN, "StartAfter": "k"}, {"continuation": TOKEN}),
        ({"StartAfter": TOKEN}, {"continuation": TOKEN}),
        ({"ContinuationToken": "k"}, {"after": "k"}),
        ({"Name": "the-bucket-behind-an-access-point"}, {}),
    ],
)
def test_what_stores_change_or_leave_out_proves_nothing(fields, more):
    Repeats("b").check(fields, **{**ASKED, "prefix": "", **more})


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({"Prefix": "p"}, {}),
        ({"Prefix": "p/"}, {"prefix": "p"}),
        ({"StartAfter": "k"}, {}),
        ({"StartAfter": "k"}, {"after": "l"}),
        ({"StartAfter": "k"}, {"continuation": TOKEN}),
        ({"ContinuationToken": "t"}, {}),
        ({"ContinuationToken": "t"}, {"continuation": TOKEN}),
        ({"ContinuationToken": "t"}, {"after": "k"}),
    ],
)
def test_the_answer_to_another_request_is_an_error_that_is_tried_again(fields, more):
    with pytest.raises(StoreUnavailableError, match=rf"s3://b: .* another request, with {next(iter(fields))} "):
        Repeats("b").check(fields, **{**ASKED, "prefix": "", **more})


def test_another_bucket_is_told_once_the_store_has_shown_this_one():
    check = Repeats("b").check
    check({"Name": "other"}, **ASKED)
    check({"Name": "b"}, **ASKED)
    check({}, **ASKED)
    with pytest.raises(StoreUnavailableError, match="with Name 'other' in place of 'b'"):
        check({"Name": "other"}, **ASKED)
