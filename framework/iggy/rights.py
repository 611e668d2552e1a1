"""Permissions of an Iggy user, and those that a source needs.

The rules are the server's (`core/metadata/src/permissioner` of 0.9). A permission for all streams
includes each stream; a permission for a stream includes its topics; managing includes reading and
sending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    import apache_iggy

Deed = Literal["create", "read", "send", "manage"]


@attrs.frozen(slots=True)
class Right:
    """An operation that a source needs.

    Attributes:
        deed: `create` a topic, `read` a topic and its messages, `send` to it, or `manage` it (delete old
            segments).
        topic: name of the topic.
        topic_id: its number; None while the topic does not exist.
    """

    deed: Deed
    topic: str
    topic_id: int | None = None


_WORDS = {
    "create": 'create the topic "{}" (manage_topics)',
    "read": 'read the topic "{}" (read_topics)',
    "send": 'send to the topic "{}" (send_messages)',
    "manage": 'delete old segments of the topic "{}" (manage_topic)',
}


_MANAGING = ("manage_topics", "manage_stream", "manage_topic")
_ENOUGH: Mapping[Deed, tuple[str, ...]] = {
    "create": _MANAGING,
    "read": (*_MANAGING, "read_streams", "read_topics", "read_stream", "read_topic"),
    "send": (*_MANAGING, "send_messages"),
    "manage": _MANAGING,
}
"""Each permission that allows an operation, for all streams, for its stream, or for its topic; no two levels share a name
with another meaning."""


def missing_rights(permissions: apache_iggy.Permissions, stream_id: int | None, rights: Iterable[Right]) -> list[str]:
    """Return the missing permissions, in words.

    Args:
        permissions: the user's permissions.
        stream_id: number of the stream; None while it does not exist: whoever creates topics creates it first.
        rights: the required operations.
    """
    every = permissions.global_permissions
    if every.manage_streams:
        return []
    rights = list(rights)
    if stream_id is None:
        creates = any(right.deed == "create" for right in rights)
        return ["create the stream (manage_streams)"] if creates else []
    stream = (permissions.streams or {}).get(stream_id)
    # whoever makes a topic looks first whether its stream is there
    sees = every.read_streams or (stream is not None and _sees(stream))
    blind = not sees and any(right.deed == "create" for right in rights)
    return (["look up the stream (read_stream)"] if blind else []) + [
        _WORDS[right.deed].format(right.topic) for right in rights if not _allowed(every, stream, right)
    ]


def hidden_stream(permissions: apache_iggy.Permissions) -> int | None:
    """Return the number of the stream that the user may use, but not look up; None if there are several.

    If there is none, the result is -1, which no stream has: the user has the permissions for all streams there.
    """
    hidden = [number for number, stream in (permissions.streams or {}).items() if not _sees(stream)]
    return None if len(hidden) > 1 else next(iter(hidden), -1)


def _sees(stream: apache_iggy.StreamPermissions) -> bool:
    return bool(stream.read_stream or stream.manage_stream)


def _allowed(every: apache_iggy.GlobalPermissions, stream: apache_iggy.StreamPermissions | None, right: Right) -> bool:
    topic = (stream.topics or {}).get(right.topic_id) if stream is not None and right.topic_id is not None else None
    return any(getattr(level, name, False) for level in (every, stream, topic) for name in _ENOUGH[right.deed])
