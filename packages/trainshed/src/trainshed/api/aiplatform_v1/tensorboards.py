"""`aiplatform` v1 TensorboardService: tensorboards, experiments, runs and time series
(facts/experiments#tensorboards).

The four levels differ in a few fields only. `tensorboard_points` has the points of series.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message, refuse_key
from trainshed.api.calls.call import Call, Handler, Handlers, read_update_mask
from trainshed.api.calls.paging import Scan, cut, decode_token, page_size
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.matching import record_filter
from trainshed.api.resources.operations import done_at_once
from trainshed.api.resources.submission import require_default_bucket
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import default_bucket
from trainshed.core.requests import Faults, Section, snake_case
from trainshed.core.specs.syntax import MAX_DISPLAY_NAME, read_labels
from trainshed.core.tensorboards import LEVELS, BoardName, BoardResource, Level, ValueType
from trainshed.core.units import Nanos
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json

SERVICE: Final = f"{V1}.TensorboardService"
MAX_PLUGIN_DATA: Final = 65_000
_LARGEST: Final = 1000
_MOST_AT_ONCE: Final = 1000
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


class Kind(Struct, frozen=True):
    """The names of a level in messages, and what an update of it can change."""

    #: Name of its message; the field of requests is the same in snake case.
    message: str
    #: Plural, as in names of methods; the field of an answer is the same in snake case.
    messages: str
    updatable: tuple[str, ...] = ("display_name", "description", "labels")
    #: Resources of a page, by default.
    page: int = 50

    @property
    def field(self) -> str:
        return snake_case(self.message)


_KINDS: Final = {
    Level.TENSORBOARD: Kind(
        "Tensorboard",
        "Tensorboards",
        ("display_name", "description", "labels", "is_default"),
        page=100,
    ),
    Level.EXPERIMENT: Kind("TensorboardExperiment", "TensorboardExperiments"),
    Level.RUN: Kind("TensorboardRun", "TensorboardRuns"),
    Level.SERIES: Kind(
        "TensorboardTimeSeries",
        "TensorboardTimeSeries",
        ("display_name", "description", "plugin_name", "plugin_data"),
    ),
}
_TEXTS: Final[Mapping[str, Callable[[BoardResource], str]]] = {
    "display_name": lambda record: record.display_name,
    "is_default": lambda record: str(record.is_default).lower(),
    "name": lambda record: str(record.name),
    "source": lambda record: record.source,
}


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
    done = done_at_once(services, name, OperationKind.CREATE, str(name), _view(services, record))
    await services.tensorboards.create((record,), done)
    return operations.finished(done)


async def update_board(call: Call, request: Any) -> Message:
    services = call.services
    name = BoardName.parse(request.tensorboard.name, Level.TENSORBOARD, of="tensorboard.name")
    fields = _read_mask(request.update_mask.paths, Level.TENSORBOARD)
    done: list[Operation] = []

    def operation(record: BoardResource) -> Operation:
        done.append(
            done_at_once(services, name, OperationKind.UPDATE, str(name), _view(services, record))
        )
        return done[-1]

    now = services.now()
    await services.tensorboards.change(
        name, lambda record: _updated(record, request.tensorboard, fields, now), operation
    )
    return operations.finished(done[-1])


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
    created = await call.services.tensorboards.create(records)
    return _listed("BatchCreate", level, map(view, created))


async def _create(level: Level, call: Call, request: Any) -> Message:
    record = _new(level, call, request, request.parent)
    (created,) = await call.services.tensorboards.create((record,))
    return view(created)


async def _get(level: Level, call: Call, request: Any) -> Message:
    resource = await call.services.tensorboards.resource(BoardName.parse(request.name, level))
    return _view(call.services, resource)


async def _list(level: Level, call: Call, request: Any) -> Message:
    """List resources, ascending by id."""
    parent = _parent(level, request.parent)
    passes = record_filter(request.filter, _KINDS[level].messages, _TEXTS)
    size = page_size(request.page_size, default=_KINDS[level].page, maximum=_LARGEST)
    question = (parent, level.value, request.filter)
    after = decode_token(request.page_token, *question)
    passing: list[BoardResource] = []
    scan = Scan(passes, seconds=math.inf)
    # Without a filter, one row more than is wanted tells whether there is a next page.
    chunk = _LARGEST if request.filter else size + 1
    more = True
    while more and len(passing) <= size:
        rows = await call.services.tensorboards.below(parent, level, after, chunk)
        verdicts = await scan.judge(rows)
        passing += [record for record, passes in zip(rows, verdicts, strict=True) if passes]
        more = len(rows) == chunk
        after = rows[-1].name.own_id if rows else after
    page, token = cut(passing, size, lambda record: record.name.own_id, *question)
    return _listed("List", level, (_view(call.services, record) for record in page), token)


def _listed(verb: str, level: Level, views: Iterable[Message], token: str = "") -> Message:
    kind = _KINDS[level]
    answer = message(f"{verb}{kind.messages}Response", **{snake_case(kind.messages): views})
    if token:
        answer.next_page_token = token
    return answer


async def _update(level: Level, call: Call, request: Any) -> Message:
    sent = getattr(request, _KINDS[level].field)
    name = BoardName.parse(sent.name, level, of=f"{_KINDS[level].field}.name")
    fields = _read_mask(request.update_mask.paths, level)
    now = call.services.now()
    return view(
        await call.services.tensorboards.change(
            name, lambda record: _updated(record, sent, fields, now)
        )
    )


async def _delete(level: Level, call: Call, request: Any) -> Message:
    """Delete a resource with everything below it."""
    services = call.services
    name = BoardName.parse(request.name, level)
    done = done_at_once(services, name, OperationKind.DELETE, str(name))
    runs = await services.tensorboards.delete(name, done)
    await services.points.forget(runs)
    return operations.finished(done)


def _handlers() -> dict[str, Handler]:
    handlers: dict[str, Handler] = {
        f"{SERVICE}.CreateTensorboard": create_board,
        f"{SERVICE}.UpdateTensorboard": update_board,
        f"{SERVICE}.BatchCreateTensorboardRuns": partial(batch_create, Level.RUN),
        f"{SERVICE}.BatchCreateTensorboardTimeSeries": partial(batch_create, Level.SERIES),
    }
    for level, kind in _KINDS.items():
        handlers[f"{SERVICE}.Get{kind.message}"] = partial(_get, level)
        handlers[f"{SERVICE}.List{kind.messages}"] = partial(_list, level)
        handlers[f"{SERVICE}.Delete{kind.message}"] = partial(_delete, level)
        if level is not Level.TENSORBOARD:
            handlers[f"{SERVICE}.Create{kind.message}"] = partial(_create, level)
            handlers[f"{SERVICE}.Update{kind.message}"] = partial(_update, level)
    return handlers


HANDLERS: Final[Handlers] = _handlers()


def _view(services: Services, record: BoardResource) -> Message:
    return view(record, default_bucket(services.settings.project, record.name.project_id))


def _new(level: Level, call: Call, request: Any, parent: str) -> BoardResource:
    above = BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent")
    uid = call.services.new_uid()
    own_id = getattr(request, f"{_KINDS[level].field}_id")
    # Clients choose the ids of runs and of experiments; a time series gets one here unless it names one.
    name = above.child(own_id or str(uid))
    return _read_new(getattr(request, _KINDS[level].field), name, uid, call.services.now())


def _parent(level: Level, parent: str) -> str:
    if level is Level.TENSORBOARD:
        return str(known_location(parent))
    return str(BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent"))


def view(record: BoardResource, bucket: str = "") -> Message:
    """Return a resource as its message. `bucket`: where clients are to put blobs, "" = nowhere."""
    board = message(
        _KINDS[record.name.level].message,
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
        faults.add(f"{_KINDS[level].field}_id", text)
    value_type = None
    if level is Level.SERIES:
        types = dict(enumerate(ValueType, 1))
        value_type = types.get(sent.value_type)
        if value_type is None:
            text = f"It must be one of {', '.join(ValueType)}."
            faults.add(f"{_KINDS[level].field}.value_type", text)
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


def _read_mask(paths: Iterable[str], level: Level) -> tuple[str, ...]:
    """Return the fields that an update replaces; all that can be updated for no mask or `*`. Raises
    InvalidRequest."""
    allowed = _KINDS[level].updatable
    return read_update_mask(paths, allowed) or allowed


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
    section = Section(wire_json.to_public(sent), _KINDS[level].field, faults)
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
