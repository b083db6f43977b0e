"""Points of time series: written by run or by experiment, read in order of their steps, thinned if there are
many."""

import operator
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.tensorboards.messages import V1, value_number
from trainshed.api.aiplatform_v1.tensorboards.resources import SERVICE
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import decode_number, encode_token, page_size
from trainshed.api.filters.matching import moment
from trainshed.api.filters.syntax import Comparison, FilterError, parse_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.operators import Operator
from trainshed.core.requests import Faults
from trainshed.core.tensorboards.records import (
    BoardName,
    BoardResource,
    Level,
    Point,
    ValueType,
)
from trainshed.wire import pool

MOST_POINTS: Final = 5_000
"""Most points of one write."""
_MOST_OF_RUNS: Final = 10_000
"""Most points of one write to several runs."""
MOST_SERIES: Final = 20
"""Most series of one batch read."""
_SHOWN: Final = {ValueType.SCALAR: 1_000, ValueType.TENSOR: 100, ValueType.BLOB_SEQUENCE: 100}
"""Default number of points of a series in an answer."""
_EXPORTED: Final = 10_000
_PAGE: Final = 1_000
PointTest = Callable[[int, int], bool]
"""Takes a point's step and time (ns)."""
_Write = dict[int, list[tuple[int, list[Point]]]]
"""Points by run and series."""


async def write_run(call: Call, request: Any) -> Message:
    """Add points to the series of a run: all of them, or none."""
    writes: _Write = {}
    faults = Faults()
    with faults.gathered():
        await _collect(call, request, "", writes, faults)
    faults.refuse()
    await _write(call, writes)
    return pool.message_class(f"{V1}.WriteTensorboardRunDataResponse")()


async def write_experiment(call: Call, request: Any) -> Message:
    """Add points to several runs of an experiment; nothing is written if one request is wrong."""
    parent = BoardName.parse(
        request.tensorboard_experiment, Level.EXPERIMENT, of="tensorboard_experiment"
    )
    writes: _Write = {}
    parts = request.write_run_data_requests
    if sum(len(data.values) for part in parts for data in part.time_series_data) > _MOST_OF_RUNS:
        text = f"At most {_MOST_OF_RUNS} points are written at once; send several requests."
        raise InvalidRequest((Violation("write_run_data_requests", text),))
    faults = Faults()
    for number, part in enumerate(parts):
        at = f"write_run_data_requests[{number}]."
        if not part.tensorboard_run.startswith(f"{parent}/"):
            text = f"{part.tensorboard_run!r} does not stand below {parent}."
            faults.add(f"{at}tensorboard_run", text)
            continue
        with faults.gathered():
            await _collect(call, part, at, writes, faults)
    faults.refuse()
    await _write(call, writes)
    return pool.message_class(f"{V1}.WriteTensorboardExperimentDataResponse")()


async def read(call: Call, request: Any) -> Message:
    """Return the points of a series in the order of their steps; a negative `max_data_points` means all of
    them."""
    name = BoardName.parse(
        request.tensorboard_time_series, Level.SERIES, of="tensorboard_time_series"
    )
    passes = _read_filter(request.filter)
    series = await call.services.tensorboards.resource(name)
    most = request.max_data_points or _shown(series)
    ((_, points),) = await _points(call, (series,), most if most > 0 else None, passes)
    return pool.message_class(f"{V1}.ReadTensorboardTimeSeriesDataResponse")(
        time_series_data=_data(series, points)
    )


async def batch_read(call: Call, request: Any) -> Message:
    board = BoardName.parse(request.tensorboard, Level.TENSORBOARD, of="tensorboard")
    if not 1 <= len(request.time_series) <= MOST_SERIES:
        text = f"Name 1 to {MOST_SERIES} time series, not {len(request.time_series)}."
        raise InvalidRequest((Violation("time_series", text),))
    names: list[BoardName] = []
    faults = Faults()
    for number, text in enumerate(request.time_series):
        field = f"time_series[{number}]"
        with faults.gathered():
            names.append(BoardName.parse(text, Level.SERIES, of=field))
            if names[-1].at(Level.TENSORBOARD) != board:
                faults.add(field, f"{text!r} does not stand below {board}.")
    faults.refuse()
    found = [await call.services.tensorboards.resource(name) for name in names]
    data: dict[BoardName, Message] = {}
    for most in set(map(_shown, found)):
        some = [series for series in found if _shown(series) == most]
        for series, points in await _points(call, some, most):
            data[series.name] = _data(series, points)
    return pool.message_class(f"{V1}.BatchReadTensorboardTimeSeriesDataResponse")(
        time_series_data=[data[name] for name in names]
    )


async def export(call: Call, request: Any) -> Message:
    """Return all points of a series, page by page."""
    name = BoardName.parse(
        request.tensorboard_time_series, Level.SERIES, of="tensorboard_time_series"
    )
    size = page_size(request.page_size, default=_EXPORTED, maximum=_EXPORTED)
    question = (str(name), request.filter)
    start = decode_number(request.page_token, *question)
    passes = _read_filter(request.filter)
    series = await call.services.tensorboards.resource(name)
    ((_, points),) = await _points(call, (series,), None, passes)
    more = len(points) > start + size
    answer: Any = pool.message_class(f"{V1}.ExportTensorboardTimeSeriesDataResponse")(
        next_page_token=encode_token(str(start + size), *question) if more else ""
    )
    _fill(answer.time_series_data_points, series, points[start : start + size])
    return answer


async def size(call: Call, request: Any) -> Message:
    """Return the bytes that all points below a tensorboard take on the disk."""
    board = BoardName.parse(request.tensorboard, Level.TENSORBOARD, of="tensorboard")
    runs = [
        run.uid
        async for experiment in _all_below(call, board, Level.EXPERIMENT)
        async for run in _all_below(call, experiment.name, Level.RUN)
    ]
    return pool.message_class(f"{V1}.ReadTensorboardSizeResponse")(
        storage_size_byte=await call.services.points.size(runs)
    )


async def _all_below(call: Call, parent: BoardName, level: Level) -> AsyncIterator[BoardResource]:
    after, more = "", True
    while more:
        page = await call.services.tensorboards.below(str(parent), level, after, _PAGE)
        for resource in page:
            yield resource
        more = len(page) == _PAGE
        after = page[-1].name.own_id if page else ""


HANDLERS: Final[Handlers] = {
    f"{SERVICE}.ReadTensorboardSize": size,
    f"{SERVICE}.WriteTensorboardRunData": write_run,
    f"{SERVICE}.WriteTensorboardExperimentData": write_experiment,
    f"{SERVICE}.ReadTensorboardTimeSeriesData": read,
    f"{SERVICE}.BatchReadTensorboardTimeSeriesData": batch_read,
    f"{SERVICE}.ExportTensorboardTimeSeriesData": export,
}


async def _collect(call: Call, request: Any, at: str, writes: _Write, faults: Faults) -> None:
    """Add the points of one run's request to `writes`. `at`: its path in the whole request. Faults of its
    series and points go to `faults`. Raises InvalidRequest (its run), NotFound."""
    run_name = BoardName.parse(request.tensorboard_run, Level.RUN, of=f"{at}tensorboard_run")
    run = await call.services.tensorboards.resource(run_name)
    if sum(len(data.values) for data in request.time_series_data) > MOST_POINTS:
        text = f"At most {MOST_POINTS} points are written at once; send several requests."
        raise InvalidRequest((Violation(f"{at}time_series_data", text),))
    for number, data in enumerate(request.time_series_data):
        field = f"{at}time_series_data[{number}]"
        name = run_name.child(data.tensorboard_time_series_id)
        if not data.tensorboard_time_series_id:
            faults.add(f"{field}.tensorboard_time_series_id", "The time series must be named.")
            continue
        series = await call.services.tensorboards.resource(name)
        if data.value_type not in (0, value_number(series.value_type)):
            faults.add(f"{field}.value_type", f"{name} is of type {series.value_type}.")
            continue
        points = list(_read_points(data.values, series, field, faults))
        writes.setdefault(run.uid, []).append((series.uid, points))


def _read_points(
    values: Iterable[Any], series: BoardResource, field: str, faults: Faults
) -> Iterable[Point]:
    wanted = {ValueType.SCALAR: "scalar", ValueType.TENSOR: "tensor"}.get(
        series.value_type or ValueType.SCALAR, "blobs"
    )
    for number, value in enumerate(values):
        # A scalar of 0.0 comes as an empty message.
        given = value.WhichOneof("value") or wanted
        if given != wanted:
            text = f"The time series takes values of the kind {wanted}, not {given}."
            faults.add(f"{field}.values[{number}]", text)
            continue
        time = value.wall_time
        at = time.seconds * 10**9 + time.nanos
        content = value.scalar.value if wanted == "scalar" else getattr(value, wanted)
        yield Point(value.step, at, content if wanted == "scalar" else content.SerializeToString())


async def _write(call: Call, writes: _Write) -> None:
    for run, points in writes.items():
        await call.services.points.append(run, points)


async def _points(
    call: Call,
    found: Sequence[BoardResource],
    most: int | None,
    passes: PointTest | None = None,
) -> list[tuple[BoardResource, list[Point]]]:
    """Return several series with their points, in their order; the file of each run is read once."""
    by_run: dict[BoardName, list[int]] = {}
    for series in found:
        by_run.setdefault(series.name.at(Level.RUN), []).append(series.uid)
    points: dict[int, list[Point]] = {}
    for name, uids in by_run.items():
        run = await call.services.tensorboards.resource(name)
        points |= await call.services.points.read(run.uid, uids, most, passes)
    return [(series, points[series.uid]) for series in found]


def _shown(series: BoardResource) -> int:
    return _SHOWN[series.value_type or ValueType.SCALAR]


def _data(series: BoardResource, points: Iterable[Point]) -> Message:
    data: Any = pool.message_class(f"{V1}.TimeSeriesData")(
        tensorboard_time_series_id=series.name.own_id, value_type=value_number(series.value_type)
    )
    _fill(data.values, series, points)
    return data


def _fill(values: Any, series: BoardResource, points: Iterable[Point]) -> None:
    for point in points:
        value = values.add(step=point.step)
        value.wall_time.seconds, value.wall_time.nanos = divmod(point.at, 10**9)
        match point.value, series.value_type:
            case bytes(raw), ValueType.TENSOR:
                value.tensor.ParseFromString(raw)
            case bytes(raw), _:
                value.blobs.ParseFromString(raw)
            case number, _:
                value.scalar.value = number


_TESTS: Final[Mapping[Operator, Callable[[int, int], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
}


def _read_filter(text: str) -> PointTest | None:
    """Read a filter of one comparison: `step > 1` or `wall_time >= 2026-01-01T00:00:00Z`. Returns None if all
    points pass. Raises InvalidRequest."""
    try:
        match parse_filter(text):
            case None:
                return None
            case Comparison(("step",), compare, value) if compare in _TESTS:
                if not value.lstrip("-").isdecimal():
                    raise FilterError(f"{value!r} is no step")
                of_step, wanted = _TESTS[compare], int(value)
                return lambda step, _: of_step(step, wanted)
            case Comparison(("wall_time",), compare, value) if compare in _TESTS:
                of_time, wanted = _TESTS[compare], moment(value)
                return lambda _, at: of_time(at, wanted)
            case _:
                raise FilterError("compare step or wall_time, for example step > 100")
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None
