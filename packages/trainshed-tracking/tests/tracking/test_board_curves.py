"""Curves of running jobs in the TensorBoards that the jobs specify (facts/experiments#curves)."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.test_job_curves import OVER, RUNNING, CurveHarness, clock, short_intervals
from tests.e2e.programs.event_writer import EventWriter
from tests.unit.jobs import CREATED
from trainshed.core.curves import CurveWriter, Point
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, JobName, JobUid
from trainshed_tracking.metadata.records import Edge, EdgeRole, NodeKind, NodeName, new_run
from trainshed_tracking.stores import stores_in
from trainshed_tracking.tensorboards.curves import curves_of
from trainshed_tracking.tensorboards.records import BoardName, BoardResource, Level

__all__ = ["short_intervals"]

BOARD = BoardName("demo", "us-central1", ("5",))


class BoardCurveHarness(CurveHarness):
    """A harness with the tracking package of a service."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.stores = stores_in(self.store, self.points, lambda: next(self.uids), lambda: CREATED)

    def board(self, job: Job) -> CurveWriter | None:
        return curves_of(self.stores, job)


@pytest.fixture
def harness(tmp_path: Path) -> BoardCurveHarness:
    return BoardCurveHarness(tmp_path)


def with_board(job: Job) -> Job:
    return replace(job, spec=replace(job.spec, job_json=json.dumps({"tensorboard": str(BOARD)})))


def context(node_id: str) -> NodeName:
    name = f"projects/demo/locations/us-central1/metadataStores/default/contexts/{node_id}"
    return NodeName.parse(name, NodeKind.CONTEXT)


async def board_values(harness: BoardCurveHarness, run: str) -> dict[str, list[Point]]:
    name = BOARD.child("7").child(run)
    board = await harness.stores.tensorboards.get(name)
    series = await harness.stores.tensorboards.list({"parent": str(name), "level": Level.SERIES})
    points = await harness.points.read(board.uid, [curve.uid for curve in series])
    return {curve.display_name: points[curve.uid] for curve in series}


async def test_curves_of_a_job_are_copied_to_its_tensorboard(harness: BoardCurveHarness) -> None:
    """This works across a restart, with contexts that the SDK completes after the job."""
    board = BoardResource(BOARD, 5, CREATED, CREATED, display_name="board")
    await harness.stores.tensorboards.create(board)
    running = await harness.create(with_board(RUNNING))
    for number, place in enumerate(("", "eval_1", "eval-1")):
        EventWriter(harness.logs / place, clock).scalar("acc", number, number)
    async with harness.service() as curves:
        curves.follow(running)
        await harness.until({":acc": {0: 0.0}, "eval_1:acc": {1: 1.0}, "eval-1:acc": {2: 2.0}})
    EventWriter(harness.logs / "eval_1", lambda: CREATED / 1e9 + 200).scalar("acc", 7, 7)
    async with harness.service() as curves:
        curves.follow(running)
        await curves.finish(with_board(OVER))
    runs = await harness.stores.tensorboards.list({"parent": str(BOARD.child("7")), "level": Level.RUN})
    ids = {run.display_name: run.name.own_id for run in runs}
    assert ids.keys() == {"default", "eval_1", "eval-1"}
    assert ids["default"] == "default" and len(set(ids.values())) == 3
    values = await board_values(harness, ids["eval_1"])
    assert [(point.step, point.value) for point in values["acc"]] == [(1, 1.0), (7, 7.0)]
    experiment = await harness.stores.metadata.get(context("7"))
    assert experiment.metadata["tensorboard_link"] == str(BOARD.child("7"))
    run = await harness.stores.metadata.get(context(f"7-{ids['eval_1']}"))
    assert run.metadata == {"_params": {}, "_metrics": {}, "_state": "RUNNING"}
    assert run.parents == (experiment.name,)


async def test_tensorboard_experiment_exists_before_the_job_runs(harness: BoardCurveHarness) -> None:
    """The SDK reads the experiment even if the job never ran."""
    await harness.stores.tensorboards.create(BoardResource(BOARD, 5, CREATED, CREATED))
    queued = await harness.create(with_board(replace(RUNNING, attempt=0, state=JobState.QUEUED)))
    async with harness.service() as curves:
        curves.follow(queued)
        await curves.finish(replace(queued, state=JobState.CANCELLED))
    assert await harness.stores.tensorboards.get(BOARD.child("7"))


async def test_trials_share_the_tensorboard_experiment_of_their_tuning_job(
    harness: BoardCurveHarness,
) -> None:
    await harness.stores.tensorboards.create(BoardResource(BOARD, 5, CREATED, CREATED))
    tuning = JobName(Api.VERTEX, "demo", "us-central1", "70", Collection.TUNING_JOBS)
    trial = replace(with_board(RUNNING), parent=Parent(JobUid(70), tuning, 2))
    await harness.create(trial)
    EventWriter(harness.logs / "eval", clock).scalar("acc", 1, 1)
    async with harness.service() as curves:
        curves.follow(trial)
        await harness.until({"eval:acc": {1: 1.0}})
        await curves.finish(replace(trial, state=JobState.SUCCEEDED))
    (run,) = await harness.stores.tensorboards.list({"parent": str(BOARD.child("70")), "level": Level.RUN})
    assert (run.name.own_id, run.display_name) == ("trial-2-eval", "trial-2/eval")


async def test_deleted_tensorboard_does_not_affect_the_curves_of_the_job(harness: BoardCurveHarness) -> None:
    running = await harness.create(with_board(RUNNING))
    EventWriter(harness.logs, clock).scalar("acc", 1, 1)
    async with harness.service() as curves:
        curves.follow(running)
        await harness.until({":acc": {1: 1.0}})


async def test_cyclic_metadata_contexts_do_not_block_the_curves_of_a_job(harness: BoardCurveHarness) -> None:
    await harness.stores.tensorboards.create(BoardResource(BOARD, 5, CREATED, CREATED))
    running = await harness.create(with_board(RUNNING))
    run, experiment = context("7-eval"), context("7")
    async with harness.service() as curves:
        EventWriter(harness.logs, clock).scalar("acc", 0, 0)
        curves.follow(running)
        await harness.until({":acc": {0: 0.0}})
        await harness.stores.metadata.create(new_run(run, "eval", CREATED))
        await harness.stores.metadata.link((Edge(run, EdgeRole.CHILD, experiment, CREATED),))
        EventWriter(harness.logs / "eval", clock).scalar("acc", 1, 1)
        await harness.end(with_board(OVER))
        await curves.finish(with_board(OVER))
        assert await harness.store.curves.unfinished_jobs() == ()
    assert (await harness.values())["eval:acc"] == {1: 1.0}
