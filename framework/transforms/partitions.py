"""The partition of a record, from a field of its payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs
import numpy as np
from typing_extensions import override
from xxhash import xxh32_intdigest

from framework.config.option import option
from framework.transform import TransformContext
from framework.transforms.documents import MISSING, Documents, DocumentTransform
from framework.transforms.values import PATHS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WHOLE_FLOATS = 1 << 53
"""Floats below this number that have no fraction are written as whole numbers."""


@attrs.frozen(kw_only=True)
class PartitionByOptions:
    """Options of `partition_by`."""

    field: str = option(doc=f"Name of the field: a text, a number or a truth value. {PATHS}", minimum=1)
    missing: str = option(
        "fail",
        choices=("fail", "spread"),
        doc='A record without the field, or with null: `"fail"` makes it bad; `"spread"` sends it to the partition that its '
        "number chooses, in turn.",
    )


class PartitionBy(DocumentTransform):
    """Send records with equal values of a field to the same partition, in order: order for each key, not each object."""

    name = "partition_by"
    options_class = PartitionByOptions
    chooses_partition = True

    def __init__(self, options: object) -> None:
        super().__init__(options)
        given = cast("PartitionByOptions", options)
        self.fields = (given.field,)
        self._field, self._spreads = given.field, given.missing == "spread"

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        values = documents.column(self._field)
        try:  # texts, mostly
            hashes = list(map(xxh32_intdigest, map(str.encode, values)))
        except (TypeError, UnicodeEncodeError):
            hashes, reasons = self._mixed(values, documents)
            documents.reject(reasons)
        key_hashes = np.asarray(hashes, dtype=np.uint32)
        documents.batch = attrs.evolve(documents.batch, key_hashes=key_hashes)

    def _mixed(self, values: Sequence[Any], documents: Documents) -> tuple[list[int], dict[int, str]]:
        """Return the hashes of the good records, and place -> reason of the bad records."""
        hashes: list[int] = []
        reasons: dict[int, str] = {}
        unread = documents.unread()
        numbers: Sequence[int] | NDArray[np.int64] = documents.batch.numbers
        for place, value in enumerate(values):
            key = key_bytes(value)
            if key is not None:
                hashes.append(xxh32_intdigest(key))
            elif place in unread:
                reasons[place] = f"{self.name}: its payload is no JSON object"
            elif value is not MISSING and value is not None:
                reasons[place] = f'{self.name}: field "{self._field}" is no text, number or truth value'
            elif self._spreads:
                hashes.append(int(numbers[place]) & 0xFFFFFFFF)
            else:
                reasons[place] = f'{self.name}: field "{self._field}" is {"null" if value is None else "missing"}'
        return hashes, reasons


def key_bytes(value: Any) -> bytes | None:
    """Return the bytes of a key; None for a value that is no key. They are part of the stored data.

    A text is its UTF-8 bytes. A number is its shortest decimal text, without a fraction when it has none. A truth value
    is `true` or `false`.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float) and abs(value) < _WHOLE_FLOATS and value == int(value):
        value = int(value)
    return repr(value).encode() if isinstance(value, int | float) else None
