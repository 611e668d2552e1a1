"""Fields of JSON objects: added, updated, deleted, filtered."""
# ruff: noqa: FBT003  option() is an attrs field

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, cast

import attrs
from msgspec import Raw
from typing_extensions import override

from framework.config.option import option
from framework.transform import TransformContext
from framework.transforms.documents import Documents, DocumentTransform, decode_value, split_path, without_field
from framework.transforms.values import PATHS, FieldValue, KeyPattern, ValuePattern


@attrs.frozen(kw_only=True)
class AddedField:
    """A field and its value."""

    key: str = option(doc="Name of the field.")
    value: FieldValue = option(doc="Its value: `{ static = ... }` or `{ computed = ... }`.")
    condition: str = attrs.field(default="always", init=False)


@attrs.frozen(kw_only=True)
class AddFieldsOptions:
    """Options of `add_fields`."""

    fields: tuple[AddedField, ...] = option(doc="The fields; a field that is there already gets the value.", minimum=1)


class AddFields(DocumentTransform):
    """Give each JSON object further fields, behind its own. A field that it has already gets the new value in its place."""

    name = "add_fields"
    options_class: ClassVar[type] = AddFieldsOptions

    def __init__(self, options: object) -> None:
        super().__init__(options)
        fields = cast("AddFieldsOptions", options).fields
        self._fields = [(field.key, field.value.of(field.key), field.condition) for field in fields]
        self.added_bytes = sum(field.value.static_bytes for field in fields)

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        for key, computed, condition in self._fields:
            always, wanted = condition == "always", condition == "key_exists"
            value = computed(documents.batch, context)
            if always and isinstance(value, Raw):
                for document in documents.objects():
                    document[key] = value
                continue
            values = itertools.repeat(value, len(documents)) if isinstance(value, Raw) else value
            for row, own in zip(documents.whole(), values, strict=True):
                if row is not None and (always or (key in row) is wanted):
                    row[key] = own


_KNOWN_KEYS, _KNOWN_CHARACTERS = 10_000, 1 << 20
"""Of the field names that are remembered, besides those of one record."""

CONDITIONS = ("always", "key_exists", "key_not_exists")


@attrs.frozen(kw_only=True)
class UpdatedField(AddedField):
    """A field, its value, and when it gets it."""

    condition: str = option("always", choices=CONDITIONS, doc="When the field gets the value.")


@attrs.frozen(kw_only=True)
class UpdateFieldsOptions:
    """Options of `update_fields`."""

    fields: tuple[UpdatedField, ...] = option(doc="The fields.", minimum=1)


class UpdateFields(AddFields):
    """Set fields of each JSON object, always or only if they are there or are not."""

    name = "update_fields"
    options_class = UpdateFieldsOptions


@attrs.frozen(kw_only=True)
class DeleteFieldsOptions:
    """Options of `delete_fields`."""

    fields: tuple[str, ...] = option(doc=f"Names of the fields. {PATHS}", minimum=1)


class DeleteFields(DocumentTransform):
    """Remove fields from each JSON object."""

    name = "delete_fields"
    options_class = DeleteFieldsOptions

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        for key in cast("DeleteFieldsOptions", self.options).fields:
            root, path = split_path(key)
            for document in documents.objects():
                if key in document:
                    del document[key]
                elif path and root in document:
                    document[root] = without_field(document[root], path)


@attrs.frozen(kw_only=True)
class FieldPattern:
    """A pattern of a field: its name, its value, or both."""

    key_pattern: KeyPattern | None = option(None, doc="Pattern of the name.")
    value_pattern: ValuePattern | None = option(None, doc="Pattern of the value.")

    def validate_options(self) -> Iterator[str]:
        """Yield an error for a pattern without any condition."""
        if self.key_pattern is None and self.value_pattern is None:
            yield "key_pattern: missing, and so is value_pattern; give one of them or both"


@attrs.frozen(kw_only=True)
class FilterFieldsOptions:
    """Options of `filter_fields`."""

    keep_fields: tuple[str, ...] = option((), doc="Fields that always stay.")
    patterns: tuple[FieldPattern, ...] = option((), doc="A field matches when one of the patterns does.")
    include_matching: bool = option(True, doc="Keep the fields that match, and remove the others; false: the reverse.")

    def validate_options(self) -> Iterator[str]:
        """Yield an error for a filter without any condition."""
        if not self.keep_fields and not self.patterns:
            yield "keep_fields: missing, and so is patterns; give one of them or both"


class FilterFields(DocumentTransform):
    """Keep or remove the fields of each JSON object whose names or values match a pattern."""

    name = "filter_fields"
    options_class = FilterFieldsOptions
    needs_modules = ("msgspec", "regex")

    def __init__(self, options: object) -> None:
        super().__init__(options)
        given = cast("FilterFieldsOptions", options)
        self._kept = frozenset(given.keep_fields)
        self._include = given.include_matching
        self._patterns: list[tuple[Callable[[str], bool] | None, Callable[[Any], bool] | None]] = [
            (
                pattern.key_pattern.matcher() if pattern.key_pattern is not None else None,
                pattern.value_pattern.matcher() if pattern.value_pattern is not None else None,
            )
            for pattern in given.patterns
        ]

        by_name = all(pattern.value_pattern is None for pattern in given.patterns)
        self._by_key: dict[str, bool] | None = {} if by_name else None
        self._characters = 0

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        by_key = self._by_key
        for document in documents.objects():
            if by_key is not None:
                if not document.keys() <= by_key.keys():
                    self._learn(document.keys())
                gone = [key for key in document if not by_key[key]]
            else:
                gone = [key for key, raw in document.items() if not self._stays(key, raw)]
            for key in gone:
                del document[key]

    def _learn(self, keys: Collection[str]) -> None:
        """Remember which fields stay, where that depends on their names alone."""
        assert self._by_key is not None
        if len(self._by_key) > _KNOWN_KEYS or self._characters > _KNOWN_CHARACTERS:
            self._by_key.clear()
            self._characters = 0
        self._characters += sum(map(len, keys))
        self._by_key.update({key: self._stays(key, None) for key in keys})

    def _stays(self, key: str, raw: Any) -> bool:
        if key in self._kept:
            return True
        matches = any(
            (by_key is None or by_key(key)) and (by_value is None or by_value(decode_value(raw, key)))
            for by_key, by_value in self._patterns
        )
        return matches is self._include
