"""What differs from store to store when it is broken: what its requests look like, how it refuses, which faults it has.

Each store has a proxy that stands between it and the source. What a server for tests cannot do, the proxy does: refuse, be
silent, forget tokens, list in the wrong order.
"""

import json
import re
from collections import Counter
from urllib.parse import quote

from framework.testing.faults import Fault, FaultProxy

LATE_SECONDS = 0.4

AWAY_CALLS = 40
"""So many are refused in a row: several times the tries of one call, so that listings and reads end and begin again."""

KINDS = (
    "503",
    "500",
    "429",
    "refused",
    "reset",
    "slow",
    "cut short",
    "announces more",
    "announces less",
    "listing 503",
    "listing cut short",
    "page repeated",
    "page out of order",
    "overwritten before",
    "overwritten amid",
    "deleted before",
    "deleted amid",
    "404 of an ingress",
    "403 of a firewall",
    "502 of a load balancer",
    "not found though there",
    "asks for a minute",
    "without a length",
    "listing 404 of an ingress",
    "away for minutes",
)
"""Of every store."""


class StoreProxy(FaultProxy):
    """Forwards, breaks, and counts what it broke; and calls a hook before the n-th request under a path that a pattern finds.

    Attributes:
        struck: how often it broke something since it was last calm.
        section: of the configuration.
        kinds: of faults.
        listing: finds the requests for pages of a listing.
        reading: finds those for the bytes of any object.
    """

    section = ""
    kinds = KINDS
    listing = ""
    reading = ""

    def __init__(self, target):
        self.struck = 0
        self._to_strike = {}
        self._hooks = []
        super().__init__(target)

    def hook(self, pattern, hook, *, at=1):
        """From now on; counting begins here. Listings and lookups can be hooked, too, and queries tell paths apart."""
        self._hooks.append((re.compile(pattern), hook, at, Counter()))

    def note(self, request):
        rule = super().note(request)
        if rule is not None:
            self._strikes(rule.fault)
        for pattern, hook, at, asked in list(self._hooks) if request.method == "GET" else ():
            if pattern.search(request.path):
                asked[request.path] += 1
                if asked[request.path] == at:
                    hook(request.path)
        return rule

    @property
    def struck_all(self):
        """Whether everything struck that was armed: an overwriting amid a download needs the download to break off, too."""
        return self.struck > 0 and not self._to_strike

    def calm(self):
        """No faults any more; whether all of them have struck."""
        struck_all, self.struck = self.struck_all, 0
        self.clear()
        self._hooks.clear()
        self._to_strike.clear()
        return struck_all

    def options(self, folder):
        """The options of a source that comes this way."""
        return {"endpoint": self.endpoint}

    def reading_of(self, key):
        """Finds the requests for the bytes of one object."""
        raise NotImplementedError

    def refusal(self, status):
        """How the store says 429, 500, 503: body and headers."""
        raise NotImplementedError

    def turned(self, page):
        """A page of a listing, its keys in the opposite order."""
        raise NotImplementedError

    def arm(self, chain, kind, key, change, size):
        """Makes a fault strike an object to come.

        Args:
            chain: whose dice decide.
            kind: one of `kinds`.
            key: of the object.
            change: called with "put" or "delete" at the worst moment.
            size: of the object: what is cut is cut inside it.
        """
        dice, path = chain.dice, self.reading_of(key)
        at = dice.randrange(50, min(size, 15_000 if chain.ledger.split_size else 40_000))
        listing = dict(method="GET", path=self.listing, skip=dice.randrange(3))  # noqa: C408
        times = dice.randrange(1, 4)
        reading = dict(method="GET", path=path, times=times)  # noqa: C408
        cut = Fault(method="GET", path=path, cut_at=at)
        faults = {
            "503": [Fault(**reading, **self.refusal(503))],
            "500": [Fault(**reading, **self.refusal(500))],
            "429": [Fault(**reading, **self.refusal(429))],
            "refused": [Fault(**reading, refuse=True)],
            "reset": [Fault(**reading, reset_at=at)],
            "slow": [Fault(**reading, delay_seconds=LATE_SECONDS)],
            "cut short": [Fault(**reading, cut_at=at)],
            "announces more": [Fault(**reading, longer_by=dice.randrange(1, 5000))],
            "announces less": [Fault(**reading, longer_by=-dice.randrange(1, 500))],
            "listing 503": [Fault(**listing, times=times, **self.refusal(503))],
            "listing cut short": [Fault(**listing, times=times, cut_at=dice.randrange(20, 1500))],
            "page repeated": [Fault(**listing, times=2, repeat=True)],
            "page out of order": [Fault(**listing, times=times, change=self.turned, drop_request=("accept-encoding",))],
            "overwritten amid": [cut],
            "deleted amid": [cut],
            "404 of an ingress": [Fault(**reading, status=404, body=b"404 page not found\n")],
            "403 of a firewall": [Fault(**reading, status=403, body=b"<html><h1>Request blocked</h1></html>")],
            "502 of a load balancer": [Fault(**reading, status=502)],
            "not found though there": [Fault(**reading, **self.refusal(404))],
            "asks for a minute": [Fault(**reading, **self.refusal(503) | {"headers": {"Retry-After": "60"}})],
            "without a length": [Fault(**reading, drop=("content-length",))],
            "listing 404 of an ingress": [Fault(**listing, times=times, status=404, body=b"404 page not found\n")],
            "away for minutes": [Fault(method="GET", times=AWAY_CALLS, **self.refusal(503))],
            **self.own_faults(dice, cut, times, key),
        }
        for fault in faults.get(kind, ()):
            self._to_strike[id(fault)] = fault
            self.add(fault)
        if kind.startswith(("overwritten", "deleted")):
            what = "put" if kind.startswith("overwritten") else "delete"
            self._at(path, lambda: change(what), at=2 if "amid" in kind else 1)

    def own_faults(self, dice, cut, times, key):
        """Kind -> faults, of kinds that only this store has. What is `cut` comes before what follows it."""
        return {}

    def _at(self, path, act, at):
        def strike(_path):
            self._strikes(act)
            act()

        self._to_strike[id(act)] = act
        self.hook(path, strike, at=at)

    def _strikes(self, what):
        self.struck += 1
        self._to_strike.pop(id(what), None)


class S3Proxy(StoreProxy):
    """Before a store that speaks S3."""

    section = "s3"
    listing = "list-type=2"
    reading = "/in/"

    def reading_of(self, key):
        return rf"^[^?]*/{re.escape(key.rpartition('/')[2])}"

    def refusal(self, status):
        code = {404: "NoSuchKey", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}[status]
        return {"status": status, "body": f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()}

    def turned(self, page):
        found = re.findall(rb"<Contents>.*?</Contents>", page, re.DOTALL)
        if not found:
            return page
        begin, end = page.index(found[0]), page.rindex(found[-1]) + len(found[-1])
        return page[:begin] + b"".join(reversed(found)) + page[end:]


class GcsProxy(StoreProxy):
    """Before a server that speaks GCS. It also gives out the tokens of a service account, and knows which of them hold."""

    section = "gcs"
    kinds = (
        *KINDS,
        "listing 429",
        "401 before",
        "401 amid",
        "401 while listing",
        "401, no token at once",
        "412 on a range",
        "416 on a range",
        "another generation",
        "overwritten amid, then refused",
        "overwritten amid, then deleted",
    )
    listing = r"/o\?"
    reading = "/download/"

    def __init__(self, target):
        self._holds = 1
        super().__init__(target)

    def usual(self, request):
        given = request.headers.get("authorization")
        if request.path == "/token":
            token = {"access_token": f"t{self._holds}", "expires_in": 3600, "token_type": "Bearer"}
            return Fault(status=200, body=json.dumps(token).encode(), headers={"Content-Type": "application/json"})
        if given is not None and given != f"Bearer t{self._holds}":
            return Fault(**self.refusal(401))
        return Fault()

    def revoke(self):
        """The tokens that were given out hold no more."""
        self._holds += 1

    def options(self, folder):
        file = folder / "account.json"
        account = {"type": "service_account", "project_id": "tests", "private_key_id": "1", "private_key": _a_key()}
        account |= {"client_email": "reader@tests.iam.gserviceaccount.com", "token_uri": f"{self.endpoint}/token"}
        file.write_text(json.dumps(account))
        return {"endpoint": self.endpoint, "anonymous": False, "credentials_file": str(file)}

    def reading_of(self, key):
        return rf"/download/.*%2F{re.escape(quote(key.rpartition('/')[2], safe=''))}\?"

    def description_of(self, key):
        """Finds the requests that ask what is there now, in place of a generation that is gone."""
        return rf"/o/.*%2F{re.escape(quote(key.rpartition('/')[2], safe=''))}\?fields"

    def refusal(self, status):
        reason = {
            401: "authError",
            404: "notFound",
            412: "conditionNotMet",
            416: "requestedRangeNotSatisfiable",
            429: "rateLimitExceeded",
            500: "backendError",
            503: "backendError",
        }[status]
        error = {"code": status, "message": "No.", "errors": [{"reason": reason, "message": "No."}]}
        return {
            "status": status,
            "body": json.dumps({"error": error}).encode(),
            "headers": {"Content-Type": "application/json"},
        }

    def turned(self, page):
        told = json.loads(page)
        told["items"] = told.get("items", [])[::-1]
        return json.dumps(told).encode()

    def own_faults(self, dice, cut, times, key):
        on_a_range = dict(method="GET", path=cut.path)  # noqa: C408
        return {
            "listing 429": [
                Fault(method="GET", path=self.listing, skip=dice.randrange(3), times=times, **self.refusal(429))
            ],
            "401 amid": [cut],
            "401, no token at once": [cut, Fault(method="POST", path="^/token", times=times, **self.refusal(503))],
            "412 on a range": [cut, Fault(**on_a_range, **self.refusal(412))],
            "416 on a range": [cut, Fault(**on_a_range, **self.refusal(416))],
            "another generation": [cut, Fault(**on_a_range, headers={"x-goog-generation": "42"})],
            "overwritten amid, then refused": [
                cut,
                Fault(method="GET", path=self.description_of(key), times=times, **self.refusal(503)),
            ],
            "overwritten amid, then deleted": [cut],
        }

    def arm(self, chain, kind, key, change, size):
        super().arm(chain, kind, key, change, size)
        path = self.reading_of(key)
        if kind == "401 while listing":
            self._at(self.listing, self.revoke, at=1)
        elif kind.startswith("401"):
            self._at(path, self.revoke, at=1 if kind == "401 before" else 2)
        elif kind == "overwritten amid, then deleted":
            self._at(self.description_of(key), lambda: change("delete"), at=1)


def _a_key():
    """A private key that nobody else has, in PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


PROXIES = {proxy.section: proxy for proxy in (S3Proxy, GcsProxy)}
