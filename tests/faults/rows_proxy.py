"""Rows in which connections break: between source and Iggy, between source and store, both, and a kill on top."""

import re

from framework.testing.faults import Fault
from tests.faults.chain import len_of
from tests.faults.rows_kill import finish, rounds_of
from tests.integration.program_rig import HookProxy
from tests.support.iggy_proxy import KINDS, IggyProxy, WireFault

VERIFY_EVERY = 10
REQUEST_SECONDS = 0.7
"""The source's patience with Iggy in these rows; what is late is twice as late."""

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
BROKEN = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"

STORE_KINDS = (
    "503",
    "500",
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
)


class StoreProxy(HookProxy):
    """Forwards, breaks, and counts what it broke."""

    struck = 0

    def note(self, request):
        rule = super().note(request)
        self.struck += rule is not None
        return rule

    def calm(self):
        """No faults any more; how often they struck since the last time."""
        struck, self.struck = self.struck, 0
        self.clear()
        self.unhook()
        return struck


def store_kinds(chain):
    """Those that the chain's source can go on after: mode `after` refuses a store that was once seen without an order."""
    return [kind for kind in STORE_KINDS if kind != "page out of order" or chain.mode == "list"]


def turned(page):
    """A page of a listing, its keys in the opposite order."""
    found = re.findall(rb"<Contents>.*?</Contents>", page, re.DOTALL)
    if not found:
        return page
    begin, end = page.index(found[0]), page.rindex(found[-1]) + len(found[-1])
    return page[:begin] + b"".join(reversed(found)) + page[end:]


def wire_fault(chain):
    """Any of them, in any of the requests that the open records will take."""
    dice = chain.dice
    kind = dice.choice(KINDS)
    sends = dice.random() < 0.75
    requests = 2 + chain.open_records() // chain.batch_length
    return WireFault(
        kind=kind,
        skip=dice.randrange(min(requests, 40)),
        sends_only=sends,
        part=dice.choice((0.001, 0.5, 0.999, dice.random())),
        seconds=2 * REQUEST_SECONDS,
        reset=dice.random() < 0.5,
    )


def arm_store(chain, proxy, kind):
    """Arms a fault for an object to come, and puts that object."""
    dice, ledger = chain.dice, chain.ledger
    key, form = chain.large()
    path = rf"/{re.escape(key.rpartition('/')[2])}"
    listing = dict(method="GET", path="list-type=2", skip=dice.randrange(3))  # noqa: C408
    at = dice.randrange(50, 15_000 if ledger.split_size else 40_000)
    times = dice.randrange(1, 4)
    reading = dict(method="GET", path=path, times=times)  # noqa: C408
    # Signed for the proxy and small: this body is what the store answers, and the proxy changes it.
    faults = {
        "503": Fault(**reading, status=503, body=BUSY),
        "500": Fault(**reading, status=500, body=BROKEN),
        "refused": Fault(**reading, refuse=True),
        "reset": Fault(**reading, reset_at=at),
        "slow": Fault(**reading, delay_seconds=0.4),
        "cut short": Fault(**reading, cut_at=at),
        "announces more": Fault(**reading, longer_by=dice.randrange(1, 5000)),
        "announces less": Fault(**reading, longer_by=-dice.randrange(1, 500)),
        "listing 503": Fault(**listing, times=times, status=503, body=BUSY),
        "listing cut short": Fault(**listing, times=times, cut_at=dice.randrange(20, 1500)),
        "page repeated": Fault(**listing, times=2, repeat=True),
        "page out of order": Fault(**listing, times=times, change=turned),
        "overwritten amid": Fault(method="GET", path=path, cut_at=at),
        "deleted amid": Fault(method="GET", path=path, cut_at=at),
    }
    if kind in faults:
        proxy.add(faults[kind])
    if kind.startswith(("overwritten", "deleted")):

        def change(_path):
            proxy.struck += 1
            if kind.startswith("deleted"):
                ledger.delete(key)
            elif len(ledger.puts[key]) == 1:  # the shares of a split object ask under one path
                ledger.put(key, form, dice.randrange(200, 2500))

        proxy.hook(path, change, at=2 if kind.endswith("amid") else 1)
    ledger.put(key, form, dice.randrange(1200, 2500))


def iggy_proxy(chain, rounds):
    """Connections between source and Iggy break at any point of a request and its answer."""
    dice = chain.dice
    with IggyProxy(chain.server.port) as proxy:
        url = f"iggy://iggy:iggy@127.0.0.1:{proxy.port}"
        chain.options(iggy={"url": url, "request_timeout": REQUEST_SECONDS})
        chain.start()
        for number in rounds_of(chain, rounds):
            chain.look()
            before = len_of(chain._seen)
            chain.put(dice.randrange(3, 6))
            fault = wire_fault(chain)
            proxy.arm(fault)
            chain.wait(
                lambda: proxy.fired.is_set() or not chain.alive() or (chain.look() and not chain.open_records()),
                "neither a fault nor an end",
            )
            chain.strike(fault.kind, before, effective=proxy.disarm())
            chain.wait_until_done()
            if number % VERIFY_EVERY == 0:
                chain.verify()
        chain.stop()
        finish(chain)


def store_proxy(chain, rounds):
    """The store answers late, wrongly, in parts or not at all, and objects change under the source's hands."""
    dice = chain.dice
    with StoreProxy(chain.bucket.endpoint) as proxy:
        chain.options(s3={"endpoint": proxy.endpoint, "retry_base_seconds": 0.05}, discovery={"poll_interval": 0.05})
        chain.start()
        kinds = []
        for number in rounds_of(chain, rounds):
            kinds = kinds or dice.sample(store_kinds(chain), len(store_kinds(chain)))
            kind = kinds.pop()
            chain.look()
            before = len_of(chain._seen)
            arm_store(chain, proxy, kind)
            chain.put(dice.randrange(1, 3))
            chain.wait(
                lambda: proxy.struck or not chain.alive() or (chain.look() and not chain.open_records()),
                "neither a fault nor an end",
            )
            chain.strike(kind, before, effective=proxy.struck > 0, under_way=True)
            chain.wait_until_done()
            proxy.calm()
            if number % VERIFY_EVERY == 0:
                chain.verify()
        chain.stop()
        finish(chain)


def both(chain, rounds):
    """Both connections break, and the source is killed while they do."""
    dice = chain.dice
    with IggyProxy(chain.server.port) as wire, StoreProxy(chain.bucket.endpoint) as store:
        url = f"iggy://iggy:iggy@127.0.0.1:{wire.port}"
        changes = {
            "iggy": {"url": url, "request_timeout": REQUEST_SECONDS},
            "s3": {"endpoint": store.endpoint, "retry_base_seconds": 0.05},
            "discovery": {"poll_interval": 0.05},
        }
        for number in rounds_of(chain, rounds):
            chain.look()
            before = len_of(chain._seen)
            kind = dice.choice(store_kinds(chain))
            chain.options(**changes)
            arm_store(chain, store, kind)
            chain.put(dice.randrange(1, 4))
            wire.arm(wire_fault(chain))
            chain.start()
            need = dice.choice((1, 2, 2, 2))  # the kill comes between the others, or last

            def enough(need=need):
                chain.keep_alive()
                struck = wire.fired.is_set() + (store.struck > 0)
                return struck >= need or (chain.look() and not chain.open_records())

            chain.wait(enough, "neither faults nor an end")
            chain.wait_for_count((chain.count() or 0) + dice.randrange(1 + chain.open_records() // 2))
            alive = chain.alive()
            chain.kill()
            acted = [name for name, hit in (("Iggy", wire.disarm()), ("store", store.calm())) if hit]
            chain.strike(" + ".join([*acted, "kill"]), before, effective=alive and bool(acted))
            if number % VERIFY_EVERY == 0:
                chain.drain()
                chain.verify()
        finish(chain)
