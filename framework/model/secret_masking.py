"""Secrets of texts that others wrote: an answer of a server, an error of a library.

No configuration names these: keys of a role, tokens, signatures. They are known by the name before them, or by their form.
"""

from __future__ import annotations

import re
from urllib.parse import unquote
from urllib.request import getproxies

MASK = "***"

# Each pattern looks at a character a bounded number of times, whatever a server writes: what repeats has a limit, or cannot
# be taken in two ways. Quotes may be escaped, as in a string of JSON or in the repr of bytes; what a quote, an element or a
# key begins may be cut: then its end is the text's.
_NAME = r"(?:secret|token|passw(?:or)?d|pwd|private_?key|signature|assertion)"
_VALUE = (
    r"(?:[bru]{0,2}(?P<mark>\\{0,8}[\"'])(?:(?!(?P=mark))(?:\\.|[^\n]))*"  # quoted
    r"|(?:(?:Bearer|Basic|AWS4-HMAC-SHA256)\s{1,9})?[^\s&\"',;<>)}\]]+)"
)

_PRIVATE_KEY = re.compile(r"(?s)-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)")
_ELEMENT = re.compile(
    rf"(?i)({_NAME}[\w.-]{{0,40}}(?:\s[^<>]{{0,100}})?(?:>|&gt;)\s*(?:<!\[CDATA\[)?)[^<&\s][^<&]*"  # <SecretAccessKey>...
)
_FIELD = re.compile(
    rf"(?i)({_NAME}[\w.-]{{0,40}}\\{{0,8}}[\"']\s{{0,9}}[:=][\[({{\s]{{0,20}}){_VALUE}"  # "access_token": "..."
)
_PARAMETER = re.compile(
    r"(?i)((?:x-(?:amz|goog)-(?:credential|signature)|signature|(?<![a-z])(?:access|id|refresh|session|security|subject|auth)[_-]?token"
    r"|-token|token(?=\s?=)|(?<![a-z])sig(?==)|passw(?:or)?d|(?<![a-z])pwd|secret[\w-]{0,40}|(?:client_)?assertion|private_?key"
    rf"|(?<![a-z])api[_-]?key|authorization)(?:[\"']|%22)?\s{{0,9}}(?:[=:]|%3[AD])\s{{0,9}}){_VALUE}"  # access_token=...
)
_BEARER = re.compile(r"(?i)(\bbearer\s{1,9})[\w.~+/=-]{16,}")
_LOGIN = re.compile(r"://[^/?#\s]{1,1000}@")
# AWS access key ids, Google's tokens, JSON web tokens, AWS secret keys, and long base64: nothing that is a path.
_MIXED = r"(?=\S{0,39}[a-z])(?=\S{0,39}[A-Z])(?=\S{0,39}[0-9])"
_FORMS = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bya29\.[\w.-]+|(?<![\w-])eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)+"
    rf"|(?<![\w+/.-]){_MIXED}[A-Za-z0-9+/]{{40}}(?![\w+/=-])"
    rf"|(?<![\w+/-]){_MIXED}[A-Za-z0-9+/_-]{{100,}}={{0,2}}"
)


_SHORTEST_PART = 4
"""Shorter parts of a login are not masked by themselves: masking every `a` would make a sentence unreadable."""


def login_secrets(address: str) -> tuple[str, ...]:
    """Return what no text may show of an address with a login: itself, login and password, as written and decoded.

    The longest is first. An address without a login has none. It may be none that a library understands.
    """
    before, at, _ = address.rpartition("@")
    if not at:
        return ()
    scheme, mark, rest = before.partition("://")
    login = rest if mark else scheme
    parts = {address, login, login.partition(":")[2]}
    parts |= {unquote(part) for part in parts}
    return tuple(sorted((part for part in parts if len(part) >= _SHORTEST_PART), key=len, reverse=True))


def environment_login_secrets() -> tuple[str, ...]:
    """Return what no text may show of the proxies of the environment: any library may use any of them."""
    return tuple(secret for address in getproxies().values() for secret in login_secrets(address))


def without_login(text: str, address: str) -> str:
    """Return a text without an address that has a login, and without its login."""
    for secret in login_secrets(address):
        text = text.replace(secret, MASK)
    return text


def without_secrets(text: str) -> str:
    """Return a foreign text with keys, tokens, passwords, signatures and logins masked; addresses stay otherwise."""
    text = _PRIVATE_KEY.sub(MASK, text)
    for named in (_ELEMENT, _FIELD, _PARAMETER, _BEARER):
        text = named.sub(rf"\g<1>{MASK}", text)
    return _FORMS.sub(MASK, _LOGIN.sub(f"://{MASK}@", text))
