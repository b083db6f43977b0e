"""Writes the curves of a job to its tensorboard (facts/experiments#curves).

It creates an experiment for the job, and a run for each directory with event files. It also creates a context
for each of them, which the SDK completes after the job. Existing resources remain unchanged. If a user
deletes a resource while the job runs, it is not created again.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.curves import Point
from trainshed.core.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.telemetry.lines import about
from trainshed_tracking.metadata.records import (
    EXPERIMENT,
    TENSORBOARD_LINK,
    Edge,
    EdgeRole,
    MetadataStore,
    Node,
    NodeKind,
    NodeName,
    StoreName,
    new_run,
)
from trainshed_tracking.stores import Stores
from trainshed_tracking.tensorboards.records import (
    BoardExperiment,
    BoardName,
    BoardResource,
    Level,
    ValueType,
    board_experiment,
    run_id,
    run_name,
)

log = logging.getLogger(__name__)


def curves_of(stores: Stores, job: Job) -> "BoardCurves | None":
    """Return the writer of a job's curves, or None if the job has no tensorboard."""
    experiment = board_experiment(job)
    return BoardCurves(stores, job, experiment) if experiment is not None else None


class _Run(Struct):
    """A run with its series."""

    resource: BoardResource
    #: UIDs of series by tag. None = a series with that name exists and has another type.
    series: dict[str, int | None] = field(default_factory=dict[str, int | None])
    is_full: bool = False


class BoardCurves:
    """Writes the curves of one job to its tensorboard (`core.curves.CurveWriter`)."""

    def __init__(self, stores: Stores, job: Job, experiment: BoardExperiment) -> None:
        self._stores = stores
        self._job = job
        self._experiment = experiment
        #: Runs by the directory that contains their event files.
        self._runs: dict[str, _Run] = {}
        #: Display names of runs by their IDs.
        self._run_names: dict[str, str] = {}
        self._is_stopped = False

    async def prepare(self) -> None:
        """Create the experiment. If it already exists, read its runs."""
        name, job = self._experiment.name, self._job
        experiment = self._resource(name, name.own_id, source=str(job.name))
        try:
            await self._stores.tensorboards.create(experiment)
        except AlreadyExists:
            below = {"parent": str(name), "level": Level.RUN}
            runs = await self._stores.tensorboards.list(below)
            self._run_names = {run.name.own_id: run.display_name for run in runs}
        except NotFound:
            self._stop("no longer exists")
            return
        link = {"experiment_deleted": False, TENSORBOARD_LINK: str(name)}
        await self._create_node(
            Node(
                self._context(name.own_id),
                experiment.created,
                experiment.created,
                experiment.created // 10**6,
                display_name=name.own_id,
                schema_title=EXPERIMENT,
                schema_version="0.0.1",
                metadata=link,
            )
        )

    async def write(self, directory: str, points: Mapping[str, Sequence[Point]]) -> None:
        """Add points by tag to the run of a directory. A repeated call has no effect. Raises Unavailable."""
        if self._is_stopped or not points:
            return
        try:
            run = await self._run(directory)
            await self._add_series(run, [tag for tag in points if tag not in run.series])
            # Check that the run still exists. If a user has deleted it, this call raises NotFound, and the
            # points are not written.
            await self._stores.tensorboards.get(run.resource.name)
        except (NotFound, InvalidRequest) as failure:
            self._stop(f"receives no more points of this job: {failure}")
            return
        if run.is_full:
            return
        series = ((run.series[tag], values) for tag, values in points.items())
        try:
            await self._stores.points.append(
                run.resource.uid, [(uid, values) for uid, values in series if uid is not None]
            )
        except FailedPrecondition as full:
            run.is_full = True
            about(log, self._job.uid).warning("%s: %s", run.resource.name, full)

    async def _run(self, directory: str) -> _Run:
        if (known := self._runs.get(directory)) is not None:
            return known
        shown = run_name(self._experiment, directory)
        own_id = run_id(shown, self._run_names)
        name = self._experiment.name.child(own_id)
        resource = self._resource(name, shown)
        try:
            await self._stores.tensorboards.create(resource)
        except AlreadyExists:
            resource = await self._stores.tensorboards.get(name)
        experiment = self._context(self._experiment.name.own_id)
        context = self._context(f"{experiment.node_id}-{own_id}")
        now = self._stores.now()
        await self._create_node(new_run(context, shown, now))
        await self._stores.metadata.link((Edge(experiment, EdgeRole.CHILD, context, now),))
        self._run_names[own_id] = shown
        run = self._runs[directory] = _Run(resource)
        return run

    async def _add_series(self, run: _Run, tags: Sequence[str]) -> None:
        if not tags:
            return
        wanted: list[BoardResource] = []
        for tag in tags:
            uid = self._stores.new_uid()
            series = self._resource(run.resource.name.child(str(uid)), tag, uid=uid)
            wanted.append(replace(series, value_type=ValueType.SCALAR, plugin_name="scalars"))
        try:
            created = await self._stores.tensorboards.create_all(wanted)
        except InvalidRequest:
            if len(tags) == 1:
                run.series[tags[0]] = None  # Skip this tag: a user's series has another type.
                return
            for tag in tags:
                await self._add_series(run, [tag])
            return
        run.series |= {resource.display_name: resource.uid for resource in created}

    async def _create_node(self, node: Node) -> None:
        store = node.name.store
        try:
            await self._stores.metadata.create(node)
        except AlreadyExists:
            pass
        except NotFound:
            made = MetadataStore(store, "", node.created, node.created)
            with contextlib.suppress(AlreadyExists):  # Another task may have created the store.
                await self._stores.metadata_stores.create(made)
            await self._create_node(node)

    def _context(self, node_id: str) -> NodeName:
        board = self._experiment.name
        store = StoreName(board.project_id, board.location, "default")
        return NodeName(store, NodeKind.CONTEXT, node_id)

    def _resource(
        self, name: BoardName, display_name: str, *, uid: int = 0, source: str = ""
    ) -> BoardResource:
        now = self._stores.now()
        uid = uid or self._stores.new_uid()
        return BoardResource(name, uid, now, now, display_name=display_name, source=source)

    def _stop(self, why: str) -> None:
        self._is_stopped = True
        about(log, self._job.uid).warning("%s %s", self._experiment.name, why)
