"""One store, a scripted engine, and a sequence of controllers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from tests.sim.parents import parent_stores
from tests.sim.scripted import ScriptedDatasets, ScriptedEngine, ScriptedRuntimes
from tests.sim.service import SimBuckets
from tests.unit.jobs import CREATED, SECOND, job
from trainshed.controller.carrier import Ports
from trainshed.controller.controller import Controller
from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.core.capacity import Node
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.streams import FileStreams, ServiceStreams
from trainshed.scheduler.model import Policy
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.notices import Notices
from trainshed.store.port import NewWork
from trainshed.store.sqlite.database import Store, open_database

PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 0)


class World:
    """One store, one engine, and a sequence of controllers."""

    def __init__(
        self, directory: Path, *, warm: bool = True, limit: int = 100, policy: Policy | None = None
    ) -> None:
        self.directory = directory
        self.engine = ScriptedEngine()
        self.runtimes = ScriptedRuntimes(warm=warm)
        self.datasets = ScriptedDatasets()
        self.policy = policy or Policy(max_replicas=limit)
        self.buckets = SimBuckets()
        self.logs = LogReader(FileStreams(directory / "logs"), ServiceStreams(directory / "logs"))
        self.time = CREATED + SECOND
        self.store: Store = open_database(directory)
        self.notices = Notices()
        self.controller = self._controller()

    def _controller(self) -> Controller:
        return Controller(
            intake=self.store.intake,
            ledger=self.store.ledger,
            reader=self.store.reader,
            logs=self.logs,
            ports=lambda report: Ports(
                self.engine,
                self.runtimes,
                self.datasets,
                self.buckets.visible_buckets,
                self.buckets.write_probe,
                ServiceLog(self.directory / "logs", self.notices.publish),
                LaunchDefaults(),
                report,
                grace=SECOND,
            ),
            notices=self.notices,
            now=lambda: self.time,
            owner="test",
            stores=parent_stores(self.store, lambda: self.time),
            scheduling=self.policy,
            resources=self.store.persistent_resources,
        )

    async def create(self, subject: Job) -> JobUid:
        await self.controller.create(NewWork(subject))
        return subject.uid

    async def cancel(self, subject: Job, at: int | None = None) -> None:
        request = CancelRequested(CancelCause.USER, at or self.time)
        await self.store.intake.request_cancel(subject.name, request)
        self.controller.wake(subject.uid)

    async def until(self, uid: JobUid, holds: Callable[[Job], bool]) -> Job:
        """Wait on notices until the stored job meets a condition."""
        async with asyncio.timeout(60):
            while True:
                seen = self.notices.count(uid)
                job, _ = await self.store.reader.job_by_uid(uid)
                assert isinstance(job, Job)
                if holds(job):
                    return job
                await self.notices.wait_beyond(uid, seen, 10)

    async def state(self, uid: JobUid, *states: JobState) -> Job:
        """Wait for a state. For a final state, also wait until the controller has applied it, because readers
        see it earlier.
        """

        def holds(job: Job) -> bool:
            is_behind = job.state.is_final and self.controller.runs(uid, job.attempt)
            return job.state in states and not is_behind

        return await self.until(uid, holds)

    async def crash(self) -> None:
        """Kill the controller at any point, and start a new one."""
        old = self.controller
        self.controller = self._controller()
        await old.close()
        self.engine.events = asyncio.Queue()
        await self.controller.start()


@contextlib.asynccontextmanager
async def world(
    directory: Path,
    *,
    warm: bool = True,
    limit: int = 100,
    policy: Policy | None = None,
    nodes: Sequence[Node] = (),
) -> AsyncGenerator[World]:
    made = World(directory, warm=warm, limit=limit, policy=policy)
    made.engine.nodes = tuple(nodes) or made.engine.nodes
    await made.controller.start()
    try:
        yield made
    finally:
        await made.controller.close()
        made.store.close()


def numbered_job(number: int, *counts: int, scheduling: Scheduling | None = None) -> Job:
    made = job(*counts, scheduling=scheduling)
    name = replace(made.name, job_id=str(number))
    return replace(made, uid=JobUid(number), name=name, created=made.created + number)
