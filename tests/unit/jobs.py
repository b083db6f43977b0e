"""Jobs and exits for tests of pure code: small, valid, and the same every time."""

from trainshed.core.lifecycle.records import ExitRecord, Job
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.runtime import RuntimeChoice
from trainshed.core.specs.model import JobSpec, Machine, Program, Scheduling, WorkerPool

SECOND = 10**9
CREATED = 1_000 * SECOND

RUNTIME = RuntimeChoice("python", "", "3.11")
MACHINE = Machine("n1-standard-4", 4, 15 * 2**30, 12 * 2**30)


def program(module: str | None = "trainer.task") -> Program:
    if module is None:
        return Program(RUNTIME, image_uri="image", command=("python3", "-c", "pass"))
    return Program(RUNTIME, module=module, package_uris=("gs://bucket/trainer.tar.gz",))


def job(
    *counts: int,
    api: Api = Api.VERTEX,
    module: str | None = "trainer.task",
    scheduling: Scheduling | None = None,
) -> Job:
    """A queued job with `counts[p]` replicas in pool p; no counts: a single primary."""
    pools = tuple(
        WorkerPool(position, count, MACHINE, program(module))
        for position, count in enumerate(counts or (1,))
        if count
    )
    spec = JobSpec(api, "us-central1", pools, scheduling or Scheduling(), "{}")
    name = JobName(api, "demo", "us-central1" if api is Api.VERTEX else "", "7")
    return Job(JobUid(7), name, "a job", spec, "{}", CREATED, CREATED)


def exited(
    code: int | None = 0,
    *,
    signal: int | None = None,
    oom: bool = False,
    ended: int = 0,
    tail: str = "",
) -> ExitRecord:
    """An attempt record; give `signal` instead of a code for a death by signal."""
    return ExitRecord(
        exit_code=None if signal is not None else code,
        signal=signal,
        oom=oom,
        started=CREATED + SECOND,
        ended=ended or CREATED + 2 * SECOND,
        tail=tail,
    )
