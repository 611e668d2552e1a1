"""The law of difficult keys: every key that the store allows is listed, read, sent and found again unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.errors import ObjectNotFoundError
from framework.iterator.store_iterator import StoreRecordIterator
from framework.model.objects import NativeObject
from framework.store import ObjectStore
from framework.testing.kit.crash import Bench, CrashPoint
from framework.testing.kit.law import BATCH, Comparing, RigError, in_order, law
from framework.testing.kit.laws_listing import check_order
from framework.testing.rig import Capability, SourceRig

MAX_KEY_BYTES = 1024
"""Of S3 and of GCS."""

DIFFICULT_KEYS = (
    "spaces/a b  c",
    " first",
    "last ",
    "plus/a+b",
    "escape/a%20b",
    "escape/a%2Fb",
    "escape/a%2fb",
    "escape/100%",
    "escape/%zz%",
    "escape/a%2520b",
    "empty//part",
    "/root",
    "end/",
    "dot/./dot",
    "dots/../dots",
    "dots/a...b",
    "control/\x01\x1f",
    "control/\x7f",
    "control/tab\there",
    "control/line\nbreak",
    "control/carriage\rreturn",
    "quotes/'\"`",
    "markup/&amp;<a>]]>",
    "query/?a=b&c=d;e",
    "fragment/#x",
    "back\\slash",
    "template/{{topic}}",
    "glob/[a-z]*?",
    "shell/$HOME|;!",
    "colon:at@",
    "composed/\u00e9",
    "decomposed/e\u0301",
    "case/Key",
    "case/kEY",
    "beyond/\U0001f600\U0010fffd",
    "beyond/\ufffd",
    "beyond/\uff5e",
    "odd/\u2028\u00a0\ufeff\u200b",
    "left/\u202eright",
    "long/" + "a" * (MAX_KEY_BYTES - 5),
    "long/" + "\u00e9" * 509 + "x",
    "long/" + "\U0001f600" * 254 + "xyz",
)
"""Decoding twice, decoding never, normalising, folding case or cutting: each is seen by one of these at least."""

_RECORDS = 3


@law("L4", "difficult keys are listed, read, sent and found again under exactly the key they have")
def difficult_keys(rig: SourceRig, comparing: Comparing) -> None:
    """Check forty-two keys over several pages; then a second run, which must find no new object."""
    tried = [key for key in DIFFICULT_KEYS if not rig.cannot_hold(key)]
    for key in (key for key in DIFFICULT_KEYS if key not in tried):
        comparing.note(f"{key!r} was not tried: {rig.cannot_hold(key)}")
    if len(tried) * 2 < len(DIFFICULT_KEYS):
        raise RigError(
            f"cannot_hold: only {len(tried)} of {len(DIFFICULT_KEYS)} difficult keys are left: nothing is proven"
        )
    written = {key: rig.make_records(f"d{number}", _RECORDS) for number, key in enumerate(tried)}
    for key, records in written.items():
        rig.put(key, rig.encode(records))
    expected = in_order(written)
    pages: list[dict[str, Any]] = [{"page_size": 7}, {}] if Capability.PAGES in rig.capabilities else [{}]
    for options in pages:
        with rig.open_iterator(**options) as iterator:
            natives = list(iterator.get_native_item_stream(None))
            listed = in_order(native.key for native in natives)
            comparing.same(listed, expected, f"a listing, {options or 'as configured'}")
            if Capability.ORDER in rig.capabilities:
                check_order(iterator, comparing)
    with rig.open_iterator(list_concurrency=1) as iterator:
        if isinstance(iterator, StoreRecordIterator):
            _check_stat(iterator.store, comparing, natives)
        for after in expected if Capability.ORDER in rig.capabilities else ():
            behind = [native.key for native in iterator.get_native_item_stream(after)]
            rest = [key for key in expected if key.encode() > after.encode()]
            comparing.same(in_order(behind), rest, f"a listing after {after!r}")
    bench = Bench(rig, batch_length=BATCH, linger_time=0.0, prefetch_objects=4)
    for run in ("the first run", "a second run, which has nothing to do"):
        ends = {entry.key: entry.finished for entry in bench.live(CrashPoint())}
        comparing.same(in_order(ends), expected, f"{run}: the keys of the positions")
        stored = bench.stored()
        comparing.same(in_order(stored), expected, f"{run}: the keys in the topic")
        for key, records in written.items():
            comparing.same([payload for _, payload in stored[key]], records, f"{run}: the records of {key!r}")


def _check_stat(store: ObjectStore, comparing: Comparing, natives: Sequence[NativeObject]) -> None:
    """Check that `stat` finds each object as it was listed, and none under a missing key."""
    for native in natives:
        comparing.same([store.stat(native.key)], [native], f"stat({native.key!r})")
    try:
        found: object = store.stat("no/such")
    except ObjectNotFoundError as error:
        found = error
    comparing.that(
        isinstance(found, ObjectNotFoundError), f"stat of a missing key gave {found!r}, no ObjectNotFoundError"
    )
