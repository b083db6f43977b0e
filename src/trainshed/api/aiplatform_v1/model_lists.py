"""Lists of models and of their versions: filters, orders, pages."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import model_messages
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.model_messages import read_model_name
from trainshed.api.calls.call import Call
from trainshed.api.calls.paging import (
    SCAN_LIMIT,
    Mask,
    Scan,
    decode_number,
    encode_token,
    page_size,
)
from trainshed.api.filters.matching import compile_tree, label_test, text_test
from trainshed.api.filters.syntax import Comparison, FilterError, Term, parse_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.pipelines.records import ModelVersion
from trainshed.wire import pool

_V1: Final = "google.cloud.aiplatform.v1"
_PAGE: Final = 100

ModelTest = Callable[[ModelVersion], bool]

_ORDERS: Final[Mapping[str, Callable[[ModelVersion], Any]]] = {
    "display_name": lambda record: record.display_name,
    "create_time": lambda record: record.created,
    "update_time": lambda record: record.updated,
}
_TEXTS: Final[Mapping[str, Callable[[ModelVersion], str]]] = {
    "model": lambda record: record.name.model_id,
    "display_name": lambda record: record.display_name,
    "displayName": lambda record: record.display_name,
}


async def list_models(call: Call, request: Any) -> Message:
    """The default version of each model, newest model first unless `order_by` says otherwise. At most
    SCAN_LIMIT models are ordered and filtered."""
    parent = known_location(request.parent)
    found = await call.services.models.models(parent.project_id, parent.location, "", SCAN_LIMIT)
    page = await _page(found, request, str(parent))
    mask = Mask(request.read_mask, model_messages.MODEL)
    return pool.message_class(f"{_V1}.ListModelsResponse")(
        models=[mask.apply(model_messages.model(record)) for record in page.records],
        next_page_token=page.next_token,
    )


async def list_versions(call: Call, request: Any) -> Message:
    """The versions of a model, newest first unless `order_by` says otherwise."""
    name, _ = read_model_name(request.name)
    found = await call.services.models.versions(name)
    page = await _page(found, request, str(name))
    mask = Mask(request.read_mask, model_messages.MODEL)
    return pool.message_class(f"{_V1}.ListModelVersionsResponse")(
        models=[mask.apply(model_messages.model(r, versioned=True)) for r in page.records],
        next_page_token=page.next_token,
    )


@dataclass(frozen=True, slots=True)
class _Page:
    records: tuple[ModelVersion, ...]
    next_token: str


async def _page(found: tuple[ModelVersion, ...], request: Any, what: str) -> _Page:
    """One page of what passes the request's filter, in its order; a token says where it ended."""
    passes, ordered = _compile(request.filter), _ordered(found, request.order_by)
    size = page_size(request.page_size, default=_PAGE, maximum=_PAGE)
    question = (what, request.filter, request.order_by)
    start = decode_number(request.page_token, *question)
    # Without a limit of time, since a token counts what passes; names are short, and a filter's tests are
    # counted.
    verdicts = await Scan(passes, seconds=math.inf).judge(ordered)
    passing = list(itertools.compress(ordered, verdicts))
    more = len(passing) > start + size
    return _Page(
        tuple(passing[start : start + size]),
        encode_token(str(start + size), *question) if more else "",
    )


def _ordered(found: tuple[ModelVersion, ...], order_by: str) -> list[ModelVersion]:
    """Sorted by `display_name, create_time desc`, the first one first. Raises InvalidRequest."""
    ordered = list(found)
    for part in reversed(
        [part.split() for part in order_by.split(",")] if order_by.strip() else []
    ):
        match part:
            case [field, *direction] if field in _ORDERS and direction in ([], ["asc"], ["desc"]):
                ordered.sort(key=_ORDERS[field], reverse=direction == ["desc"])
            case _:
                text = (
                    f"{' '.join(part)!r} is no order; use {', '.join(_ORDERS)}, each with or without desc,"
                    " separated by commas."
                )
                raise InvalidRequest((Violation("order_by", text),))
    return ordered


def _compile(text: str) -> ModelTest:
    """The predicate of a list filter. Raises InvalidRequest."""
    try:
        return compile_tree(parse_filter(text), _leaf)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


def _leaf(leaf: Comparison | Term) -> ModelTest:
    if leaf.path[0] == "labels":
        labelled = label_test(leaf)
        return lambda record: labelled(record.labels)
    text_of = _TEXTS.get(leaf.name)
    if text_of is None or isinstance(leaf, Term):
        raise FilterError(
            f"models cannot be filtered by {leaf.name!r}; compare model or display_name, or ask for "
            "labels.KEY"
        )
    test = text_test(leaf)
    return lambda record: test(text_of(record))
