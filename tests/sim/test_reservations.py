"""Persistent resources over the real store and controller (spec/queue#reservations)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.sim.scripted_world import PRIMARY, World, numbered_job, world
from tests.unit.jobs import MACHINE
from tests.waiting import until
from trainshed.core.capacity import Node, QuotaKey
from trainshed.core.catalog.quotas import CPU_HOURS, GLOBAL, HARD, JOBS, QUEUED
from trainshed.core.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted
from trainshed.core.job import Disk
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, OperationState
from trainshed.core.names import JobUid
from trainshed.core.reservations import (
    PersistentResource,
    PersistentResourceName,
    ReservationState,
    ResourcePool,
    Used,
    first_hold,
    resize,
)
from trainshed.core.usage import HOUR
from trainshed.engines.port import NodeState
from trainshed.scheduler.model import Policy
from trainshed.store.port import NodeDrain
from trainshed.store.records import Operation, OperationKind

NAME = PersistentResourceName("demo", "us-central1", "lab")
PLACE = "projects/demo/locations/us-central1"
GIB = 2**30
RUNNING, PROVISIONING = ReservationState.RUNNING, ReservationState.PROVISIONING


@asynccontextmanager
async def lab(directory: Path, *nodes: int) -> AsyncGenerator[World]:
    """Return a world with nodes of this many machines each."""
    there = [Node(f"node-{at}", 4 * n, 15 * GIB * n) for at, n in enumerate(nodes or (4,))]
    async with world(directory, policy=Policy(strict=True), nodes=there) as w:
        yield w


def operation(number: int, kind: OperationKind = OperationKind.CREATE) -> Operation:
    return Operation(
        f"{PLACE}/operations/{number}",
        kind,
        str(NAME),
        1,
        1,
        OperationState.RUNNING,
        response_type="google.cloud.aiplatform.v1.PersistentResource",
    )


async def reserve(w: World, count: int, *, name: PersistentResourceName = NAME) -> None:
    pool = ResourcePool("pool-0", MACHINE, Disk(), count)
    uid = JobUid(900_000 + hash(name) % 1000)
    resource = PersistentResource(
        name,
        '{"resourcePools":[{"id":"pool-0"}]}',
        w.time,
        w.time,
        (pool,),
        (first_hold(uid, (pool,), w.time),),
        person="ana@x.example",
        operation=operation(uid).name,
    )
    await w.controller.reservations.create(resource, operation(uid))


async def settle(w: World, holds: Callable[[PersistentResource | None], bool]) -> PersistentResource | None:
    """Wait until the resource meets the condition."""
    await until(lambda: holds(w.controller.reservations.find(NAME)))
    return w.controller.reservations.find(NAME)


async def in_state(w: World, state: ReservationState) -> PersistentResource:
    resource = await settle(w, lambda r: r is not None and r.state is state)
    assert resource is not None
    return resource


def on_lab(number: int, *counts: int) -> Job:
    made = numbered_job(number, *counts)
    return replace(made, spec=replace(made.spec, persistent_resource="lab"))


def wait_reason(w: World, number: int) -> str:
    waiting = w.controller.explain_wait(JobUid(number))
    return waiting.message if waiting is not None else ""


async def test_machines_are_reserved_for_jobs_of_a_persistent_resource(tmp_path: Path) -> None:
    async with lab(tmp_path, 4) as w:
        await reserve(w, 3)
        resource = await in_state(w, RUNNING)
        done = await w.store.reader.operation(operation(resource.holds[0].uid).name)
        assert done.state is OperationState.SUCCEEDED
        other = await w.create(numbered_job(1, 1))
        await w.state(other, JobState.RUNNING)
        await w.create(numbered_job(2, 1))
        assert "16 are used by job 1 and persistent resource lab" in wait_reason(w, 2)
        for number in (3, 4, 5):
            await w.state(await w.create(on_lab(number, 1)), JobState.RUNNING)
        await w.create(on_lab(6, 1))
        text = "on persistent resource lab: needs 1 n1-standard-4, 3 of 3 are used by jobs 3, 4 and 5"
        assert wait_reason(w, 6) == text
        (node,) = w.controller.nodes()
        assert node.used_vcpus == 16
        assert [text.split()[0].rpartition("/")[2] for text in node.replicas] == list("1345")
        w.engine.exit(JobUid(4), 1, PRIMARY, 0)
        await w.state(JobUid(6), JobState.RUNNING)
        assert wait_reason(w, 2), "the machine of job 4 stays reserved"


async def test_quotas_and_usage_count_a_persistent_resource_but_not_the_jobs_on_its_machines(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, 4) as w:
        await w.store.intake.set_quota(QuotaKey("demo", "us-central1", "cpus_n1_e2"), 12)
        await w.controller.capacity_changed()
        await reserve(w, 2)
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await w.state(await w.create(numbered_job(2, 1)), JobState.RUNNING)
        await w.create(numbered_job(3, 1))
        assert "12 of 12 are used by job" in wait_reason(w, 3)
        w.time += HOUR
        used = list(w.controller.reservations.uses(w.time))
        assert [(use.job, use.machines, use.person) for use in used] == [(str(NAME), 2, "ana@x.example")]
        (on_it,) = (job for job in w.controller.placed_jobs() if job.uid == 1)
        assert not w.controller.uses(on_it, w.time)
        await w.controller.reservations.change(NAME, lambda r, _: replace(r, deleted_by="ana@x.example"))
        await settle(w, lambda r: r is None)
        (ended,) = [
            part
            for part in await w.store.reader.machine_time("demo", 0, w.time)
            if part.person == "ana@x.example"
        ]
        assert ended.machine_hours == pytest.approx(2, rel=0.01)


async def test_persistent_resource_waits_until_its_machines_are_free(tmp_path: Path) -> None:
    async with lab(tmp_path, 2) as w:
        await w.state(await w.create(numbered_job(1, 1)), JobState.RUNNING)
        await reserve(w, 2)
        resource = await in_state(w, PROVISIONING)
        waiting = w.controller.reservations.explain_wait(resource)
        assert waiting is not None
        assert "needs 8 CPUs, 4 of 8 are used by job 1" in waiting.message
        await w.create(on_lab(2, 1))
        assert wait_reason(w, 2).startswith("persistent resource lab is PROVISIONING: needs 8 CPUs")
        w.engine.exit(JobUid(1), 1, PRIMARY, 0)
        await in_state(w, RUNNING)
        await w.state(JobUid(2), JobState.RUNNING)


async def test_unavailable_machine_type_fails_the_persistent_resource(tmp_path: Path) -> None:
    async with lab(tmp_path, 2) as w:
        await reserve(w, 3)
        failed = await in_state(w, ReservationState.ERROR)
        assert failed.error is not None
        assert "can never be reserved: needs 3 replicas at once" in failed.error.message
        done = await w.store.reader.operation(operation(failed.holds[0].uid).name)
        assert done.state is OperationState.FAILED
        await w.state(await w.create(numbered_job(1, 1, 1)), JobState.RUNNING)


async def test_jobs_of_other_projects_cannot_use_a_persistent_resource(tmp_path: Path) -> None:
    async with lab(tmp_path, 4) as w:
        await reserve(w, 2)
        await in_state(w, RUNNING)
        for changes in ({"project_id": "other"}, {"location": "europe-west4"}):
            foreign = on_lab(1, 1)
            name = replace(foreign.name, **changes)
            with pytest.raises(FailedPrecondition, match="does not exist"):
                await w.create(replace(foreign, name=name))
        with pytest.raises(AlreadyExists):
            await reserve(w, 2)


async def test_concurrent_jobs_use_the_last_reserved_machine_one_after_another(tmp_path: Path) -> None:
    async with lab(tmp_path, 4) as w:
        await reserve(w, 1)
        await in_state(w, RUNNING)
        await asyncio.gather(*(w.create(on_lab(number, 1)) for number in (1, 2, 3)))
        for number in (1, 2, 3):
            await w.state(JobUid(number), JobState.RUNNING)
            running = {job.uid for job in w.controller.running_jobs()}
            assert running == {number}
            w.engine.exit(JobUid(number), 1, PRIMARY, 0)
            await w.state(JobUid(number), JobState.SUCCEEDED)


async def test_deletion_of_a_persistent_resource_cancels_its_jobs_first(tmp_path: Path) -> None:
    async with lab(tmp_path, 2) as w:
        await reserve(w, 1)
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await w.create(on_lab(2, 1))
        w.engine.ignore_stop = True
        reservations = w.controller.reservations
        begun = operation(77, OperationKind.DELETE)
        await reservations.change(NAME, lambda r, _: replace(r, deleted_by="bo@x.example"), begun)
        await w.state(JobUid(2), JobState.CANCELLED)
        assert reservations.get(NAME).state is ReservationState.STOPPING
        with pytest.raises(FailedPrecondition, match="is STOPPING"):
            await w.create(on_lab(3, 1))
        w.engine.exit(JobUid(1), 1, PRIMARY, signal=9)
        await w.state(JobUid(1), JobState.CANCELLED)
        await settle(w, lambda r: r is None)
        assert (await w.store.reader.operation(begun.name)).state is OperationState.SUCCEEDED
        with pytest.raises(NotFound):
            reservations.get(NAME)
        await w.state(await w.create(numbered_job(4, 1, 1)), JobState.RUNNING)


async def test_persistent_resource_survives_a_crash_at_each_step(tmp_path: Path) -> None:
    async with lab(tmp_path, 3) as w:
        await reserve(w, 2)
        await w.crash()
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await w.create(on_lab(2, 1, 1))
        await w.crash()
        await w.state(JobUid(1), JobState.RUNNING)
        assert "1 of 2 are used by job 1" in wait_reason(w, 2)
        await w.state(await w.create(numbered_job(3, 1)), JobState.RUNNING)
        await w.create(numbered_job(4, 1))
        assert "12 of 12 are used by" in wait_reason(w, 4)
        await w.controller.reservations.change(NAME, lambda r, _: replace(r, deleted_by="bo@x.example"))
        await w.crash()
        await settle(w, lambda r: r is None)
        for number in (1, 2):
            await w.state(JobUid(number), JobState.CANCELLED)
        await w.state(JobUid(4), JobState.RUNNING)
        await w.crash()
        assert await w.store.persistent_resources.all() == ()


async def test_persistent_resource_reserves_replicas_in_relaxed_mode(tmp_path: Path) -> None:
    async with world(tmp_path, limit=3) as w:
        await reserve(w, 2)
        await in_state(w, RUNNING)
        await w.state(await w.create(numbered_job(1, 1)), JobState.RUNNING)
        await w.create(numbered_job(2, 1))
        assert wait_reason(w, 2) == "needs 1 replicas, and 3 of 3 replicas that may run at once are in use"
        await w.state(await w.create(on_lab(3, 1, 1)), JobState.RUNNING)
        await w.create(on_lab(4, 1))
        assert "2 of 2 are used by job 3" in wait_reason(w, 4)


async def test_waiting_job_on_a_persistent_resource_does_not_block_a_smaller_job(tmp_path: Path) -> None:
    async with lab(tmp_path, 3) as w:
        await reserve(w, 3)
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1, 1)), JobState.RUNNING)
        await w.create(on_lab(2, 1, 1))
        assert "needs 2 n1-standard-4, 2 of 3 are used by job 1" in wait_reason(w, 2)
        await w.state(await w.create(on_lab(3, 1)), JobState.RUNNING)
        await w.cancel(on_lab(2, 1, 1))
        await w.state(JobUid(2), JobState.CANCELLED)
        assert w.controller.position(JobUid(2)) == 0


async def test_jobs_waiting_for_a_reserved_machine_count_as_queued(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as w:
        await w.store.intake.set_quota(QuotaKey("demo", GLOBAL, QUEUED), 2)
        await w.controller.capacity_changed()
        await reserve(w, 1)
        await in_state(w, RUNNING)
        for number in (1, 2, 3):
            await w.create(on_lab(number, 1))
        with pytest.raises(ResourceExhausted, match="has 2 waiting jobs; at most 2 are allowed"):
            await w.create(on_lab(4, 1))


async def change_count(w: World, count: int) -> None:
    def change(resource: PersistentResource, used: Used) -> PersistentResource:
        return resize(resource, [count], used, JobUid(50_000 + w.time % 10_000), w.time)

    await w.controller.reservations.change(NAME, change)


async def test_persistent_resource_grows_and_shrinks_without_losing_machines_in_use(tmp_path: Path) -> None:
    async with lab(tmp_path, 2, 2) as w:
        await reserve(w, 1)
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await change_count(w, 3)
        await settle(w, lambda r: r is not None and r.slots().total() == 3)
        await w.state(await w.create(on_lab(2, 1)), JobState.RUNNING)
        with pytest.raises(ValueError, match="2 machines of a resource pool are in use"):
            await change_count(w, 1)
        await change_count(w, 2)
        assert w.controller.reservations.get(NAME).slots().total() == 2
        await w.state(await w.create(numbered_job(3, 1, 1)), JobState.RUNNING)
        await change_count(w, 3)
        assert (await in_state(w, ReservationState.UPDATING)).slots().total() == 2
        w.engine.exit(JobUid(3), 1, PRIMARY, 0)
        await w.state(JobUid(3), JobState.SUCCEEDED)
        await in_state(w, RUNNING)


async def test_persistent_resource_keeps_all_changes_if_a_request_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(tmp_path, 4) as w:
        table, reservations = w.store.persistent_resources, w.controller.reservations
        began, may_end = asyncio.Event(), asyncio.Event()

        def slow(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def run(*arguments: Any) -> Any:
                result = await work(*arguments)
                began.set()
                await may_end.wait()
                return result

            return run

        async def cancel_in_transaction(request: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(request)
            await began.wait()
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            began.clear()

        with monkeypatch.context() as patch:
            patch.setattr(table, "create", slow(table.create))
            await cancel_in_transaction(reserve(w, 1))
            may_end.set()
        await in_state(w, RUNNING)
        may_end.clear()
        with monkeypatch.context() as patch:
            patch.setattr(table, "save", slow(table.save))
            rename = reservations.change(NAME, lambda r, _: replace(r, display_name="first"))
            await cancel_in_transaction(rename)
            label = reservations.change(NAME, lambda r, _: replace(r, labels=(("a", "b"),)))
            labeling = asyncio.create_task(label)
            may_end.set()
            await labeling
        (stored,) = await table.all()
        assert (stored.display_name, stored.labels) == ("first", (("a", "b"),))
        assert reservations.get(NAME) == stored


async def test_persistent_resource_counts_as_one_job_of_the_quota(tmp_path: Path) -> None:
    async with lab(tmp_path, 4) as w:
        await w.store.intake.set_quota(QuotaKey("demo", GLOBAL, JOBS), 1)
        await w.controller.capacity_changed()
        await reserve(w, 2)
        await in_state(w, RUNNING)
        await w.create(numbered_job(1, 1))
        assert "at most 1 job at once, and has persistent resource lab" in wait_reason(w, 1)
        await w.state(await w.create(on_lab(2, 1)), JobState.RUNNING)
        await w.state(await w.create(on_lab(3, 1)), JobState.RUNNING)


async def test_reserved_machine_moves_from_a_drained_node_after_its_job_has_ended(tmp_path: Path) -> None:
    async with lab(tmp_path, 2, 2) as w:
        await reserve(w, 2)
        before = await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        ((_, node),) = w.controller.reservations.usage(NAME)
        await w.store.intake.drain_node(NodeDrain(node, w.time, "new disks"))
        await w.controller.capacity_changed()
        await w.create(on_lab(2, 1, 1))
        assert "persistent resource lab" in wait_reason(w, 2)
        w.engine.exit(JobUid(1), 1, PRIMARY, 0)
        await w.state(JobUid(2), JobState.RUNNING)
        await settle(w, lambda r: r is not None and (MACHINE.type, node) not in r.slots())
        assert w.controller.reservations.get(NAME).slots().total() == before.slots().total()


async def test_node_reboot_restarts_jobs_on_the_same_reserved_machines(tmp_path: Path) -> None:
    async with lab(tmp_path, 2) as w:
        await reserve(w, 1)
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await w.controller.reservations.change(NAME, lambda r, _: replace(r, is_rebooting=True))
        job = await w.until(JobUid(1), lambda job: job.attempt == 2 and bool(job.placed))
        assert "is rebooting" in str(await w.store.reader.timeline(job.uid))
        await in_state(w, RUNNING)


async def test_unused_reserved_machines_move_from_a_drained_node_immediately(tmp_path: Path) -> None:
    async with lab(tmp_path, 1, 1) as w:
        await reserve(w, 1)
        before = await in_state(w, RUNNING)
        ((_, node),) = before.slots()
        await w.store.intake.drain_node(NodeDrain(node, w.time, "new disks"))
        await w.controller.capacity_changed()
        await settle(w, lambda r: r is not None and (MACHINE.type, node) not in r.slots())
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await w.create(numbered_job(2, 1))
        assert wait_reason(w, 2), "no other machine accepts jobs"
        await w.store.intake.undrain_node(node)
        await w.controller.capacity_changed()
        await w.state(JobUid(2), JobState.RUNNING)


async def test_job_waits_while_the_node_of_its_persistent_resource_is_lost(tmp_path: Path) -> None:
    async with lab(tmp_path, 1) as w:
        await reserve(w, 1)
        await in_state(w, RUNNING)
        tracker = w.controller._capacity  # pyright: ignore[reportPrivateUsage]
        tracker.set_node_state("node-0", NodeState.GONE, "it is gone")
        await w.create(on_lab(1, 1))
        assert wait_reason(w, 1) == "machines of persistent resource lab are out of service"
        tracker.set_node_state("node-0", NodeState.UP, None)
        await w.state(await w.create(on_lab(2, 1)), JobState.QUEUED)
        await w.state(JobUid(1), JobState.RUNNING)


async def test_persistent_resource_keeps_machines_despite_a_used_up_budget(tmp_path: Path) -> None:
    async with lab(tmp_path, 2) as w:
        await reserve(w, 1)
        await in_state(w, RUNNING)
        await w.state(await w.create(on_lab(1, 1)), JobState.RUNNING)
        await w.state(await w.create(numbered_job(2, 1)), JobState.RUNNING)
        w.time += 2 * HOUR
        await w.store.intake.set_quota(QuotaKey("demo", GLOBAL, f"{CPU_HOURS}{HARD}"), 4)
        await w.controller.capacity_changed()
        await w.until(JobUid(2), lambda job: not job.placed)
        assert w.controller.reservations.get(NAME).slots().total() == 1
        assert "budget" in wait_reason(w, 2)
        assert {job.uid for job in w.controller.running_jobs()} == {1}
