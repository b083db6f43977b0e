"""A scripted engine and runtimes for tests of the controller: no processes, every fault on request.

It does not prove the behavior of real engines (tests/contract/engines does). Tests use it to control the
engine's reports and their times.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tests.sim.engine.streams import Journals, JournalStreams
from tests.sim.service import SimRuntimes
from trainshed.core.capacity import Node
from trainshed.core.datasets.plans import Split, SplitPlan
from trainshed.core.job import ExitRecord
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import RuntimeChoice
from trainshed.datasets.port import Account, SplitCounts, Written
from trainshed.engines.port import (
    Capabilities,
    EngineEvent,
    EngineUnavailable,
    Fault,
    ReplicaReport,
    Slot,
    SlotRequest,
)
from trainshed.runtimes.port import PreparedRuntime, Progress

Key = tuple[JobUid, int, ReplicaId]


class ScriptedEngine:
    """Starts replicas and ends them on the test's request. It survives a controller like a real engine: pass
    the same instance to the next controller, and `start` repeats all reports.
    """

    def __init__(self) -> None:
        self.events: asyncio.Queue[EngineEvent] = asyncio.Queue()
        self.nodes: tuple[Node, ...] = (Node("node-0", 2, 2**30),)
        self.alive: dict[Key, int] = {}
        self.ended: dict[Key, tuple[int, ExitRecord]] = {}
        self.slots: dict[tuple[JobUid, int], tuple[Slot, ...]] = {}
        self.stopped: set[tuple[JobUid, int]] = set()
        self.launches: list[Key] = []
        self.released: asyncio.Queue[tuple[JobUid, int]] = asyncio.Queue()
        self.unavailable = 0
        self.ignore_stop = False
        #: By method: the exception of its next call.
        self.faults: dict[str, Exception] = {}
        #: By method: the exception of each call.
        self.always: dict[str, Exception] = {}

    def capabilities(self) -> Capabilities:
        return Capabilities(process_namespace=False, stable_hostname=True)

    @property
    def streams(self) -> JournalStreams:
        return JournalStreams(Journals())

    async def start(self) -> None:
        for (uid, attempt, replica), incarnation in self.alive.items():
            self._report(uid, ReplicaStarted(attempt, replica, incarnation, 1))
        for (uid, attempt, replica), (incarnation, record) in self.ended.items():
            self._report(uid, ReplicaExited(attempt, replica, incarnation, record))

    def _report(self, uid: JobUid, event: ReplicaStarted | ReplicaExited | ReplicaLost) -> None:
        self.events.put_nowait(ReplicaReport(uid, event))

    async def close(self) -> None:
        """Do nothing: a scripted engine has no state of its own."""

    async def capacity(self) -> tuple[Node, ...]:
        return self.nodes

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        self._fail("allocate")
        if self.unavailable:
            self.unavailable -= 1
            raise EngineUnavailable("scripted")
        slots = tuple(
            Slot(r.replica, r.node, r.hostname, r.hostname, f"127.64.0.{i}", 2222)
            for i, r in enumerate(requests, start=1)
        )
        self.slots[job_uid, attempt] = slots
        return slots

    def _fail(self, method: str) -> None:
        if (fault := self.faults.pop(method, self.always.get(method))) is not None:
            raise fault

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        self._fail("launch")
        for plan in plans:
            key = (plan.job_uid, plan.attempt, plan.replica)
            before = self.alive.get(key) or self.ended.get(key, (0,))[0]
            if plan.incarnation <= before or key[:2] in self.stopped:
                continue
            assert key not in self.alive, "two incarnations run at the same time"
            self.launches.append(key)
            self.alive[key] = plan.incarnation
            self._report(key[0], ReplicaStarted(*key[1:], plan.incarnation, 1))

    async def stop(self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None) -> None:
        self._fail("stop")
        await asyncio.sleep(0.01)  # as long as a write to disk: other tasks run
        self.stopped.add((job_uid, attempt))
        if self.ignore_stop:
            return
        for slot in self.slots[job_uid, attempt]:
            key = (job_uid, attempt, slot.replica)
            if key in self.alive:
                self.exit(*key, signal=15)
            elif key not in self.ended:
                self._report(job_uid, ReplicaLost(*key[1:], 1, "never started"))

    async def stop_replica(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        grace: int,
        *,
        notice: StopNotice | None = None,
    ) -> None:
        raise AssertionError("nobody is stopped alone here")

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        raise AssertionError("nobody drills here")

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self.slots)

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        self._fail("release")
        self.released.put_nowait((job_uid, attempt))
        self.slots.pop((job_uid, attempt), None)
        self.ended = {k: v for k, v in self.ended.items() if k[:2] != (job_uid, attempt)}

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while True:
            yield await self.events.get()

    def exit(
        self,
        uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        code: int | None = None,
        signal: int | None = None,
        *,
        stopped: bool = False,
    ) -> None:
        """End the replica's program."""
        key = (uid, attempt, replica)
        incarnation = self.alive.pop(key)
        record = ExitRecord(exit_code=code, signal=signal, oom=False, started=1, ended=2, stopped=stopped)
        self.ended[key] = (incarnation, record)
        self._report(uid, ReplicaExited(attempt, replica, incarnation, record))


class ScriptedDatasets:
    """Fake dataset splits that finish immediately, unless `gate` is closed. Raises `failure` if set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        #: Jobs whose files were requested, per call.
        self.asked: list[Account] = []

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        self.asked.append(account)
        progress("10% of 1,000 MB read and split, 50 MB/s.")
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        training = SplitCounts(8, 80, (plan.shard(Split.TRAINING, 0),))
        return Written(str(plan.dataset), 80, training, SplitCounts(), SplitCounts())


class ScriptedRuntimes(SimRuntimes):
    """Fake runtimes that are ready immediately, unless `gate` is closed. Raises `failure` if set."""

    def __init__(self, *, warm: bool = True) -> None:
        self.warm = warm
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def ready(self, choice: RuntimeChoice, packages: tuple[JobPackage, ...]) -> PreparedRuntime | None:
        return PreparedRuntime("") if self.warm else None

    async def prepare(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...], progress: Progress | None = None
    ) -> PreparedRuntime:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return PreparedRuntime("")
