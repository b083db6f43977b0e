"""Sample jobs and related records for tests of stores."""

from msgspec.structs import replace

from trainshed.core.job import JobSpec, Machine, Program, Scheduling, WorkerPool
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import RuntimeChoice
from trainshed.core.works import Work
from trainshed.store.port import Commit, LiveJob
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.database import Store

T0 = 1_763_612_345_000_000_000
SECOND = 10**9


def make_job(
    uid: int,
    job_id: str = "",
    *,
    api: Api = Api.VERTEX,
    project_id: str = "p",
    location: str = "us-central1",
    labels: tuple[tuple[str, str], ...] = (),
) -> Job:
    """Return a queued job of one pool. Names of `ml` jobs have no location."""
    program = Program(RuntimeChoice("python", "", "3.11"), module="trainer.task", args=("--epochs", "3"))
    pool = WorkerPool(0, 1, Machine("n1-standard-4", 4.0, 16 << 30, 12 << 30), program)
    return Job(
        uid=JobUid(uid),
        name=JobName(api, project_id, "" if api is Api.ML else location, job_id or f"job{uid}"),
        display_name=f"display {uid}",
        spec=JobSpec(api, location, (pool,), Scheduling(), '{"workerPoolSpecs": []}'),
        public_json='{"displayName": "x"}',
        created=T0 + uid,
        updated=T0 + uid,
        labels=labels,
    )


def in_state(job: Job, state: JobState, at: int = T0 + SECOND) -> Job:
    return replace(job, state=state, updated=at, ended=at if state.is_final else 0)


def entry(kind: str, at: int = T0) -> TimelineEntry:
    return TimelineEntry(at, kind, f"the job {kind}", {"kind": kind, "nested": [1, 2.5, None]})


def cancel(at: int = T0) -> CancelRequested:
    return CancelRequested(CancelCause.USER, at)


def job_of(work: Work) -> Job:
    """Return the work as a job that runs replicas, or fail."""
    assert isinstance(work, Job)
    return work


def live_job(live: LiveJob[Work] | None) -> LiveJob[Job]:
    """Return the loaded work as a job that runs replicas, or fail."""
    assert live is not None
    return LiveJob(job_of(live.job), live.generation, live.intents)


def step(live: LiveJob[Job], state: JobState, *kinds: str, consumed: int = 0) -> Commit:
    return Commit(in_state(live.job, state), live.generation, tuple(entry(kind) for kind in kinds), consumed)


def operation(number: int, target: str = "x", parent: str = "projects/p/locations/l") -> Operation:
    return Operation(f"{parent}/operations/{number}", OperationKind.DELETE, target, T0, T0)


def drill(kind: DrillKind = DrillKind.KILL, at_line: str | None = None) -> Drill:
    return Drill(0, kind, ReplicaId(1, 0), T0, at_line=at_line)


async def end_job(store: Store, job: Job) -> None:
    """Finish a stored job."""
    epoch = await store.ledger.acquire("test")
    live = live_job(await store.ledger.load(job.uid))
    await store.ledger.commit(epoch, step(live, JobState.SUCCEEDED))
