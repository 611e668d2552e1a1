"""The short way to Google: the connections of the library's session, without what it does again for each request.

requests looks up proxies, netrc and certificates in the environment, parses the address three times and copies headers,
cookies and hooks, with the same outcome for each request to one host: about as much CPU as the rest of a small object. So
the client asks the session for all that once, when a store is made; its connection pool and its headers then serve every
request. Tokens stay google-auth's. No vendor library in here: the pool is urllib3's, handed over by the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import attrs

_OF_ONE_REQUEST = frozenset(("accept-encoding", "authorization", "range"))

REDIRECTS = frozenset((301, 302, 303, 307, 308))
_REFUSED = 401

RENEWALS = 2
"""How often a token that is refused is renewed within one request: as often as google-auth does."""


class Tokens(Protocol):
    """google-auth's credentials, and what they make requests of their own with."""

    def add(self, url: str, headers: dict[str, str]) -> None:
        """Adds a token that has not expired, made or renewed when there is none."""

    def renew(self, refused: str) -> None:
        """Gets a new one, whatever the old one says of itself; unless another thread has got one meanwhile.

        Args:
            refused: the header `authorization` that was refused.
        """


@attrs.frozen(kw_only=True)
class ShortWay:
    """Requests to one host.

    Attributes:
        pool: urllib3's connections to the host, or to the proxy before it.
        whole_address: whether the request line has the whole address, as a proxy wants it.
        headers: those of every request.
        tokens: of the identity.
        timeout: urllib3's, to connect and to read.
    """

    pool: Any
    whole_address: bool
    headers: Mapping[str, str] = attrs.field(repr=False)
    tokens: Tokens
    timeout: Any

    def get(self, address: str, asked: Mapping[str, str], headers: Mapping[str, str]) -> Any:
        """urllib3's answer with its body unread, a redirect too.

        A token that is refused is renewed, and the request made again. Raises whatever urllib3 and google-auth do.

        Args:
            address: with its scheme, quoted, without a query.
            asked: the query.
            headers: those of this request.
        """
        url = f"{address}?{urlencode(asked)}"
        answer, token = self._send(url, headers)
        for _ in range(RENEWALS):
            if answer.status != _REFUSED:
                break
            give_back(answer)
            self.tokens.renew(token)
            answer, token = self._send(url, headers)
        return answer

    def close(self) -> None:
        """Closes the connections that are idle; the others when they are given back. The session knows the pool no longer."""
        self.pool.close()

    def _send(self, url: str, headers: Mapping[str, str]) -> tuple[Any, str]:
        sent = {**self.headers, **headers}
        self.tokens.add(url, sent)
        answer = self.pool.urlopen(
            "GET",
            url if self.whole_address else url[url.index("/", url.index("//") + 2) :],
            headers=sent,
            timeout=self.timeout,
            retries=False,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
        )
        return answer, sent.get("authorization", "")


def give_back(answer: Any) -> None:
    """Reads a short answer off, so that its connection can serve again."""
    answer.drain_conn()
    answer.release_conn()


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Of the session's headers those that every request has."""
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_REQUEST}
