"""Tensorboards, experiments, runs and time series: create, get, list, update, delete.

The four levels differ in a few fields only.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.tensorboards.messages import (
    KINDS,
    V1,
    read_mask,
    read_new,
    updated,
    view,
)
from trainshed.api.calls.call import Call, Handler, Handlers
from trainshed.api.calls.paging import Scan, decode_token, encode_token, page_size
from trainshed.api.calls.services import Services
from trainshed.api.filters.matching import compile_filter, label_test, text_test
from trainshed.api.filters.syntax import Comparison, FilterError, Term
from trainshed.api.resources.operations import done_at_once
from trainshed.api.resources.submission import require_default_bucket
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import default_bucket
from trainshed.core.requests import Faults
from trainshed.core.tensorboards.records import LEVELS, BoardName, BoardResource, Level
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import pool

SERVICE: Final = f"{V1}.TensorboardService"
_PAGE: Final = {Level.TENSORBOARD: 100}
_OTHER_PAGE: Final = 50
_LARGEST: Final = 1000
_MOST_AT_ONCE: Final = 1000
BoardTest = Callable[[BoardResource], bool]


async def create_board(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    services = call.services
    uid = services.new_uid()
    name = BoardName(parent.project_id, parent.location, (str(uid),))
    record = read_new(request.tensorboard, name, uid, services.now())
    if not record.display_name:
        text = "The display name must be set."
        raise InvalidRequest((Violation("tensorboard.display_name", text),))
    # Clients put blobs there.
    await require_default_bucket(services, name.project_id)
    done = done_at_once(services, name, OperationKind.CREATE, str(name), _view(services, record))
    await services.tensorboards.create((record,), done)
    return operations.finished(done)


async def update_board(call: Call, request: Any) -> Message:
    services = call.services
    name = BoardName.parse(request.tensorboard.name, Level.TENSORBOARD, of="tensorboard.name")
    fields = read_mask(request.update_mask.paths, Level.TENSORBOARD)
    done: list[Operation] = []

    def operation(record: BoardResource) -> Operation:
        done.append(
            done_at_once(services, name, OperationKind.UPDATE, str(name), _view(services, record))
        )
        return done[-1]

    now = services.now()
    await services.tensorboards.change(
        name, lambda record: updated(record, request.tensorboard, fields, now), operation
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
    kind = KINDS[level]
    return pool.message_class(f"{V1}.BatchCreate{kind.messages}Response")(
        **{kind.fields: [view(record) for record in created]}
    )


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
    passes = _filter(request.filter)
    size = page_size(request.page_size, default=_PAGE.get(level, _OTHER_PAGE), maximum=_LARGEST)
    question = (parent, level.value, request.filter)
    after = decode_token(request.page_token, *question) if request.page_token else ""
    page: list[BoardResource] = []
    scan = Scan(passes, seconds=math.inf)
    # Without a filter, one row more than is wanted tells whether there is a next page.
    chunk = _LARGEST if request.filter else size + 1
    more = True
    while more and len(page) <= size:
        rows = await call.services.tensorboards.below(parent, level, after, chunk)
        verdicts = await scan.judge(rows)
        page += [record for record, passing in zip(rows, verdicts, strict=True) if passing]
        more = len(rows) == chunk
        after = rows[-1].name.own_id if rows else after
    token = encode_token(page[size - 1].name.own_id, *question) if len(page) > size else ""
    return pool.message_class(f"{V1}.List{KINDS[level].messages}Response")(
        **{KINDS[level].fields: [_view(call.services, record) for record in page[:size]]},
        next_page_token=token,
    )


async def _update(level: Level, call: Call, request: Any) -> Message:
    sent = getattr(request, KINDS[level].field)
    name = BoardName.parse(sent.name, level, of=f"{KINDS[level].field}.name")
    fields = read_mask(request.update_mask.paths, level)
    now = call.services.now()
    return view(
        await call.services.tensorboards.change(
            name, lambda record: updated(record, sent, fields, now)
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
    for level, kind in KINDS.items():
        handlers[f"{SERVICE}.Get{kind.message}"] = partial(_get, level)
        handlers[f"{SERVICE}.List{kind.messages}"] = partial(_list, level)
        handlers[f"{SERVICE}.Delete{kind.message}"] = partial(_delete, level)
        if level is not Level.TENSORBOARD:
            handlers[f"{SERVICE}.Create{kind.message}"] = partial(_create, level)
            handlers[f"{SERVICE}.Update{kind.message}"] = partial(_update, level)
    return handlers


HANDLERS: Final[Handlers] = _handlers()


def _view(services: Services, record: BoardResource) -> Message:
    settings = services.settings
    return view(record, default_bucket(settings.bucket, settings.project, record.name.project_id))


def _new(level: Level, call: Call, request: Any, parent: str) -> BoardResource:
    """Return the record that a create request asks for. Raises InvalidRequest."""
    above = BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent")
    uid = call.services.new_uid()
    own_id = getattr(request, f"{KINDS[level].field}_id")
    # Clients choose the ids of runs and of experiments; a time series gets one here unless it names one.
    name = above.child(own_id or str(uid))
    return read_new(getattr(request, KINDS[level].field), name, uid, call.services.now())


def _parent(level: Level, parent: str) -> str:
    if level is Level.TENSORBOARD:
        return str(known_location(parent))
    return str(BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent"))


def _filter(text: str) -> BoardTest:
    return compile_filter(text, _leaf)


def _leaf(leaf: Comparison | Term) -> BoardTest:
    if leaf.path[0] == "labels":
        labelled = label_test(leaf)
        return lambda record: labelled(record.labels)
    if isinstance(leaf, Comparison):
        test = text_test(leaf)
        match leaf.name:
            case "display_name" | "displayName":
                return lambda record: test(record.display_name)
            case "is_default" | "isDefault":
                return lambda record: test(str(record.is_default).lower())
            case "name":
                return lambda record: test(str(record.name))
            case "source":
                return lambda record: test(record.source)
            case _:
                pass
    raise FilterError(
        f"{leaf.name!r} cannot be filtered by; compare display_name, is_default, name or source, or ask for "
        "labels.KEY"
    )
