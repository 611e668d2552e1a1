"""Rows in which connections break: between source and Iggy, between source and store, both, and a kill on top."""

from tests.faults.chain import len_of
from tests.faults.rows_kill import finish, rounds_of
from tests.faults.stores import PROXIES
from tests.support.iggy_proxy import KINDS, IggyProxy, WireFault

VERIFY_EVERY = 10
REQUEST_SECONDS = 0.7
"""The source's patience with Iggy in these rows; what is late is twice as late."""


def store_kinds(chain, proxy):
    """Those that the chain's source can go on after: mode `incremental` refuses a store that was once seen without an order."""
    return [kind for kind in proxy.kinds if kind != "page out of order" or chain.mode == "list"]


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

    def change(what):
        if what == "delete":
            ledger.delete(key)
        elif len(ledger.puts[key]) == 1:  # the shares of a split object ask under one path
            ledger.put(key, form, dice.randrange(200, 2500))

    count = dice.randrange(1200, 2500)
    proxy.arm(chain, kind, key, change, len(ledger.made(key, form, count)[1]))
    ledger.put(key, form, count)


def through(proxy, chain):
    """The options of a source that reads through the proxy."""
    return {proxy.section: {**proxy.options(chain.folder), "retry_base": 0.05, "retry_cap": 0.5}}


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
    with PROXIES[chain.section](chain.bucket.endpoint) as proxy:
        chain.options(**through(proxy, chain), discovery={"poll_interval": 0.05})
        chain.start()
        kinds = []
        for number in rounds_of(chain, rounds):
            kinds = kinds or dice.sample(store_kinds(chain, proxy), len(store_kinds(chain, proxy)))
            kind = kinds.pop()
            chain.look()
            before = len_of(chain._seen)
            arm_store(chain, proxy, kind)
            chain.put(dice.randrange(1, 3))
            chain.wait(
                lambda: proxy.struck_all or not chain.alive() or (chain.look() and not chain.open_records()),
                "neither a fault nor an end",
            )
            chain.strike(kind, before, effective=proxy.struck_all, under_way=True)
            chain.wait_until_done()
            proxy.calm()
            if number % VERIFY_EVERY == 0:
                chain.verify()
        chain.stop()
        finish(chain)


def both(chain, rounds):
    """Both connections break, and the source is killed while they do."""
    dice = chain.dice
    with IggyProxy(chain.server.port) as wire, PROXIES[chain.section](chain.bucket.endpoint) as store:
        url = f"iggy://iggy:iggy@127.0.0.1:{wire.port}"
        changes = {
            "iggy": {"url": url, "request_timeout": REQUEST_SECONDS},
            **through(store, chain),
            "discovery": {"poll_interval": 0.05},
        }
        for number in rounds_of(chain, rounds):
            chain.look()
            before = len_of(chain._seen)
            kind = dice.choice(store_kinds(chain, store))
            chain.options(**changes)
            arm_store(chain, store, kind)
            chain.put(dice.randrange(1, 4))
            wire.arm(wire_fault(chain))
            chain.start()
            need = dice.choice((1, 2, 2, 2))  # the kill comes between the others, or last

            def enough(need=need):
                chain.keep_alive()
                struck = wire.fired.is_set() + store.struck_all
                return struck >= need or (chain.look() and not chain.open_records())

            chain.wait(enough, "neither faults nor an end")
            held = chain.count() or 0
            chain.look()  # behind the count: what comes in between must not be waited for
            chain.wait_for_count(held + dice.randrange(1 + chain.open_records() // 2))
            alive = chain.alive()
            chain.kill()
            acted = [name for name, hit in (("Iggy", wire.disarm()), ("store", store.calm())) if hit]
            chain.strike(" + ".join([*acted, "kill"]), before, effective=alive and bool(acted))
            if number % VERIFY_EVERY == 0:
                chain.drain()
                chain.verify()
        finish(chain)
