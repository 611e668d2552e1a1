"""What the tests of transforms share: a configured list of them, applied to payloads."""

import pytest

from framework.config.transform_registry import make_transforms
from framework.model.objects import NativeObject, TopicPartition
from framework.model.payloads import PayloadColumn
from framework.pipeline.transforming import TransformChain
from framework.testing.options import source_config
from framework.transform import TransformContext
from framework.transformer import PayloadBatch

NATIVE = NativeObject(
    scheme="s3",
    bucket="lake",
    key="a/b.jsonl",
    size=77,
    version="etag@1",
    modified_ms=1_700_000_000_123,
    storage_class="STANDARD",
)


class Applied:
    """What came of payloads: by number, and in order."""

    def __init__(self, run):
        self.run = run
        self.payloads = list(run.batch.payloads)
        self.numbers = list(map(int, run.batch.numbers))
        self.bad = {skip.record_number: skip for skip in run.bad}
        self.reasons = {skip.record_number: skip.error.message for skip in run.bad}
        self.headers = [dict(one or {}) for one in run.batch.headers] if run.batch.headers is not None else None
        times = run.batch.timestamps_us
        self.times = times.tolist() if times is not None else None


def applied(payloads, *transforms, native=NATIVE, metadata=None, first=1, column=False, split_number=0, exists=True):
    """Apply transforms, given as tables of a configuration, to payloads."""
    chain = TransformChain(make_transforms(source_config(transforms=list(transforms)).transforms))
    context = TransformContext(
        native=native,
        topic_partition=TopicPartition("events", 1),
        source="kit",
        id_high=0x0123456789ABCDEF,
        split_number=split_number,
        metadata=metadata or {},
        object_exists=exists,
    )
    given = PayloadColumn(b"".join(payload + b"\n" for payload in payloads)) if column else list(payloads)
    run = PayloadBatch(first_record=first, payloads=given, size_bytes=sum(map(len, payloads)))
    return Applied(chain.apply(run, context))


@pytest.fixture(params=["list", "column"])
def apply(request):
    """`applied`, for payloads as a list and as a column."""

    def call(payloads, *transforms, **options):
        return applied(payloads, *transforms, column=request.param == "column", **options)

    return call
