"""Converts nodes to messages, and checks what requests may set (facts/experiments#limits)."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.calls.timestamps import set_micros
from trainshed.api.calls.update_masks import read_update_mask
from trainshed.core.errors import Aborted, InvalidRequest, Violation
from trainshed.core.metadata.merging import changed, merged
from trainshed.core.metadata.records import MERGED, Node, NodeKind
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import MAX_DISPLAY_NAME, read_labels
from trainshed.core.units import Nanos
from trainshed.wire import json as wire_json
from trainshed.wire import pool
from trainshed.wire.json import endless

V1: Final = "google.cloud.aiplatform.v1"
MAX_METADATA: Final = 200_000
"""Most bytes of a node's metadata as JSON."""
_ID: Final = re.compile(r"[a-z0-9-]{1,128}")
_FIELDS: Final = ("display_name", "description", "labels", "metadata")
_OF_KIND: Final = {
    NodeKind.CONTEXT: _FIELDS,
    NodeKind.ARTIFACT: (*_FIELDS, "state", "uri"),
    NodeKind.EXECUTION: (*_FIELDS, "state"),
}
"""What an update can change."""


def message_name(kind: NodeKind) -> str:
    """Return the name of a kind's message: `Context`, `Artifact`, `Execution`."""
    return kind.singular.capitalize()


def view(node: Node) -> Message:
    """Return a node as a Context, Artifact or Execution."""
    message: Any = pool.message_class(f"{V1}.{message_name(node.name.kind)}")(
        name=str(node.name),
        display_name=node.display_name,
        description=node.description,
        etag=str(node.etag),
        labels=dict(node.labels),
        schema_title=node.schema_title,
        schema_version=node.schema_version,
    )
    message.metadata.update(node.metadata | node.added)
    set_micros(message.create_time, node.created)
    set_micros(message.update_time, node.updated)
    if node.name.kind is NodeKind.CONTEXT:
        message.parent_contexts.extend(map(str, node.parents))
    elif node.state:
        message.state = (
            message.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_name[node.state].number
        )
    if node.name.kind is NodeKind.ARTIFACT:
        message.uri = node.uri
    return message


class NodeFields(Struct, frozen=True):
    """The checked fields of a node in a request."""

    display_name: str
    description: str
    schema_title: str
    schema_version: str
    uri: str
    state: str
    labels: tuple[tuple[str, str], ...]
    #: None: the request does not set it.
    metadata: dict[str, Any] | None


def read_fields(message: Any, kind: NodeKind) -> NodeFields:
    """Read the fields of a node. Raises InvalidRequest with all faults."""
    faults = Faults()
    field = kind.singular
    public = wire_json.to_public(message)
    section = Section(public, field, faults)
    for path in endless(message.metadata):
        section.fault("metadata", f"{path} is not a finite number.")
    if len(message.display_name) > MAX_DISPLAY_NAME:
        section.fault("displayName", f"At most {MAX_DISPLAY_NAME} characters are allowed.")
    labels = read_labels(section)
    metadata = public.get("metadata", {}) if message.HasField("metadata") else None
    if metadata is not None and _size(metadata) > MAX_METADATA:
        section.fault("metadata", f"It has more than {MAX_METADATA} bytes as JSON.")
    faults.refuse()
    state = public.get("state", "")
    return NodeFields(
        display_name=message.display_name,
        description=message.description,
        schema_title=message.schema_title,
        schema_version=message.schema_version,
        uri=message.uri if kind is NodeKind.ARTIFACT else "",
        state="" if state == "STATE_UNSPECIFIED" else state,
        labels=labels,
        metadata=metadata,
    )


def _size(metadata: dict[str, Any]) -> int:
    """Return the bytes of the shortest JSON."""
    return len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode())


def read_id(node_id: str, field: str) -> str:
    """Return an id unchanged. Raises InvalidRequest for an invalid one."""
    if not _ID.fullmatch(node_id):
        text = f"{node_id!r} is not an id; it has at most 128 lowercase letters, digits and dashes."
        raise InvalidRequest((Violation(field, text),))
    return node_id


def read_mask(paths: Iterable[str], kind: NodeKind) -> tuple[str, ...]:
    """Return the fields that an update replaces; () = no mask, or `*`. Raises InvalidRequest for what cannot
    be updated."""
    return read_update_mask(paths, _OF_KIND[kind], open_fields=("metadata",))


def updated(node: Node, fields: NodeFields, mask: tuple[str, ...], etag: str, now: Nanos) -> Node:
    """Return the node after an update. Without a mask all that the request sets is taken over. `etag`: of the
    state that the request was made for, "" = any. Experiments and their runs may have an outdated one, and
    are then merged. An update that changes nothing leaves the etag as it is. Raises Aborted."""
    is_stale = etag not in ("", str(node.etag))
    if is_stale and not (node.schema_title in MERGED and etag.isascii() and etag.isdecimal()):
        raise mismatch(node, etag)
    new = node
    for name in ("display_name", "description", "labels", "state", "uri"):
        value = getattr(fields, name)
        if name in mask or (not mask and value):
            new = replace(new, **{name: value})
    metadata = _metadata(node, fields.metadata, mask)
    if is_stale:
        metadata = merged(node, metadata, int(etag))
    if new == node and metadata == node.metadata:
        return node
    newest = max(node.etag + 1, now // 10**6)
    if node.schema_title in MERGED:
        new = changed(new, metadata, newest)
    return replace(new, metadata=metadata, etag=newest, updated=now)


def mismatch(node: Node, etag: str) -> Aborted:
    """Return the error in the words by which the SDK, over gRPC, knows that it should read again."""
    return Aborted(
        f"Specified {message_name(node.name.kind)} `etag`: `{etag}` does not match server `etag`: "
        f"`{node.etag}`"
    )


def _metadata(node: Node, sent: dict[str, Any] | None, mask: tuple[str, ...]) -> dict[str, Any]:
    """Return the metadata after a request. What the service adds is not taken from the request."""
    if sent is None or (mask and not any(path.startswith("metadata") for path in mask)):
        return node.metadata
    own = {key: value for key, value in sent.items() if key not in node.added}
    if not mask or "metadata" in mask:
        return own
    keys = {path.partition(".")[2] for path in mask if path.startswith("metadata.")}
    kept = {key: value for key, value in node.metadata.items() if key not in keys}
    return kept | {key: own[key] for key in keys if key in own}
