"""`aiplatform` v1 TensorboardService: tensorboards, experiments, runs and time series
(facts/experiments#tensorboards).

The four levels differ only in a few fields. The module `points` implements the methods for the points of
series.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import Kind, list_response
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message, reject_encryption_key
from trainshed.api.calls.call import Call, Handler, Handlers
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.operations import finished_operation
from trainshed.api.resources.submission import require_default_bucket
from trainshed.core.errors import Aborted, InvalidRequest, Violation
from trainshed.core.names import default_bucket
from trainshed.core.requests import Faults, Section, snake_case
from trainshed.core.specs.syntax import check_texts, read_labels
from trainshed.core.units import Nanos
from trainshed.store.records import OperationKind
from trainshed.wire import json as wire_json
from trainshed_tracking.stores import Stores
from trainshed_tracking.tensorboards.records import LEVELS, BoardName, BoardResource, Level, ValueType

SERVICE: Final = f"{V1}.TensorboardService"
MAX_PLUGIN_DATA: Final = 65_000
_MAX_BATCH: Final = 1000
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
_ETAG_RESOLUTION: Final = 10**6
"""Resolution of etags in nanoseconds (1 ms)."""


_TEXTS: Final[Mapping[str, Callable[[BoardResource], str]]] = {
    "display_name": lambda record: record.display_name,
    "is_default": lambda record: str(record.is_default).lower(),
    "name": lambda record: str(record.name),
    "source": lambda record: record.source,
}
_ORDERS: Final[Mapping[str, Callable[[BoardResource], Any]]] = {
    "display_name": lambda record: record.display_name,
    "create_time": lambda record: record.created,
    "update_time": lambda record: record.updated,
}
_FIELDS: Final = ("display_name", "description", "labels")
_UPDATABLE: Final = {
    Level.TENSORBOARD: (*_FIELDS, "is_default"),
    Level.EXPERIMENT: _FIELDS,
    Level.RUN: _FIELDS,
    Level.SERIES: ("display_name", "description", "plugin_name", "plugin_data"),
}
"""The fields that an update can change, by level."""


_NOUNS: Final = {
    Level.TENSORBOARD: "Tensorboard",
    Level.EXPERIMENT: "TensorboardExperiment",
    Level.RUN: "TensorboardRun",
    Level.SERIES: "TensorboardTimeSeries",
}
"""The name of the message for each level."""
BoardKind = Kind[BoardName, BoardResource]


def _plural(level: Level) -> str:
    return _NOUNS[level] if level is Level.SERIES else f"{_NOUNS[level]}s"


def _kind(stores: Stores, level: Level) -> BoardKind:
    page = 100 if level is Level.TENSORBOARD else 50
    return Kind(
        "TensorboardService",
        _NOUNS[level],
        lambda text: BoardName.parse(text, level),
        lambda _: stores.tensorboards,
        _view,
        Listing(_plural(level), _TEXTS, _ORDERS, page, max_page=1_000),
        lambda parent: {"parent": _parent(level, parent), "level": level},
        _plural(level),
    )


def _parent(level: Level, parent: str) -> str:
    if level is Level.TENSORBOARD:
        return str(known_location(parent))
    return str(BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent"))


async def create_board(kind: BoardKind, call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    services = call.services
    uid = services.new_uid()
    name = BoardName(parent.project_id, parent.location, (str(uid),))
    record = _read_new(request.tensorboard, name, uid, services.now())
    if not record.display_name:
        text = "The display name must be set."
        raise InvalidRequest((Violation("tensorboard.display_name", text),))
    reject_encryption_key(request.tensorboard, "tensorboard")
    # Ensure that the project's default bucket exists, because clients upload blobs to it.
    await require_default_bucket(services, name.project_id)
    return await kind.create(call, record)


async def batch_create(stores: Stores, level: Level, call: Call, request: Any) -> Message:
    """Create all resources of a batch, or none. Each request in the batch may have its own parent resource,
    which must be below the batch's parent."""
    if not 1 <= len(request.requests) <= _MAX_BATCH:
        text = f"Send 1 to {_MAX_BATCH} requests at once, not {len(request.requests)}."
        raise InvalidRequest((Violation("requests", text),))
    records: list[BoardResource] = []
    faults = Faults()
    for number, part in enumerate(request.requests):
        at = f"requests[{number}]."
        parent = part.parent or request.parent
        if not f"{parent}/".startswith(f"{request.parent}/"):
            faults.add(f"{at}parent", f"{parent!r} is not below {request.parent!r}.")
            continue
        with faults.collect(at):
            records.append(_new(level, call, part, parent))
    faults.refuse()
    created = await stores.tensorboards.create_all(records)
    return list_response("BatchCreate", _plural(level), map(view, created))


async def _create(stores: Stores, level: Level, call: Call, request: Any) -> Message:
    record = _new(level, call, request, request.parent)
    return view(await stores.tensorboards.create(record))


async def update_board(kind: BoardKind, call: Call, request: Any) -> Message:
    name, change = _read_update(Level.TENSORBOARD, call, request)
    response = partial(_view, call.services)
    return await kind.change(call, name, change, OperationKind.UPDATE, response)


async def _update(stores: Stores, level: Level, call: Call, request: Any) -> Message:
    return view(await stores.tensorboards.change(*_read_update(level, call, request)))


def _read_update(
    level: Level, call: Call, request: Any
) -> tuple[BoardName, Callable[[BoardResource], BoardResource]]:
    """Return the stored record that a request refers to, and the updated record."""
    field, now = _field(level), call.services.now()
    sent = getattr(request, field)
    name = BoardName.parse(sent.name, level, of=f"{field}.name")
    fields = read_update_mask(request.update_mask.paths, _UPDATABLE[level], sent)
    return name, lambda record: _apply_update(record, sent, fields, now)


async def _delete(stores: Stores, level: Level, call: Call, request: Any) -> Message:
    done = finished_operation(call.services, OperationKind.DELETE, request.name)
    deleted = await stores.tensorboards.delete(BoardName.parse(request.name, level), done)
    await stores.points.forget([resource.uid for resource in deleted if resource.name.level is Level.RUN])
    return operations.finished_view(done)


def _view(services: Services, record: BoardResource) -> Message:
    return view(record, default_bucket(services.settings.project, record.name.project_id))


def _new(level: Level, call: Call, request: Any, parent: str) -> BoardResource:
    above = BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent")
    uid = call.services.new_uid()
    own_id = getattr(request, f"{_field(level)}_id")
    # Clients must choose the IDs of runs and experiments. For a time series the ID is optional, and the
    # default is its UID.
    name = above.child(own_id or str(uid))
    return _read_new(getattr(request, _field(level)), name, uid, call.services.now())


def _field(level: Level) -> str:
    """Return the name of the request field that contains a resource of this level."""
    return snake_case(_NOUNS[level])


def view(record: BoardResource, bucket: str | None = None) -> Message:
    """Return the message of a resource. `bucket`: the bucket for blobs; None = no bucket."""
    board = message(
        _NOUNS[record.name.level],
        name=str(record.name),
        display_name=record.display_name,
        description=record.description,
        etag=_etag(record),
    )
    set_micros(board.create_time, record.created)
    set_micros(board.update_time, record.updated)
    match record.name.level:
        case Level.TENSORBOARD:
            board.is_default = record.is_default
            if bucket is not None:
                board.blob_storage_path_prefix = blob_prefix(bucket, record.name)
        case Level.EXPERIMENT:
            board.source = record.source
        case Level.RUN:
            pass
        case Level.SERIES:
            board.value_type = value_number(record.value_type)
            board.plugin_name = record.plugin_name
            board.plugin_data = record.plugin_data
            return board  # A time series has no field `labels`.
    board.labels.update(dict(record.labels))
    return board


def blob_prefix(bucket: str, name: BoardName) -> str:
    """Return `BUCKET/FOLDER` for the blobs of a project. Clients create a subfolder for each tensorboard."""
    return f"{bucket}/tensorboards/{name.project_id}"


def _etag(record: BoardResource) -> str:
    return str(record.updated // _ETAG_RESOLUTION)


def value_number(value_type: ValueType | None) -> int:
    return 0 if value_type is None else 1 + list(ValueType).index(value_type)


def _read_new(sent: Any, name: BoardName, uid: int, now: Nanos) -> BoardResource:
    """Return the record of a new resource. Raises InvalidRequest with all faults."""
    faults = Faults()
    level = name.level
    _check(sent, level, faults, ("display_name",))
    if level is not Level.TENSORBOARD and not _ID.fullmatch(name.own_id):
        text = (
            f"{name.own_id!r} is not an id; it has at most 128 lowercase letters, digits and dashes, and "
            "begins with a letter or digit."
        )
        faults.add(f"{_field(level)}_id", text)
    value_type = None
    if level is Level.SERIES:
        value_type = dict(enumerate(ValueType, 1)).get(sent.value_type)
        if value_type is None:
            text = f"It must be one of {', '.join(ValueType)}."
            faults.add(f"{_field(level)}.value_type", text)
    faults.refuse()
    return BoardResource(
        name,
        uid,
        now,
        now,
        display_name=sent.display_name,
        description=sent.description,
        labels=_labels(sent, level),
        is_default=level is Level.TENSORBOARD and sent.is_default,
        source=sent.source if level is Level.EXPERIMENT else "",
        value_type=value_type,
        plugin_name=sent.plugin_name if level is Level.SERIES else "",
        plugin_data=sent.plugin_data if level is Level.SERIES else b"",
    )


def _apply_update(record: BoardResource, sent: Any, fields: Sequence[str], now: Nanos) -> BoardResource:
    """Return the updated record. Raises InvalidRequest with all faults. Raises Aborted if the record has
    changed since the client read the etag."""
    if sent.etag not in ("", _etag(record)):
        raise Aborted(f"{record.name} has changed since its etag {sent.etag!r} was read; read it again.")
    faults = Faults()
    level = record.name.level
    _check(sent, level, faults, fields)
    faults.refuse()
    for field in fields:
        value = _labels(sent, level) if field == "labels" else getattr(sent, field)
        record = replace(record, **{field: value})
    return replace(record, updated=max(now, record.updated + _ETAG_RESOLUTION))


def _check(sent: Any, level: Level, faults: Faults, fields: Sequence[str]) -> None:
    section = Section(wire_json.to_public(sent), _field(level), faults)
    check_texts(section, "displayName", "description", "source", "pluginName")
    if level is Level.SERIES:
        if not sent.display_name and "display_name" in fields:
            section.fault("displayName", "The display name must be set.")
        if len(sent.plugin_data) > MAX_PLUGIN_DATA:
            section.fault("pluginData", f"At most {MAX_PLUGIN_DATA} bytes are allowed.")
    else:
        read_labels(section)


def _labels(sent: Any, level: Level) -> tuple[tuple[str, str], ...]:
    return () if level is Level.SERIES else tuple(sorted(sent.labels.items()))


def handlers(stores: Stores) -> Handlers:
    bound: dict[str, Handler] = {}
    for level in LEVELS:
        kind, noun = _kind(stores, level), _NOUNS[level]
        own: dict[str, Handler] = {
            f"Create{noun}": partial(_create, stores, level),
            f"Update{noun}": partial(_update, stores, level),
            f"Delete{noun}": partial(_delete, stores, level),
        }
        if level is Level.TENSORBOARD:
            own |= {
                "CreateTensorboard": partial(create_board, kind),
                "UpdateTensorboard": partial(update_board, kind),
            }
        bound |= kind.handlers(**own)
    return bound | {
        f"{SERVICE}.BatchCreate{_plural(level)}": partial(batch_create, stores, level)
        for level in (Level.RUN, Level.SERIES)
    }
