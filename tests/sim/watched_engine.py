"""Compares a service's calls to its world with its stored state (docs/architecture.md, "What never happens"):
every call follows from a committed state, and a gang starts completely.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field

from tests.sim.engine.engine import SimEngine
from tests.sim.engine.world import World
from tests.sim.invariants import Books
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import Job, StopNotice
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import EngineEvent, Fault

Key = tuple[JobUid, int, ReplicaId, int]
Gang = tuple[JobUid, int]

SECOND = 10**9
_SETTLES = 60 * SECOND
"""ns after the start of a maintenance in which an earlier start may still be active."""
_LATE = 15 * 60 * SECOND
"""ns after which a wanted start counts as forgotten, if nothing blocks it."""
_UP = (AttemptState.STARTING, AttemptState.RUNNING)


@dataclass(slots=True)
class Demands:
    """The requests that follow from stored states.
    `starts`, `stops`: incarnations, the starts with the number of their
    first commit. `ends`: attempts to stop. `past`: the last attempt without open requests. `faults`: of
    drills.
    """

    starts: dict[Key, int] = field(default_factory=dict[Key, int])
    stops: set[Key] = field(default_factory=set[Key])
    ends: set[Gang] = field(default_factory=set[Gang])
    past: dict[JobUid, int] = field(default_factory=dict[JobUid, int])
    faults: set[Key] = field(default_factory=set[Key])
    commits: int = 0
    #: Wanted starts that have not been made, with their times (ns of true time).
    open: dict[Key, int] = field(default_factory=dict[Key, int])

    def record_commit(self, job: Job, now: int) -> None:
        """Record the requests of a job that was committed at `now`, in ns of true time."""
        uid, attempt = job.uid, job.attempt
        self.commits += 1
        over = job.phase in (AttemptState.WAITING, AttemptState.OVER)
        self.past[uid] = max(self.past.get(uid, 0), attempt if over else attempt - 1)
        if job.phase is AttemptState.STOPPING or job.state.is_final:
            self.ends.add((uid, attempt))
        before = {key: self.open.pop(key) for key in list(self.open) if key[0] == uid}
        if job.phase not in _UP:
            return
        for replica in job.replicas:
            key = (uid, attempt, replica.id, replica.incarnation)
            if replica.state is ReplicaState.WAITING and replica.node and not replica.not_before:
                if key not in self.starts:
                    self.starts[key], before[key] = self.commits, now
                if key in before:
                    self.open[key] = before[key]
            if replica.state is ReplicaState.STOPPING:
                self.stops.add(key)
        self.faults.update(
            (uid, drill.attempt, drill.replica, drill.incarnation)
            for drill in job.drills
            if drill.fired and not drill.done
        )

    def late(self, uid: JobUid, now: int, blocked_until: int) -> list[Key]:
        """Return the overdue starts of this job, each once."""
        late = [
            key
            for key, since in self.open.items()
            if key[0] == uid and now - max(since, blocked_until) > _LATE
        ]
        for key in late:
            del self.open[key]
        return late


class WatchedEngine(SimEngine):
    """The simulated engine with a record of all calls."""

    def __init__(
        self,
        world: World,
        latency: float,
        books: Books,
        demands: Demands,
        before_event: Callable[[EngineEvent], None],
    ) -> None:
        """Watch an engine. `before_event` is called with each event just before the service receives it."""
        super().__init__(world, latency)
        self._told_of = before_event
        self._books = books
        self._demands = demands
        self._begun = {(sim_slot.job_uid, sim_slot.attempt) for sim_slot, _ in world.lived}

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        for plan in plans:
            key = (plan.job_uid, plan.attempt, plan.replica, plan.incarnation)
            if key not in self._demands.starts:
                self._wrong(plan.job_uid, f"{key} is started, and nothing stored demands it")
            self._demands.open.pop(key, None)
        for uid, attempt in {(plan.job_uid, plan.attempt) for plan in plans}:
            self._look_at_gang(uid, attempt, [p.replica for p in plans if p.job_uid == uid])
        await super().launch(plans)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None) -> None:
        wanted = (job_uid, attempt) in self._demands.ends
        if not wanted and attempt > self._demands.past.get(job_uid, 0):
            self._wrong(job_uid, f"attempt {attempt} is stopped, and nothing stored demands it")
        await super().stop(job_uid, attempt, grace, notice)

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
        key = (job_uid, attempt, replica, incarnation)
        if key not in self._demands.stops and (job_uid, attempt) not in self._demands.ends:
            self._wrong(job_uid, f"{key} is stopped, and nothing stored demands it")
        await super().stop_replica(job_uid, attempt, replica, incarnation, grace, notice=notice)

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        key = (job_uid, attempt, replica, incarnation)
        if key not in self._demands.faults:
            self._wrong(job_uid, f"{key} is drilled, and nothing stored demands it")
        await super().inject(job_uid, attempt, replica, incarnation, fault)

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        if attempt > self._demands.past.get(job_uid, 0):
            self._wrong(job_uid, f"the slots of attempt {attempt} are released while it is wanted")
        await super().release(job_uid, attempt)

    async def watch(self) -> AsyncIterator[EngineEvent]:
        async for event in super().watch():
            self._told_of(event)
            yield event

    def _look_at_gang(self, uid: JobUid, attempt: int, started: Collection[ReplicaId]) -> None:
        """spec/lifecycle#start: the first start of an attempt includes all its replicas with a node. No
        replica starts on a node under maintenance.
        """
        job = self._books.jobs.get(uid)
        if job is None or job.attempt != attempt:
            return  # it has moved on since
        if (uid, attempt) not in self._begun:
            self._begun.add((uid, attempt))
            due = {
                replica.id: self._demands.starts.get((uid, attempt, replica.id, replica.incarnation))
                for replica in job.replicas
                if replica.node and replica.state is ReplicaState.WAITING
            }
            # A replica that gets its node later also starts later.
            first = min((at for replica in started if (at := due.get(replica))), default=0)
            needed = {replica for replica, at in due.items() if at and at <= first}
            missing = needed.difference(started)
            if missing:
                self._wrong(uid, f"attempt {attempt} is started without {sorted(map(str, missing))}")
        now = self._books.world.clock.now
        for replica in job.replicas:
            since = self._books.drain_times.get(replica.node or "", now)
            if replica.id in started and now - since > _SETTLES:
                self._wrong(uid, f"{replica.id} is started on {replica.node}, which is drained")

    def _wrong(self, uid: JobUid, what: str) -> None:
        at = self._books.world.clock.now / SECOND
        self._books.wrong.append(f"at {at:.3f} s, job {uid}: {what}")
