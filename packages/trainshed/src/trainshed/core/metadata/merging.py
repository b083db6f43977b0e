"""Merges two writers' changes of one run: a change based on an older state is merged key by key
(facts/experiments#etags).

A client sends the whole metadata as it last saw it, with what it adds. With an etag that is no longer the
newest, that would be refused, and over REST its client gives up; so it is merged instead.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

from msgspec.structs import replace

from trainshed.core.metadata.records import Change, Node

SHARED: Final = ("_params", "_metrics")
"""Maps whose keys are merged one by one; other keys of the metadata are merged as a whole."""


def changed(old: Node, metadata: dict[str, Any], etag: int) -> Node:
    """Return `old` with other metadata and the etag `etag`, which records the keys that changed."""
    before, after = dict(_flat(old.metadata)), dict(_flat(metadata))
    changes = dict(old.changes)
    for key, value in after.items():
        if key not in before or before[key] != value:
            changes[key] = Change(etag, before.get(key))
    kept = {key: change for key, change in changes.items() if key in after}
    return replace(old, metadata=metadata, etag=etag, changes=kept)


def merged(node: Node, metadata: dict[str, Any], seen: int) -> dict[str, Any]:
    """Return the metadata after a write of `metadata` by a client that last saw the state of the etag `seen`.

    If others have changed a key since, their value stays where the write repeats the earlier one; where it
    has a third value, the write wins. Keys that the write lacks stay: nobody removes keys of a run.
    """
    result = dict(node.metadata)
    for key, value in _flat(metadata):
        change = node.changes.get(key)
        if change is not None and change.etag > seen and value == change.was:
            continue
        name, _, inner = key.partition("/")
        if inner:
            result[name] = {**_shared(result, name), inner: value}
        elif name not in SHARED or name not in result:
            result[name] = value
    return result


def _flat(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield `_params/KEY` for the keys of shared maps, KEY for all others (an empty shared map counts as
    one)."""
    for name, value in metadata.items():
        if name in SHARED and (shared := _shared(metadata, name)):
            for inner, part in shared.items():
                yield f"{name}/{inner}", part
        else:
            yield name, value


def _shared(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a shared map; {} if there is none."""
    value = metadata.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
