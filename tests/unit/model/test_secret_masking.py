"""Secrets in texts that a server or a library wrote."""

from __future__ import annotations

import json

import pytest

from framework.model.secret_masking import without_secrets
from framework.storage.error_messages import redact
from tests.support.stopwatch import Stopwatch

KEY = "sYLRKS1Z7hSjluf6gEbb9066hnx315wHTiACPAjg"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIhunter22\nMIIhunter22hunter22==\n-----END RSA PRIVATE KEY-----\n"
STS = (
    '<?xml version="1.0"?>\n<AssumeRoleResult><Credentials><AccessKeyId>Y4RJ</AccessKeyId><SecretAccessKey>'
    f"{KEY}</SecretAccessKey><SessionToken>hunter22==</SessionToken></Credentials></AssumeRoleResult>"
)
AGENT = {"AccessKeyId": "Y4RJ", "SecretAccessKey": KEY, "Token": "hunter22", "Expiration": "2099-01-01T00:00:00Z"}
OAUTH = {"access_token": "hunter22", "id_token": "hunter22", "refresh_token": "hunter22", "scope": ["a b"]}
ANSWERS = [STS, json.dumps(AGENT), json.dumps(OAUTH), json.dumps(OAUTH, indent=1), json.dumps({"private_key": PEM})]


def _forms(answer):
    yield answer
    yield repr(answer.encode())
    yield repr(answer.encode() + b"'\"")  # with both quotes, one is escaped
    yield json.dumps({"error": answer})
    yield answer.replace("<", "&lt;").replace(">", "&gt;")


@pytest.mark.parametrize("mask", [without_secrets, redact])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_gives_credentials_out_shows_none_wherever_it_is_cut(answer, mask):
    checked = 0
    for whole in _forms(answer):
        for end in range(len(whole) + 1):
            shown = mask(f"Unable to parse: {whole[:end]}")
            assert "hunter" not in shown
            assert KEY[:4] not in shown
            checked += 1
    assert checked > len(answer)


@pytest.mark.parametrize(
    "text",
    [
        "grant_type=x&client_secret=hunter22&assertion=y",
        "{'Authorization': 'Bearer hunter22'}",
        "Authorization: Basic hunter22",
        "X-aws-ec2-metadata-token: hunter22",
        "{'token': b'hunter22'}",
        '{"token": ["hunter22"]}',
        r'{"password": "a\"hunter22"}',
        "<ns:SessionToken><![CDATA[hunter22]]></ns:SessionToken>",
        "iggy://ann:hunter22@h:1 refused",
        PEM,
        "eyJhbGciOiJIUzUxMiJ9.hunter22.hunter22",
        "secret-access-key=hunter22",
        "client_assertion=hunter22",
        "?sig=hunter22",
        "X-Goog-Signature=hunter22",
        "x-api-key: hunter22",
        "sent with bearer hunter22hunter22",
        "client_secret%3Dhunter22",
        f"key=hunter22{KEY}"[:44],
        "<SessionToken>\nA\nhunter22</SessionToken>",
        PEM.replace("\n", "\nProc-Type: 4,ENCRYPTED\n\n", 1),
        repr(PEM.splitlines()),
    ],
)
def test_a_secret_is_known_by_the_name_before_it_or_by_its_form(text):
    assert "hunter22" not in without_secrets(f"before {text}")
    assert without_secrets(f"before {text}").startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "InvalidToken: The security token included in the request is invalid",
        "NoAuthTokenError: Error loading SSO Token: Token for s does not exist",
        "RefreshError: ('Unable to acquire impersonated credentials', 'no')",
        "the provided token has expired (ExpiredToken, HTTP 400)",
        'File "/usr/lib/python3/dist-packages/botocore/credentials.py", line 41, in refresh',
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "<Code>ExpiredToken</Code><Message>The token has expired</Message>",
        f"s3://logs/{'region=eu-central-1/' * 8}part-00000.snappy.parquet",
        f'File "/home/user/{"a_long_folder_name/" * 8}module.py", line 3',
        "https://store.example:9000?prefix=a@b",
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "part", ["token", "secret ", "token'", "token>", "://", "a", "eyJ-", "ya29.", "token='\\", "A1a+"]
)
def test_a_long_text_costs_no_more_than_its_length(part):
    watch = Stopwatch()
    without_secrets(part * (262_144 // len(part)))
    assert watch.seconds < 2


@pytest.mark.parametrize(
    "text",
    [
        f'"token":{" " * 262_144}}}',
        f'token":{chr(92) * 131_072}"{chr(92) * 131_072}',
        "-eyJéééééééé" * 20_000,
        f"secret ={' ' * 262_144}}}",
        f"token>{' ' * 262_144}<",
        "-----BEGIN PRIVATE KEY-----" * 10_000,
    ],
)
def test_so_does_one_in_which_something_repeats_without_end(text):
    watch = Stopwatch()
    without_secrets(text)
    assert watch.seconds < 2
