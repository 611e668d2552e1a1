"""Headers of a message: from fields of its payload, and from its object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import attrs
import msgspec
from typing_extensions import override

from framework.config.option import option
from framework.errors import RecordError
from framework.model.header_encoding import LETTER_HEADER, REPLAY_HEADER, HeaderValue, headers_error
from framework.transform import TransformContext
from framework.transforms.documents import MISSING, Documents, DocumentTransform
from framework.transforms.values import PATHS, choice_errors

OBJECT_VALUES = ("bucket", "key", "version", "size", "last_modified", "storage_class", "content_type")
_CONTENT_TYPE = "content_type"
_ALWAYS_KNOWN = {"bucket", "key", "version"}
"""Properties of an object that a dead letter names, too."""


@attrs.frozen(kw_only=True)
class HeaderOptions:
    """A header, and one source of its value."""

    name: str = option(
        doc="Name of the header, up to 255 bytes. A value without content gives no header.", minimum=1, maximum=255
    )
    field: str | None = option(
        None,
        doc="A field of the JSON payload: a text, a number or a truth value keeps its kind; an object or an array becomes "
        "JSON text; null and a missing field give no header. "
        f"{PATHS}",
        minimum=1,
    )
    object: str | None = option(
        None,
        choices=OBJECT_VALUES,
        doc="A property of the object. `last_modified` is ISO 8601 text in UTC, `size` a number.",
    )
    metadata: str | None = option(
        None, doc="Name of the object's user metadata, without the store's prefix and in lower case.", minimum=1
    )
    tag: str | None = option(
        None, doc="Name of a tag of the object, as it is when the object is read. S3 only.", minimum=1
    )
    static: str | None = option(None, doc="The same text for every record.", minimum=1)

    def validate_options(self) -> Iterator[str]:
        """Yield errors for a name that Iggy or the source does not allow, and for no source of the value, or several."""
        if self.name in {LETTER_HEADER, REPLAY_HEADER}:
            yield f'name: "{self.name}" marks dead letters and their replays; choose another name'
        if (reason := headers_error({self.name: self.static or "-"})) is not None:
            yield f"name: {reason}"
        sources = ("field", "object", "metadata", "tag", "static")
        yield from choice_errors(sources, [name for name in sources if getattr(self, name) is not None])


@attrs.frozen(kw_only=True)
class HeadersOptions:
    """Options of `headers`."""

    headers: tuple[HeaderOptions, ...] = option(doc="The headers.", minimum=1)


class Headers(DocumentTransform):
    """Give each message headers of its own. A header with the name of an earlier one replaces it."""

    name = "headers"
    options_class = HeadersOptions

    def __init__(self, options: object) -> None:
        super().__init__(options)
        headers = cast("HeadersOptions", options).headers
        self._by_field = [(header.name, header.field) for header in headers if header.field is not None]
        self._of_object = [header for header in headers if header.field is None]
        self.fields = tuple(dict.fromkeys(field for _, field in self._by_field))

    @property
    @override
    def needs_metadata(self) -> bool:
        return any(header.metadata is not None or header.object == _CONTENT_TYPE for header in self._of_object)

    @property
    @override
    def needs_tags(self) -> bool:
        return any(header.tag is not None for header in self._of_object)

    @override
    def change(self, documents: Documents, context: TransformContext) -> None:
        if not context.object_exists:
            self._check_known()
        shared = {header.name: value for header in self._of_object if (value := _object_value(header, context)) != ""}
        before = documents.batch.headers
        rows: list[Mapping[str, HeaderValue]]
        if not self._by_field and before is None:
            rows = [shared] * len(documents)  # one mapping for all: it is encoded once
        else:
            rows = [{**(own or {}), **shared} for own in before or [None] * len(documents)]
            for name, field in self._by_field:
                for row, value in zip(rows, documents.column(field), strict=True):
                    if value is not MISSING and value is not None:
                        cast("dict[str, HeaderValue]", row)[name] = _header_value(value)
        documents.batch = attrs.evolve(documents.batch, headers=rows)

    def _check_known(self) -> None:
        """Refuse a record whose object is gone when a header needs more of it than is known.

        Raises:
            RecordError: names the header.
        """
        for header in self._of_object:
            if header.static is None and header.object not in _ALWAYS_KNOWN:
                raise RecordError(
                    f'header "{header.name}": its value is not known, because the object of the record is gone'
                )


_SCALARS = frozenset((str, bool, int, float))


def _header_value(value: Any) -> HeaderValue:
    scalar: HeaderValue = value if type(value) in _SCALARS else msgspec.json.encode(value).decode()
    return scalar


def _object_value(header: HeaderOptions, context: TransformContext) -> HeaderValue:
    native = context.native
    if header.static is not None:
        return header.static
    if header.metadata is not None:
        return context.metadata.get(f"meta:{header.metadata.lower()}", "")
    if header.tag is not None:
        return context.tags.get(header.tag, "")
    if header.object == _CONTENT_TYPE:
        return context.metadata.get("content-type", "")
    if header.object == "last_modified":
        return native.last_modified.isoformat(timespec="milliseconds") if native.modified_ms else ""
    value: HeaderValue = getattr(native, str(header.object))
    return value
