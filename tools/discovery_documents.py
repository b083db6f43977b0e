"""Reduces a discovery document to the methods that `discovery_protos.Selection` selects, without
descriptions. Part of `build_descriptors.py`."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from discovery_protos import Selection

Schema = Mapping[str, Any]


def without_prose(document: Schema, selection: Selection) -> dict[str, Any]:
    """Return the document without descriptions, and with only the selected methods and their schemas."""
    reached: set[str] = set()
    resources = _resources(document, selection)["resources"]
    waiting = list(_references(resources))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(_references(document["schemas"][name]))
    kept = ("id", "kind", "name", "version", "version_module", "revision", "protocol", "ownerName")
    kept += ("discoveryVersion", "batchPath", "servicePath", "canonicalName", "parameters")
    scopes = document["auth"]["oauth2"]["scopes"]
    plain = {key: document[key] for key in kept if key in document}
    return _plain(plain) | {
        "auth": {"oauth2": {"scopes": {scope: {"description": ""} for scope in scopes}}},
        "resources": resources,
        "schemas": {name: _plain(document["schemas"][name]) for name in sorted(reached)},
    }


def _resources(resource: Schema, selection: Selection) -> dict[str, Any]:
    out: dict[str, Any] = {}
    chosen = {
        name: _plain(method)
        for name, method in resource.get("methods", {}).items()
        if str(method["id"]).partition(".")[2] in selection.methods
    }
    inner = {name: _resources(child, selection) for name, child in resource.get("resources", {}).items()}
    if chosen:
        out["methods"] = chosen
    if any(inner.values()):
        out["resources"] = {name: child for name, child in inner.items() if child}
    return out


def _plain(value: Any) -> Any:
    """Remove descriptions: each `description` whose value is a string. A property may also be called
    `description`; its value is an object."""
    if isinstance(value, dict):
        items = cast(dict[str, Any], value)
        return {
            key: _plain(inner)
            for key, inner in items.items()
            if key != "enumDescriptions" and not (key == "description" and isinstance(inner, str))
        }
    if isinstance(value, list):
        entries = cast(list[Any], value)
        return [_plain(inner) for inner in entries]
    return value


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        items = cast(dict[str, Any], value)
        for key, inner in items.items():
            if key == "$ref":
                yield str(inner)
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        entries = cast(list[Any], value)
        for inner in entries:
            yield from _references(inner)
