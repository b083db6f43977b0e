"""`aiplatform` v1 ModelService: imported evaluations of model versions, and their slices
(facts/models#evaluations)."""

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.model_messages import read_model_name
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import Mask, Scan, decode_number, encode_token, page_size
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.matching import compile_filter, text_test
from trainshed.api.filters.syntax import Comparison, FilterError, Term
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import EvaluationName
from trainshed.core.pipelines.records import EvaluationSlice, ModelEvaluation
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos
from trainshed.wire import json as wire_json
from trainshed.wire import pool
from trainshed.wire.finite import endless

_V1: Final = "google.cloud.aiplatform.v1"
_SERVICE: Final = f"{_V1}.ModelService"
EVALUATION: Final = f"{_V1}.ModelEvaluation"
SLICE: Final = f"{_V1}.ModelEvaluationSlice"
MAX_DISPLAY_NAME: Final = 128
MAX_BYTES: Final = 200_000
"""Most bytes of an evaluation, or of a slice, as JSON."""
MAX_SLICES: Final = 200
"""Most slices that one request imports."""
MAX_NUMBERS: Final = 50
"""Most metrics that are kept separately with an evaluation, for an overview."""
_PAGE: Final = 50
_LARGEST: Final = 100
T = TypeVar("T", ModelEvaluation, EvaluationSlice)


async def import_evaluation(call: Call, request: Any) -> Message:
    """Import an evaluation of the version that the parent names, or else of the default one."""
    model, version = read_model_name(request.parent, field="parent")
    given = request.model_evaluation
    public = wire_json.to_public(given)
    faults = Faults()
    _check(given, public, "model_evaluation", faults)
    if len(given.display_name) > MAX_DISPLAY_NAME:
        text = f"At most {MAX_DISPLAY_NAME} characters are allowed."
        faults.add("model_evaluation.display_name", text)
    faults.refuse()
    services = call.services
    found = await services.models.version(model, version)
    evaluation = ModelEvaluation(
        name=EvaluationName(model, services.new_uid()),
        version=found.version,
        public_json=_kept(public),
        created=services.now(),
        display_name=given.display_name,
        slice_dimensions=tuple(dict.fromkeys(given.slice_dimensions)),
        numbers=_numbers(given.metrics),
    )
    await services.evaluations.add(evaluation)
    return evaluation_view(evaluation)


async def get_evaluation(call: Call, request: Any) -> Message:
    return evaluation_view(await call.services.evaluations.evaluation(_name(request.name)))


async def list_evaluations(call: Call, request: Any) -> Message:
    """List the evaluations of one version, newest first."""
    model, version = read_model_name(request.parent, field="parent")
    services = call.services
    number = (await services.models.version(model, version)).version
    passes = _filter(
        request.filter, {"display_name": lambda each: each.display_name}, ModelEvaluation
    )
    mask = Mask(request.read_mask, EVALUATION)

    async def read(position: int, limit: int) -> tuple[ModelEvaluation, ...]:
        return await services.evaluations.evaluations(model, number, position, limit)

    found, token = await _page(
        request, f"{model}@{number}", passes, read, lambda each: each.name.evaluation_id
    )
    # In a thread, because each of many may be large.
    views = await asyncio.to_thread(lambda: [mask.apply(evaluation_view(each)) for each in found])
    return pool.message_class(f"{_V1}.ListModelEvaluationsResponse")(
        model_evaluations=views, next_page_token=token
    )


async def import_slices(call: Call, request: Any) -> Message:
    """Import all of the slices, or none."""
    name = _name(request.parent, field="parent")
    given = request.model_evaluation_slices
    if not 1 <= len(given) <= MAX_SLICES:
        text = f"Send 1 to {MAX_SLICES} slices at once, not {len(given)}."
        raise InvalidRequest((Violation("model_evaluation_slices", text),))
    services = call.services
    uids = [services.new_uid() for _ in given]
    slices = await asyncio.to_thread(_read_slices, given, name, uids, services.now())
    await services.evaluations.add_slices(slices)
    return pool.message_class(f"{_V1}.BatchImportModelEvaluationSlicesResponse")(
        imported_model_evaluation_slices=[_slice_name(each) for each in slices]
    )


async def get_slice(call: Call, request: Any) -> Message:
    evaluation, _, number = request.name.rpartition("/slices/")
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        text = f"{request.name!r} is not the name of a slice; expected EVALUATION/slices/NUMBER."
        raise InvalidRequest((Violation("name", text),))
    # The number is capped at the largest one that the store can compare with; no slice exceeds it.
    wanted = min(int(number), 2**63 - 1)
    return slice_view(await call.services.evaluations.slice(_name(evaluation), wanted))


async def list_slices(call: Call, request: Any) -> Message:
    """List the slices of an evaluation, in the order of their import."""
    name, services = _name(request.parent, field="parent"), call.services
    texts: dict[str, Callable[[EvaluationSlice], str]] = {
        "slice.dimension": lambda each: each.dimension,
        "slice.value": lambda each: each.value,
    }
    passes = _filter(request.filter, texts, EvaluationSlice)
    mask = Mask(request.read_mask, SLICE)

    async def read(position: int, limit: int) -> tuple[EvaluationSlice, ...]:
        return await services.evaluations.slices(name, position, limit)

    found, token = await _page(request, str(name), passes, read, lambda each: each.slice_id)
    views = await asyncio.to_thread(lambda: [mask.apply(slice_view(each)) for each in found])
    return pool.message_class(f"{_V1}.ListModelEvaluationSlicesResponse")(
        model_evaluation_slices=views, next_page_token=token
    )


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.ImportModelEvaluation": import_evaluation,
    f"{_SERVICE}.GetModelEvaluation": get_evaluation,
    f"{_SERVICE}.ListModelEvaluations": list_evaluations,
    f"{_SERVICE}.BatchImportModelEvaluationSlices": import_slices,
    f"{_SERVICE}.GetModelEvaluationSlice": get_slice,
    f"{_SERVICE}.ListModelEvaluationSlices": list_slices,
}


def evaluation_view(record: ModelEvaluation) -> Message:
    view: Any = wire_json.from_public(EVALUATION, json.loads(record.public_json))
    view.name = str(record.name)
    del view.slice_dimensions[:]
    view.slice_dimensions.extend(record.slice_dimensions)
    set_micros(view.create_time, record.created)
    return view


def slice_view(record: EvaluationSlice) -> Message:
    view: Any = wire_json.from_public(SLICE, json.loads(record.public_json))
    view.name = _slice_name(record)
    set_micros(view.create_time, record.created)
    return view


def _read_slices(
    given: Sequence[Any], name: EvaluationName, uids: Sequence[int], now: Nanos
) -> list[EvaluationSlice]:
    """Return the slices to import. Raises InvalidRequest with all faults."""
    slices: list[EvaluationSlice] = []
    faults = Faults()
    for index, (part, uid) in enumerate(zip(given, uids, strict=True)):
        public = wire_json.to_public(part)
        _check(part, public, f"model_evaluation_slices[{index}]", faults)
        slices.append(
            EvaluationSlice(
                name=name,
                slice_id=uid,
                public_json=_kept(public),
                created=now,
                dimension=part.slice.dimension,
                value=part.slice.value,
            )
        )
    faults.refuse()
    return slices


def _numbers(metrics: Any) -> tuple[tuple[str, float], ...]:
    """Return the first numbers, by name, of a google.protobuf.Value that is an object."""
    found = (
        (name, value.number_value)
        for name, value in sorted(metrics.struct_value.fields.items())
        if value.HasField("number_value")
    )
    return tuple(itertools.islice(found, MAX_NUMBERS))


def _slice_name(record: EvaluationSlice) -> str:
    return f"{record.name}/slices/{record.slice_id}"


def _name(text: str, *, field: str = "name") -> EvaluationName:
    try:
        return EvaluationName.parse(text)
    except ValueError as error:
        raise InvalidRequest((Violation(field, f"{error}."),)) from None


def _check(given: Any, public: dict[str, Any], path: str, faults: Faults) -> None:
    for name in ("metrics", "metadata"):
        if name in given.DESCRIPTOR.fields_by_name:
            for inner in endless(getattr(given, name)):
                dot = "." if inner and not inner.startswith("[") else ""
                faults.add(f"{path}.{name}{dot}{inner}", "It is not a finite number.")
    if len(_kept(public).encode()) > MAX_BYTES:
        faults.add(
            path, f"It has more than {MAX_BYTES} bytes as JSON; leave out what nobody reads."
        )


def _kept(public: dict[str, Any]) -> str:
    kept = {key: value for key, value in public.items() if key not in ("name", "createTime")}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def _filter(text: str, texts: dict[str, Callable[[T], str]], _of: type[T]) -> Callable[[T], bool]:
    def leaf(leaf: Comparison | Term) -> Callable[[T], bool]:
        text_of = texts.get(leaf.name)
        if text_of is None or isinstance(leaf, Term):
            raise FilterError(
                f"they cannot be filtered by {leaf.name!r}; compare {', '.join(texts)}"
            )
        test = text_test(leaf)
        return lambda record: test(text_of(record))

    return compile_filter(text, leaf)


async def _page(
    request: Any,
    what: str,
    passes: Callable[[T], bool],
    read: Callable[[int, int], Any],
    position_of: Callable[[T], int],
) -> tuple[list[T], str]:
    """Return at most a page of what passes, and the token of the next page. `read`: takes (position, limit)
    and returns what follows a position."""
    size = page_size(request.page_size, default=_PAGE, maximum=_LARGEST)
    question = (what, request.filter)
    position = decode_number(request.page_token, *question)
    scan = Scan(passes, seconds=math.inf)
    page: list[T] = []
    more = True
    while more and len(page) <= size:
        rows: tuple[T, ...] = await read(position, _LARGEST if request.filter else size + 1)
        verdicts = await scan.judge(rows)
        page += [record for record, passing in zip(rows, verdicts, strict=True) if passing]
        more = bool(rows)
        position = position_of(rows[-1]) if rows else position
    token = encode_token(str(position_of(page[size - 1])), *question) if len(page) > size else ""
    return page[:size], token
