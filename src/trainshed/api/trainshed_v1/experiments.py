"""Experiments of a project, and the parameters and measurements of their runs.

A page of runs takes the same number of look-ups in the store however many runs it has; the points of each run
are a file of their own.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from trainshed.api.calls.paging import decode_number, encode_token, page_size
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_micros
from trainshed.api.trainshed_v1.call import Fields, JsonCall
from trainshed.api.trainshed_v1.places import read_place
from trainshed.core.errors import InvalidRequest, NotFound
from trainshed.core.metadata.conditions import (
    And,
    Condition,
    Field,
    LinkedTo,
    MetadatumIs,
    NodeQuery,
    Not,
    Or,
    Order,
    TextIs,
)
from trainshed.core.metadata.records import (
    EXPERIMENT,
    EXPERIMENT_RUN,
    TENSORBOARD_LINK,
    TENSORBOARD_RUN,
    Children,
    EdgeRole,
    Node,
    NodeKind,
    NodeName,
    StoreName,
)
from trainshed.core.operators import Operator
from trainshed.core.tensorboards.records import BoardName, Level, Point, ValueType
from trainshed.wire.trainshed_v1 import experiments as records

_STORE: Final = "default"
"""The metadata store that clients keep experiments in."""
_LISTED: Final = 500
_RUNS: Final = 100
"""Most runs of a page."""
_POINTS: Final = 60
"""Most points of a curve."""
_LONGEST: Final = 1_000
"""Most characters of a value."""
_OF_RUN: Final = "-tb-run"
"""End of the id of the artifact that names the tensorboard with a run's curves."""


async def list_(call: JsonCall) -> records.ExperimentList:
    """`GET /trainshed/v1/experiments[?project=P][&region=R][&limit=N][&pageToken=T]`: list the experiments,
    newest first."""
    store = _store(call)
    size = page_size(call.number("limit"), default=_RUNS, maximum=_LISTED, field="limit")
    question = (str(store),)
    offset = decode_number(call.parameter("pageToken"), *question)
    # A tensorboard that was made from a job's log directory is kept as such a context, too.
    link = MetadatumIs((TENSORBOARD_LINK,), Operator.HAS, "*")
    condition = And((TextIs(Field.SCHEMA_TITLE, Operator.EQUAL, EXPERIMENT), Not(link)))
    found = await _contexts(call.services, store, condition, size, offset)
    nodes = found[:size]
    children = await call.services.metadata.children(
        [node.name for node in nodes], schema_title=EXPERIMENT_RUN
    )
    return records.ExperimentList(
        project=store.project_id,
        location=store.location,
        experiments=tuple(_experiment(node, children[node.name]) for node in nodes),
        next_page_token=_next(found, size, offset, question),
    )


async def describe(call: JsonCall) -> records.ExperimentRuns:
    """`GET
    /trainshed/v1/experiments/{experiment}[?project=P][&region=R][&curves=true][&limit=N][&pageToken=T]`:
    return an experiment and its runs, newest first, at most 100 a page; with `curves` also what they measured
    step by step. Raises NotFound."""
    services, store = call.services, _store(call)
    size = page_size(call.number("limit"), default=_RUNS, maximum=_RUNS, field="limit")
    name = NodeName(store, NodeKind.CONTEXT, call.target)
    question = (str(name),)
    offset = decode_number(call.parameter("pageToken"), *question)
    with_curves = call.flag("curves")
    node = await _experiment_node(services, name)
    condition = And(
        (
            TextIs(Field.SCHEMA_TITLE, Operator.EQUAL, EXPERIMENT_RUN),
            LinkedTo(EdgeRole.CHILD, (name,), inward=True),
        )
    )
    found = await _contexts(services, store, condition, size, offset)
    runs = found[:size]
    curves = await _curves(services, runs if with_curves else ())
    children = await services.metadata.children([name], schema_title=EXPERIMENT_RUN)
    return records.ExperimentRuns(
        project=store.project_id,
        location=store.location,
        experiment=_experiment(node, children[name]),
        runs=tuple(_run(run, name, curves.get(run.name, ())) for run in runs),
        next_page_token=_next(found, size, offset, question),
    )


def _store(call: JsonCall) -> StoreName:
    fields = Fields({name: call.parameter(name) or None for name in ("project", "region")})
    project, region = read_place(call, fields, "experiments")
    fields.refuse()
    return StoreName(project, region, _STORE)


async def _contexts(
    services: Services, store: StoreName, condition: Condition, size: int, offset: int
) -> tuple[Node, ...]:
    """Return a page, newest first, and one more node if there is another page; () without a metadata
    store."""
    query = NodeQuery(
        store,
        NodeKind.CONTEXT,
        condition,
        size + 1,
        Order.CREATED,
        descending=True,
        offset=offset,
    )
    try:
        return await services.metadata.nodes(query)
    except NotFound:
        return ()


def _next(found: Sequence[Node], size: int, offset: int, question: tuple[str, ...]) -> str:
    return encode_token(str(offset + size), *question) if len(found) > size else ""


async def _experiment_node(services: Services, name: NodeName) -> Node:
    try:
        node = await services.metadata.node(name)
    except NotFound:
        node = None
    if node is None or node.schema_title != EXPERIMENT or TENSORBOARD_LINK in node.metadata:
        place = f"{name.store.project_id}, {name.store.location}"
        raise NotFound(
            f"There is no experiment {name.node_id[:200]!r} in {place}. Those that there are: "
            "trainshed experiments list"
        )
    return node


def _experiment(node: Node, runs: Children) -> records.Experiment:
    return records.Experiment(
        name=node.name.node_id,
        display_name=node.display_name,
        description=node.description,
        runs=runs.count,
        created=text_micros(node.created),
        changed=text_micros(max(node.updated, runs.updated)),
    )


def _run(
    node: Node, experiment: NodeName, curves: tuple[records.Curve, ...]
) -> records.ExperimentRun:
    state = node.metadata.get("_state")
    return records.ExperimentRun(
        name=node.name.node_id.removeprefix(f"{experiment.node_id}-"),
        resource_name=str(node.name),
        state=state[:_LONGEST] if isinstance(state, str) else "",
        created=text_micros(node.created),
        changed=text_micros(node.updated),
        parameters=_values(node.metadata.get("_params")),
        metrics=_values(node.metadata.get("_metrics")),
        curves=curves,
        jobs=tuple(_jobs(node.added.get("_custom_jobs"))),
    )


def _values(metadata: Any) -> dict[str, records.Value]:
    """Return metadata as values. Clients may write anything there."""
    if not isinstance(metadata, dict):
        return {}
    values = cast(dict[str, Any], metadata)
    return {name: _value(value) for name, value in values.items()}


def _value(value: Any) -> records.Value:
    match value:
        case None | bool():
            return value
        case int() | float():
            return _finite(value)
        case str():
            return value[:_LONGEST]
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))[:_LONGEST]


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _jobs(entries: Any) -> list[str]:
    """Return the names of jobs, which only the service writes (`metadata.job_runs`)."""
    return [str(entry["custom_job_resource_name"]) for entry in entries or ()]


async def _curves(
    services: Services, runs: Sequence[Node]
) -> Mapping[NodeName, tuple[records.Curve, ...]]:
    """Return what the runs measured step by step; nothing for runs that no tensorboard has curves of."""
    if not runs:
        return {}
    boards = await _board_runs(services, runs)
    found = await services.tensorboards.runs(tuple(boards.values()))
    scalars = {
        run.name: (run.uid, [each for each in series if each.value_type is ValueType.SCALAR])
        for run, series in found
    }
    kept = {name: scalars[board] for name, board in boards.items() if board in scalars}
    points = await asyncio.gather(
        *(
            services.points.read(uid, [each.uid for each in series], _POINTS)
            for uid, series in kept.values()
        )
    )
    return {
        name: tuple(
            _curve(each.display_name, read[each.uid])
            for each in sorted(series, key=lambda each: each.display_name)
        )
        for (name, (_, series)), read in zip(kept.items(), points, strict=True)
    }


async def _board_runs(services: Services, runs: Sequence[Node]) -> dict[NodeName, BoardName]:
    """Return the tensorboard run of each run that has one, of the same project only: clients may write any
    name into metadata."""
    ids = {f"{run.name.node_id}{_OF_RUN}": run.name for run in runs}
    condition = And(
        (
            TextIs(Field.SCHEMA_TITLE, Operator.EQUAL, TENSORBOARD_RUN),
            Or(tuple(TextIs(Field.NODE_ID, Operator.EQUAL, node_id) for node_id in ids)),
        )
    )
    store = runs[0].name.store
    artifacts = await services.metadata.nodes(
        NodeQuery(store, NodeKind.ARTIFACT, condition, len(ids))
    )
    boards: dict[NodeName, BoardName] = {}
    for artifact in artifacts:
        try:
            board = BoardName.parse(str(artifact.metadata.get("resourceName")), Level.RUN)
        except InvalidRequest:
            continue
        if board.project_id == store.project_id:
            boards[ids[artifact.name.node_id]] = board
    return boards


def _curve(name: str, points: Sequence[Point]) -> records.Curve:
    numbers = [
        (point.step, _finite(point.value))
        for point in points
        if isinstance(point.value, int | float)
    ]
    return records.Curve(
        name=name,
        steps=tuple(step for step, _ in numbers),
        values=tuple(value for _, value in numbers),
    )
