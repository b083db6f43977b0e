"""Reads and writes the points of time series. Writes are by run or experiment. Reads are in order of step,
and are thinned to a limit."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.views import message
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.services import Services
from trainshed.api.calls.streams import StreamHandlers
from trainshed.core.curves import Point
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable, Violation
from trainshed.core.names import default_bucket
from trainshed.core.requests import Faults
from trainshed.store.points import Part
from trainshed_tracking.stores import Stores
from trainshed_tracking.tensorboards.records import BoardName, BoardResource, Level, ValueType
from trainshed_tracking.tensorboards.service import SERVICE, blob_prefix, value_number

MAX_POINTS: Final = 5_000
"""Maximum number of points in one write."""
_MAX_POINTS_OF_RUNS: Final = 10_000
"""Maximum number of points in one write to several runs."""
MAX_SERIES: Final = 20
"""Maximum number of series in one batch read."""
MAX_BLOBS: Final = 100
"""Maximum number of blobs in one read."""
MAX_BLOB_BYTES: Final = 32 << 20
_DEFAULT_POINTS: Final = {ValueType.SCALAR: 1_000, ValueType.TENSOR: 100, ValueType.BLOB_SEQUENCE: 100}
"""Default number of points of a series in a response."""
_Write = dict[int, list[tuple[int, list[Point]]]]
"""The points to write, by run and series."""


async def write_run(stores: Stores, call: Call, request: Any) -> Message:
    """Add points to the series of a run: all of them or none."""
    writes: _Write = {}
    faults = Faults()
    with faults.collect():
        await _collect(stores, request, "", writes, faults)
    return await _write(stores, writes, faults, "WriteTensorboardRunDataResponse")


async def write_experiment(stores: Stores, call: Call, request: Any) -> Message:
    """Add points to several runs of an experiment. If one of the requests is invalid, nothing is written."""
    parent = BoardName.parse(request.tensorboard_experiment, Level.EXPERIMENT, of="tensorboard_experiment")
    writes: _Write = {}
    parts = request.write_run_data_requests
    if sum(len(data.values) for part in parts for data in part.time_series_data) > _MAX_POINTS_OF_RUNS:
        text = f"At most {_MAX_POINTS_OF_RUNS} points fit into one request. Send several requests."
        raise InvalidRequest((Violation("write_run_data_requests", text),))
    faults = Faults()
    for number, part in enumerate(parts):
        at = f"write_run_data_requests[{number}]."
        if not part.tensorboard_run.startswith(f"{parent}/"):
            text = f"{part.tensorboard_run!r} is not below {parent}."
            faults.add(f"{at}tensorboard_run", text)
            continue
        with faults.collect():
            await _collect(stores, part, at, writes, faults)
    return await _write(stores, writes, faults, "WriteTensorboardExperimentDataResponse")


async def _write(stores: Stores, writes: _Write, faults: Faults, response: str) -> Message:
    faults.refuse()
    for run, points in writes.items():
        await stores.points.append(run, points)
    return message(response)


async def read(stores: Stores, call: Call, request: Any) -> Message:
    """Return the points of a series in order of step. If `max_data_points` is negative, return all points."""
    name = BoardName.parse(request.tensorboard_time_series, Level.SERIES, of="tensorboard_time_series")
    if request.filter:
        text = "This method does not support filters. Omit the filter and select points from the answer."
        raise InvalidRequest((Violation("filter", text),))
    series = await stores.tensorboards.get(name)
    max_points = request.max_data_points or _DEFAULT_POINTS[series.value_type or ValueType.SCALAR]
    (data,) = await _read(stores, (series,), max_points if max_points > 0 else None)
    return message("ReadTensorboardTimeSeriesDataResponse", time_series_data=data)


async def batch_read(stores: Stores, call: Call, request: Any) -> Message:
    board = BoardName.parse(request.tensorboard, Level.TENSORBOARD, of="tensorboard")
    if not 1 <= len(request.time_series) <= MAX_SERIES:
        text = f"Name 1 to {MAX_SERIES} time series, not {len(request.time_series)}."
        raise InvalidRequest((Violation("time_series", text),))
    names: list[BoardName] = []
    faults = Faults()
    for number, text in enumerate(request.time_series):
        field = f"time_series[{number}]"
        with faults.collect():
            names.append(BoardName.parse(text, Level.SERIES, of=field))
            if names[-1].at_level(Level.TENSORBOARD) != board:
                faults.add(field, f"{text!r} is not below {board}.")
    faults.refuse()
    chosen = [await stores.tensorboards.get(name) for name in names]
    data: dict[BoardName, Message] = {}
    for value_type, max_points in _DEFAULT_POINTS.items():
        some = [series for series in chosen if (series.value_type or ValueType.SCALAR) == value_type]
        data |= zip((series.name for series in some), await _read(stores, some, max_points), strict=True)
    return message(
        "BatchReadTensorboardTimeSeriesDataResponse", time_series_data=[data[name] for name in names]
    )


async def read_blobs(stores: Stores, call: Call, request: Any) -> AsyncGenerator[Message]:
    """Return a stream with one response for each requested blob of a series. Clients upload blobs as objects.
    The points of the series contain only the IDs of the blobs."""
    name = BoardName.parse(request.time_series, Level.SERIES, of="time_series")
    series = await stores.tensorboards.get(name)
    if series.value_type is not ValueType.BLOB_SEQUENCE:
        text = f"{name} is of type {series.value_type}; only BLOB_SEQUENCE has blobs."
        raise InvalidRequest((Violation("time_series", text),))
    faults = Faults()
    if not 1 <= len(request.blob_ids) <= MAX_BLOBS:
        text = f"Name 1 to {MAX_BLOBS} blobs, not {len(request.blob_ids)}; points of the series contain ids."
        faults.add("blob_ids", text)
    for number, blob_id in enumerate(request.blob_ids):
        if not blob_id or "/" in blob_id:
            text = f"{blob_id!r} is not the id of a blob; points of the series contain ids."
            faults.add(f"blob_ids[{number}]", text)
    faults.refuse()
    return _blobs(call.services, name, tuple(request.blob_ids))


async def _blobs(services: Services, name: BoardName, blob_ids: Sequence[str]) -> AsyncGenerator[Message]:
    for blob_id in blob_ids:
        data = await asyncio.to_thread(_content, services, name, blob_id)
        yield message("ReadTensorboardBlobDataResponse", blobs=[{"id": blob_id, "data": data}])


def _content(services: Services, name: BoardName, blob_id: str) -> bytes:
    """Return the content of a blob. Blocks. Raises NotFound, FailedPrecondition, Unavailable."""
    prefix = blob_prefix(default_bucket(services.settings.project, name.project_id), name)
    board, *below = name.ids
    path = "/".join((f"tensorboard-{board}", *below, blob_id))
    # Try a path with a double slash first, because the SDK's uploader writes such paths.
    for uri in (f"gs://{prefix}//{path}", f"gs://{prefix}/{path}"):
        try:
            with services.buckets.open(uri) as file:
                data = file.read(MAX_BLOB_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as failure:
            raise Unavailable(f"{failure}. Try again, or copy the object from its bucket.") from None
        if len(data) > MAX_BLOB_BYTES:
            raise FailedPrecondition(
                f"The blob {blob_id} has more than {MAX_BLOB_BYTES >> 20} MiB, which is the limit of this "
                f"method. Copy it: gcloud storage cp {uri} ."
            )
        return data
    raise NotFound(
        f"The blob {blob_id} of {name} does not exist. Upload a blob before you write its ID: put the blob "
        f"at gs://{prefix}/{path}"
    )


def streams(stores: Stores) -> StreamHandlers:
    return {f"{SERVICE}.ReadTensorboardBlobData": partial(read_blobs, stores)}


def handlers(stores: Stores) -> Handlers:
    return {
        f"{SERVICE}.WriteTensorboardRunData": partial(write_run, stores),
        f"{SERVICE}.WriteTensorboardExperimentData": partial(write_experiment, stores),
        f"{SERVICE}.ReadTensorboardTimeSeriesData": partial(read, stores),
        f"{SERVICE}.BatchReadTensorboardTimeSeriesData": partial(batch_read, stores),
    }


async def _collect(stores: Stores, request: Any, at: str, writes: _Write, faults: Faults) -> None:
    """Add the points in one run's request to `writes`. Add faults of its series and points to `faults`. `at`:
    the path of this request in the whole request. Raises NotFound, and InvalidRequest if the run's name is
    invalid or the request has too many points."""
    run_name = BoardName.parse(request.tensorboard_run, Level.RUN, of=f"{at}tensorboard_run")
    run = await stores.tensorboards.get(run_name)
    if sum(len(data.values) for data in request.time_series_data) > MAX_POINTS:
        text = f"At most {MAX_POINTS} points fit into one request. Send several requests."
        raise InvalidRequest((Violation(f"{at}time_series_data", text),))
    for number, data in enumerate(request.time_series_data):
        field = f"{at}time_series_data[{number}]"
        name = run_name.child(data.tensorboard_time_series_id)
        if not data.tensorboard_time_series_id:
            faults.add(f"{field}.tensorboard_time_series_id", "Set the ID of the time series.")
            continue
        series = await stores.tensorboards.get(name)
        if data.value_type not in (0, value_number(series.value_type)):
            faults.add(f"{field}.value_type", f"{name} is of type {series.value_type}.")
            continue
        points = list(_read_points(data.values, series, field, faults))
        writes.setdefault(run.uid, []).append((series.uid, points))


def _read_points(values: Iterable[Any], series: BoardResource, field: str, faults: Faults) -> Iterable[Point]:
    wanted = {ValueType.SCALAR: "scalar", ValueType.TENSOR: "tensor"}.get(
        series.value_type or ValueType.SCALAR, "blobs"
    )
    for number, value in enumerate(values):
        # If the client sends the scalar 0.0, the message arrives empty. Treat an empty message as a value of
        # the series' own type.
        kind = value.WhichOneof("value") or wanted
        if kind != wanted:
            text = f"The time series takes values of the kind {wanted}, not {kind}."
            faults.add(f"{field}.values[{number}]", text)
            continue
        time = value.wall_time
        at = time.seconds * 10**9 + time.nanos
        if not -(2**63) <= at < 2**63:
            text = "The time is out of range. Use a time from 1678 to 2261."
            faults.add(f"{field}.values[{number}].wall_time", text)
            continue
        content = value.scalar.value if wanted == "scalar" else getattr(value, wanted)
        yield Point(value.step, at, content if wanted == "scalar" else content.SerializeToString())


async def _read(stores: Stores, series: Sequence[BoardResource], max_points: int | None) -> list[Message]:
    """Return the points of several series, at most `max_points` of each. Reads the file of each run once."""
    by_run: dict[BoardName, list[int]] = {}
    for one_series in series:
        by_run.setdefault(one_series.name.at_level(Level.RUN), []).append(one_series.uid)
    points: dict[int, list[Point]] = {}
    for name, uids in by_run.items():
        run = await stores.tensorboards.get(name)
        points |= await stores.points.read(run.uid, uids, Part(max_points))
    return [_data(one_series, points[one_series.uid]) for one_series in series]


def _data(series: BoardResource, points: Iterable[Point]) -> Message:
    data = message(
        "TimeSeriesData",
        tensorboard_time_series_id=series.name.own_id,
        value_type=value_number(series.value_type),
    )
    for point in points:
        value = data.values.add(step=point.step)
        value.wall_time.seconds, value.wall_time.nanos = divmod(point.at, 10**9)
        match point.value, series.value_type:
            case bytes(raw), ValueType.TENSOR:
                value.tensor.ParseFromString(raw)
            case bytes(raw), _:
                value.blobs.ParseFromString(raw)
            case number, _:
                value.scalar.value = number
    return data
