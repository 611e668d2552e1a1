"""Records kept or dropped by the value of a field."""

from __future__ import annotations

from typing import cast

import attrs
import numpy as np
from typing_extensions import override

from framework.config.option import option
from framework.transform import TransformContext
from framework.transforms.documents import Documents, DocumentTransform
from framework.transforms.values import PATHS, ValuePattern


@attrs.frozen(kw_only=True)
class FilterOptions:
    """Options of `filter`."""

    field: str = option(doc=f"Name of the field. {PATHS}", minimum=1)
    value_pattern: ValuePattern = option(doc="Pattern of its value, as in `filter_fields`. A missing field is null.")
    action: str = option(
        "keep",
        choices=("keep", "drop"),
        doc="What happens to the records that match: the others are treated the other way.",
    )


class Filter(DocumentTransform):
    """Keep or drop records by a condition on a field. A dropped record keeps its number, is counted, and is not bad."""

    name = "filter"
    options_class = FilterOptions
    needs_modules = ("msgspec", "regex")

    def __init__(self, options: object) -> None:
        super().__init__(options)
        given = cast("FilterOptions", options)
        self.fields = (given.field,)
        self._field, self._keeps = given.field, given.action == "keep"
        self._matches = given.value_pattern.column_matcher()

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        matches = np.array(self._matches(documents.column(self._field)), dtype=np.bool_)
        documents.keep(matches if self._keeps else ~matches)
