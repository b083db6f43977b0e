"""The special fields of structured logs: members of a JSON line that become fields of its log entry
(facts/packaging#structured-logs)."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from trainshed.wire import json as wire_json
from trainshed.wire import plans, pool
from trainshed.wire.status import WireError

_PREFIX: Final = "logging.googleapis.com/"
LABELS: Final = f"{_PREFIX}labels"
FIELDS: Final[Mapping[str, str]] = {
    "httpRequest": "httpRequest",
    f"{_PREFIX}insertId": "insertId",
    f"{_PREFIX}operation": "operation",
    f"{_PREFIX}sourceLocation": "sourceLocation",
    f"{_PREFIX}spanId": "spanId",
    f"{_PREFIX}trace": "trace",
    f"{_PREFIX}trace_sampled": "traceSampled",
}
"""Fields of the log entry, by member of the JSON line."""
ENTRY: Final = "google.logging.v2.LogEntry"


def split_fields(payload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return the payload without its special fields, the labels, and all other special fields in public JSON.
    Members with a wrong type and unknown members remain in the payload."""
    if LABELS not in payload and payload.keys().isdisjoint(FIELDS):
        return payload, {}, {}
    remaining = dict(payload)
    labels = _labels(remaining.pop(LABELS)) if isinstance(payload.get(LABELS), dict) else {}
    fields: dict[str, Any] = {}
    for member in FIELDS.keys() & remaining.keys():
        name, value = FIELDS[member], remaining.pop(member)
        known, unknown = _split_members(name, value)
        try:
            public = wire_json.to_public(wire_json.from_public(ENTRY, {name: known}))
        except WireError:
            remaining[member] = value
            continue
        fields |= {field: read for field, read in public.items() if read != {}}
        if unknown:
            remaining[member] = unknown
    return remaining, labels, fields


def _labels(value: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        for name, text in value.items()
    }


def _split_members(name: str, value: Any) -> tuple[Any, dict[str, Any]]:
    """Return the known members and the unknown members of a field's value. An empty string counts as no
    value, as in Google's log handlers."""
    plan = plans.plan_of(pool.message_descriptor(ENTRY)).by_key[name].value
    if plan.message is None or not isinstance(value, dict):
        return (None if value == "" else value), {}
    members = cast("dict[str, Any]", value)
    known = {key: part for key, part in members.items() if key in plan.plan.by_key}
    return {key: part for key, part in known.items() if part != ""}, {
        key: part for key, part in members.items() if key not in known
    }
