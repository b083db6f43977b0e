"""Long-running operations: read, listed, waited for, cancelled, deleted. What they are about is in the
views."""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import operation_views
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import SCAN_LIMIT, decode_token, encode_token, page_size
from trainshed.api.filters.matching import compile_tree
from trainshed.api.filters.syntax import Comparison, FilterError, Operator, Term, parse_filter
from trainshed.api.resources.studies import cancel_operation, wait_for
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.store.records import Operation
from trainshed.wire import pool

_SERVICE: Final = "google.longrunning.Operations"
_LONGEST_WAIT: Final = 600.0
_USUAL_WAIT: Final = 30.0
"""Seconds that a WaitOperation lasts at most, and where it names no time."""
_CHUNK: Final = 250


async def get(call: Call, request: Any) -> Message:
    record = await call.services.reader.operation(request.name)
    return await operation_views.operation(call.services, record)


async def wait(call: Call, request: Any) -> Message:
    """The operation as soon as it is done, or as it is when the time is up (no error, as the public text
    says)."""
    patience = _USUAL_WAIT
    if request.HasField("timeout"):
        patience = request.timeout.seconds + request.timeout.nanos / 10**9
    record = await wait_for(call.services, request.name, min(patience, _LONGEST_WAIT))
    return await operation_views.operation(call.services, record)


async def list_(call: Call, request: Any) -> Message:
    size = page_size(request.page_size, default=100, maximum=1_000)
    passes = _compile(request.filter)
    question = (request.name, request.filter)
    after = decode_token(request.page_token, *question) if request.page_token else ""
    found: list[Operation] = []
    scanned, more = 0, True
    while more and len(found) < size and scanned < SCAN_LIMIT:
        # One more than is looked at tells whether there are others behind.
        rows = await call.services.reader.operations(request.name, after, _CHUNK + 1)
        more = len(rows) > _CHUNK
        for row in rows[:_CHUNK]:
            if len(found) == size:
                more = True
                break
            after = row.name
            scanned += 1
            if passes(row):
                found.append(row)
    return pool.message_class("google.longrunning.ListOperationsResponse")(
        operations=[await operation_views.operation(call.services, row) for row in found],
        next_page_token=encode_token(after, *question) if more else "",
    )


async def cancel(call: Call, request: Any) -> Message:
    """End an operation that is not done. Too late for one that is, which is no error; an unknown one is."""
    await cancel_operation(call.services, request.name)
    return pool.message_class("google.protobuf.Empty")()


async def delete(call: Call, request: Any) -> Message:
    """Of one that is done; what it was about stays."""
    await call.services.studies.delete_operation(request.name)
    return pool.message_class("google.protobuf.Empty")()


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.GetOperation": get,
    f"{_SERVICE}.WaitOperation": wait,
    f"{_SERVICE}.ListOperations": list_,
    f"{_SERVICE}.CancelOperation": cancel,
    f"{_SERVICE}.DeleteOperation": delete,
}


def _compile(text: str) -> Callable[[Operation], bool]:
    """The predicate of a list filter. Raises InvalidRequest."""
    try:
        return compile_tree(parse_filter(text), _leaf)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


def _leaf(leaf: Comparison | Term) -> Callable[[Operation], bool]:
    if leaf.path != ("done",):
        raise FilterError(f"operations cannot be filtered by {leaf.name!r}; use done")
    if isinstance(leaf, Term):
        return lambda record: record.state.is_final
    wanted = {"true": True, "false": False}.get(leaf.value.lower())
    if wanted is None:
        raise FilterError(f"done is true or false, not {leaf.value!r}")
    match leaf.operator:
        case Operator.EQUAL | Operator.HAS:
            return lambda record: record.state.is_final is wanted
        case Operator.NOT_EQUAL:
            return lambda record: record.state.is_final is not wanted
        case _:
            raise FilterError(f"done cannot be compared by {leaf.operator}; use = or !=")
