"""`aiplatform` v1 TensorboardService: tensorboards, experiments, runs and time series
(facts/experiments#tensorboards).

The four levels differ in a few fields only. `tensorboard_points` has the points of series.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import Kind, listed
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message, refuse_key
from trainshed.api.calls.call import Call, Handler, Handlers, read_update_mask
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.operations import done_at_once
from trainshed.api.resources.submission import require_default_bucket
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import default_bucket
from trainshed.core.requests import Faults, Section, snake_case
from trainshed.core.specs.syntax import MAX_DISPLAY_NAME, read_labels
from trainshed.core.tensorboards import LEVELS, BoardName, BoardResource, Level, ValueType
from trainshed.core.units import Nanos
from trainshed.store.records import OperationKind
from trainshed.wire import json as wire_json

SERVICE: Final = f"{V1}.TensorboardService"
MAX_PLUGIN_DATA: Final = 65_000
_MOST_AT_ONCE: Final = 1000
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


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
"""What an update can change."""


def _kind(level: Level, noun: str, plural: str, page: int = 50) -> Kind[BoardName, BoardResource]:
    return Kind(
        "TensorboardService",
        noun,
        lambda text: BoardName.parse(text, level),
        lambda services: services.tensorboards,
        _view,
        Listing(plural, _TEXTS, _ORDERS, page, largest=1_000),
        lambda parent: {"parent": _parent(level, parent), "level": level},
        plural,
    )


def _parent(level: Level, parent: str) -> str:
    if level is Level.TENSORBOARD:
        return str(known_location(parent))
    return str(BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent"))


async def create_board(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    services = call.services
    uid = services.new_uid()
    name = BoardName(parent.project_id, parent.location, (str(uid),))
    record = _read_new(request.tensorboard, name, uid, services.now())
    if not record.display_name:
        text = "The display name must be set."
        raise InvalidRequest((Violation("tensorboard.display_name", text),))
    refuse_key(request.tensorboard, "tensorboard")
    # Clients put blobs there.
    await require_default_bucket(services, name.project_id)
    return await _KINDS[Level.TENSORBOARD].create(call, record)


async def batch_create(level: Level, call: Call, request: Any) -> Message:
    """Create all resources of a batch, or none. Each request may name a parent of its own below the common
    one."""
    if not 1 <= len(request.requests) <= _MOST_AT_ONCE:
        text = f"Send 1 to {_MOST_AT_ONCE} requests at once, not {len(request.requests)}."
        raise InvalidRequest((Violation("requests", text),))
    records: list[BoardResource] = []
    faults = Faults()
    for number, part in enumerate(request.requests):
        at = f"requests[{number}]."
        parent = part.parent or request.parent
        if not f"{parent}/".startswith(f"{request.parent}/"):
            faults.add(f"{at}parent", f"{parent!r} does not stand below {request.parent!r}.")
            continue
        with faults.gathered(at):
            records.append(_new(level, call, part, parent))
    faults.refuse()
    created = await call.services.tensorboards.create_all(records)
    return listed("BatchCreate", _KINDS[level].plural, map(view, created))


async def _create(level: Level, call: Call, request: Any) -> Message:
    record = _new(level, call, request, request.parent)
    return view(await call.services.tensorboards.create(record))


async def _update(level: Level, call: Call, request: Any) -> Message:
    """Replace fields of a resource: of a tensorboard by an operation that is done with that."""
    kind, field, now = _KINDS[level], _field(level), call.services.now()
    sent = getattr(request, field)
    name = BoardName.parse(sent.name, level, of=f"{field}.name")
    fields = read_update_mask(request.update_mask.paths, _UPDATABLE[level]) or _UPDATABLE[level]

    def updated(record: BoardResource) -> BoardResource:
        return _updated(record, sent, fields, now)

    if level is Level.TENSORBOARD:
        response = partial(_view, call.services)
        return await kind.change(call, name, updated, OperationKind.UPDATE, response)
    return view(await call.services.tensorboards.change(name, updated))


async def _delete(level: Level, call: Call, request: Any) -> Message:
    """Delete a resource with everything below it."""
    services = call.services
    done = done_at_once(services, OperationKind.DELETE, request.name)
    deleted = await services.tensorboards.delete(BoardName.parse(request.name, level), done)
    await services.points.forget(
        [resource.uid for resource in deleted if resource.name.level is Level.RUN]
    )
    return operations.finished(done)


def _view(services: Services, record: BoardResource) -> Message:
    return view(record, default_bucket(services.settings.project, record.name.project_id))


def _new(level: Level, call: Call, request: Any, parent: str) -> BoardResource:
    above = BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent")
    uid = call.services.new_uid()
    own_id = getattr(request, f"{_field(level)}_id")
    # Clients choose the ids of runs and of experiments; a time series gets one here unless it names one.
    name = above.child(own_id or str(uid))
    return _read_new(getattr(request, _field(level)), name, uid, call.services.now())


def _field(level: Level) -> str:
    """Return the field of requests in which a resource of a level is."""
    return snake_case(_KINDS[level].noun)


def view(record: BoardResource, bucket: str = "") -> Message:
    """Return a resource as its message. `bucket`: where clients are to put blobs, "" = nowhere."""
    board = message(
        _KINDS[record.name.level].noun,
        name=str(record.name),
        display_name=record.display_name,
        description=record.description,
        etag=str(record.updated // 10**6),
    )
    set_micros(board.create_time, record.created)
    set_micros(board.update_time, record.updated)
    match record.name.level:
        case Level.TENSORBOARD:
            board.is_default = record.is_default
            if bucket:
                # Clients make a folder for each tensorboard below it, as the uploader does.
                board.blob_storage_path_prefix = f"{bucket}/tensorboards/{record.name.project_id}"
        case Level.EXPERIMENT:
            board.source = record.source
        case Level.RUN:
            pass
        case Level.SERIES:
            board.value_type = value_number(record.value_type)
            board.plugin_name = record.plugin_name
            board.plugin_data = record.plugin_data
            return board  # It has no labels.
    board.labels.update(dict(record.labels))
    return board


def value_number(value_type: ValueType | None) -> int:
    return 0 if value_type is None else 1 + list(ValueType).index(value_type)


def _read_new(sent: Any, name: BoardName, uid: int, now: Nanos) -> BoardResource:
    """Return the record of a resource to create. Raises InvalidRequest with all faults."""
    faults = Faults()
    level = name.level
    _check(sent, level, faults)
    if level is not Level.TENSORBOARD and not _ID.fullmatch(name.own_id):
        text = (
            f"{name.own_id!r} is not an id; it has at most 128 lowercase letters, digits and dashes, and "
            "begins with a letter or digit."
        )
        faults.add(f"{_field(level)}_id", text)
    value_type = None
    if level is Level.SERIES:
        types = dict(enumerate(ValueType, 1))
        value_type = types.get(sent.value_type)
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


def _updated(
    record: BoardResource, sent: Any, fields: tuple[str, ...], now: Nanos
) -> BoardResource:
    """Return the record with the fields of the sent. Raises InvalidRequest with all faults."""
    faults = Faults()
    level = record.name.level
    _check(sent, level, faults)
    faults.refuse()
    for field in fields:
        value = _labels(sent, level) if field == "labels" else getattr(sent, field)
        record = replace(record, **{field: value})
    return replace(record, updated=now)


def _check(sent: Any, level: Level, faults: Faults) -> None:
    section = Section(wire_json.to_public(sent), _field(level), faults)
    if len(sent.display_name) > MAX_DISPLAY_NAME:
        section.fault("displayName", f"At most {MAX_DISPLAY_NAME} characters are allowed.")
    if level is Level.SERIES:
        if not sent.display_name:
            section.fault("displayName", "The display name must be set.")
        if len(sent.plugin_data) > MAX_PLUGIN_DATA:
            section.fault("pluginData", f"At most {MAX_PLUGIN_DATA} bytes are allowed.")
    else:
        read_labels(section)


def _labels(sent: Any, level: Level) -> tuple[tuple[str, str], ...]:
    return () if level is Level.SERIES else tuple(sorted(sent.labels.items()))


_KINDS: Final = {
    Level.TENSORBOARD: _kind(Level.TENSORBOARD, "Tensorboard", "Tensorboards", 100),
    Level.EXPERIMENT: _kind(Level.EXPERIMENT, "TensorboardExperiment", "TensorboardExperiments"),
    Level.RUN: _kind(Level.RUN, "TensorboardRun", "TensorboardRuns"),
    Level.SERIES: _kind(Level.SERIES, "TensorboardTimeSeries", "TensorboardTimeSeries"),
}


def _handlers() -> Handlers:
    handlers: dict[str, Handler] = {}
    for level, kind in _KINDS.items():
        handlers |= kind.handlers(
            **{
                f"Create{kind.noun}": partial(_create, level),
                f"Update{kind.noun}": partial(_update, level),
                f"Delete{kind.noun}": partial(_delete, level),
            }
        )
    return handlers | {
        f"{SERVICE}.CreateTensorboard": create_board,
        f"{SERVICE}.BatchCreateTensorboardRuns": partial(batch_create, Level.RUN),
        f"{SERVICE}.BatchCreateTensorboardTimeSeries": partial(batch_create, Level.SERIES),
    }


HANDLERS: Final[Handlers] = _handlers()
