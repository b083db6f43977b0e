"""Small, valid, deterministic jobs and exit records for tests of pure code."""

from collections.abc import Iterator

from trainshed.core.job import ExitRecord, JobSpec, Machine, Program, Scheduling, WorkerPool
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    Event,
    JobAdmitted,
    PauseOver,
    PrepareRuntime,
    ReplicaPlaced,
    RuntimePrepared,
    StartReplicas,
    StopReplica,
    StopReplicas,
    TimelineEntry,
)
from trainshed.core.lifecycle.machine import deadlines, step
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.lifecycle.transition import FailurePolicy, instructions
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import RuntimeChoice

SECOND = 10**9
CREATED = 1_000 * SECOND
PRIMARY, WORKER, REDUCER = ReplicaId(0, 0), ReplicaId(1, 0), ReplicaId(2, 0)

RUNTIME = RuntimeChoice("python", "", "3.11")
REDUCTION_SERVER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
MACHINE = Machine("n1-standard-4", 4, 15 * 2**30, 12 * 2**30)


def program(module: str | None = "trainer.task") -> Program:
    if module is None:
        return Program(RUNTIME, image_uri="image", command=("python3", "-c", "pass"))
    return Program(RUNTIME, module=module, package_uris=("gs://bucket/trainer.tar.gz",))


def reducer() -> Program:
    return Program(RUNTIME, image_uri=REDUCTION_SERVER)


def job(
    *counts: int,
    api: Api = Api.VERTEX,
    module: str | None = "trainer.task",
    scheduling: Scheduling | None = None,
    reducers: bool = False,
    output: str | None = None,
) -> Job:
    """Return a queued job with `counts[p]` replicas in pool p, or a single primary without counts.

    With `reducers`, the third pool is a reduction server. `output` is the base output directory.
    """
    pools = tuple(
        WorkerPool(position, count, MACHINE, reducer() if reducers and position == 2 else program(module))
        for position, count in enumerate(counts or (1,))
        if count
    )
    spec = JobSpec(api, "us-central1", pools, scheduling or Scheduling(), "{}", base_output_directory=output)
    name = JobName(api, "demo", "us-central1" if api is Api.VERTEX else "", "7")
    return Job(JobUid(7), name, "a job", "{}", CREATED, CREATED, spec=spec)


def exit_record(
    code: int | None = 0,
    *,
    signal: int | None = None,
    oom: bool = False,
    ended: int = 0,
    tail: str = "",
    stopped: bool = False,
    stalled: bool = False,
    child_oom: int = 0,
) -> ExitRecord:
    """Return an attempt record. For a death by signal, set `signal` instead of `code`."""
    return ExitRecord(
        exit_code=None if signal is not None else code,
        signal=signal,
        oom=oom,
        started=CREATED + SECOND,
        ended=ended or CREATED + 2 * SECOND,
        tail=tail,
        stopped=stopped,
        stalled=stalled,
        child_oom=child_oom,
    )


class Life:
    """A job that receives events one second apart.

    `now` is the time of the last event. `timeline` contains the timeline entries of the job.
    """

    def __init__(self, subject: Job, policy: FailurePolicy | None = None) -> None:
        self.job = subject
        self.policy = policy or FailurePolicy()
        self.now = CREATED + 5 * SECOND
        self.timeline: list[TimelineEntry] = []

    def see(self, *events: Event) -> "Life":
        for event in events:
            self.now += SECOND
            transition = step(self.job, event, self.now, self.policy)
            self.job = transition.job
            self.timeline.extend(transition.timeline)
        return self

    def up(self) -> "Life":
        """Execute all instructions of the job with an engine that never fails, until none remain.

        After that, the job either runs on nodes `a`, `b`, …, with one replica each, or has finished.
        """
        while demanded := tuple(self._end_due()):
            self.see(*demanded)
        return self

    def exits(self, replica: ReplicaId = PRIMARY, code: int | None = 0, **how: bool | int | str) -> "Life":
        """Report the end of a replica one second after it happened. `how`: arguments of `exit_record`."""
        record = exit_record(code, **{"ended": self.now + SECOND, **how})  # pyright: ignore[reportArgumentType] # by name
        known = self.replica(replica)
        return self.see(ReplicaExited(self.job.attempt, replica, known.incarnation, record))

    def loses(
        self, replica: ReplicaId, cause: str = "its shim is gone", *, by_service: bool = False
    ) -> "Life":
        known = self.replica(replica)
        return self.see(ReplicaLost(self.job.attempt, replica, known.incarnation, cause, by_service))

    def places(self, replica: ReplicaId, node: str) -> "Life":
        known = self.replica(replica)
        return self.see(ReplicaPlaced(self.job.attempt, replica, known.incarnation, node))

    def cancel(self, cause: CancelCause = CancelCause.USER) -> "Life":
        return self.see(CancelRequested(cause, self.now + SECOND))

    def replica(self, replica: ReplicaId) -> Replica:
        return next(r for r in self.job.replicas if r.id == replica)

    @property
    def rules(self) -> list[str]:
        """Names of the failure rules of all verdicts so far."""
        return [entry.details["rule"] for entry in self.timeline if entry.kind == "verdict"]

    @property
    def last(self) -> str:
        """Message of the last verdict."""
        return [entry.message for entry in self.timeline if entry.kind == "verdict"][-1]

    def _end_due(self) -> Iterator[Event]:
        subject = self.job
        for due in deadlines(subject):
            if isinstance(due.event, PauseOver):
                self.now = max(self.now, due.at)
                yield due.event
        if subject.phase is AttemptState.WAITING and not subject.state.is_final:
            nodes = zip(subject.spec.replicas(), "abcdefgh", strict=False)
            self.now = max(self.now, subject.not_before)
            yield JobAdmitted(tuple(nodes))
            return
        for instruction in instructions(subject):
            match instruction:
                case PrepareRuntime(attempt):
                    yield RuntimePrepared(attempt)
                case StartReplicas(attempt, waiting):
                    for replica, incarnation in waiting:
                        yield ReplicaStarted(attempt, replica, incarnation, self.now + SECOND)
                case StopReplica() | StopReplicas():
                    yield from self._stop(instruction)
                case _:
                    pass

    def _stop(self, instruction: StopReplica | StopReplicas) -> Iterator[Event]:
        for r in self.job.replicas:
            if r.state.is_over or instruction.attempt != self.job.attempt:
                continue
            if isinstance(instruction, StopReplica) and r.id != instruction.replica:
                continue
            if r.state is ReplicaState.WAITING:
                yield ReplicaLost(instruction.attempt, r.id, r.incarnation, "never started")
            else:
                record = exit_record(143, stopped=True, ended=self.now + SECOND)
                yield ReplicaExited(instruction.attempt, r.id, r.incarnation, record)
