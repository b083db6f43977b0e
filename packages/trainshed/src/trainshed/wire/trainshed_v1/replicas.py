"""Records of a job's replicas: what they use, what they measure, and how each was started."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class GpuUsage(Record, frozen=True):
    """A GPU of a replica."""

    uuid: str = ""
    type: str = ""
    #: Share of recent time in which it was busy, from 0 to 1; null if it does not report that.
    busy: float | None = None
    #: The same on average.
    mean_busy: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    #: Degrees Celsius.
    temperature: float | None = None


class UsagePoint(Record, frozen=True):
    """What a replica used at a moment."""

    at: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    #: How busy each GPU was, from 0 to 1.
    gpus: tuple[float | None, ...] = ()


class ReplicaUsage(Record, frozen=True):
    """What one replica uses and has used. Means and maxima are of all incarnations of the attempt, the rest
    is of the newest."""

    id: str = ""
    task: str = ""
    #: "" for an earlier attempt, whose state is not known.
    state: str = ""
    machine_type: str = ""
    vcpus: float = 0.0
    #: Limit of its memory; 0 = none.
    limit_bytes: int = 0
    incarnation: int = 0
    start_time: str = ""
    #: When it was last measured; "" = not yet.
    sample_time: str = ""
    #: Whether it will not be measured again.
    over: bool = False
    processes: int = 0
    #: Processors at work recently, on average, and at most.
    cpus: float = 0.0
    mean_cpus: float = 0.0
    most_cpus: float = 0.0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    #: What its files take; 0 = not known yet.
    disk_bytes: int = 0
    gpus: tuple[GpuUsage, ...] = ()
    #: The newest points, oldest first.
    points: tuple[UsagePoint, ...] = ()


class Usage(Record, frozen=True):
    """What a job's replicas use and have used."""

    name: str = ""
    state: str = ""
    attempt: int = 0
    replicas: tuple[ReplicaUsage, ...] = ()
    #: Usage of the newest attempt, from the start of its first program.
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    #: By the setting `prices`.
    cost: float = 0.0


class CurvePoint(Record, frozen=True):
    """One value of a scalar."""

    step: float = 0
    at: str = ""
    #: `"NaN"`, `"Infinity"` or `"-Infinity"` if it is no finite number.
    value: float | str = 0.0


class JobCurve(Record, frozen=True):
    """What was logged under one tag into one directory, or printed of one measure."""

    #: The job that logged it; for a tuning job or pipeline, one of its jobs.
    job: str = ""
    #: Number of the trial that the job runs; 0 = none.
    trial: int = 0
    #: The directory below the job's log directory, "" = that itself; of what was printed the part of the data
    #: that was measured, "" = what it was trained on.
    run: str = ""
    tag: str = ""
    #: The task of the replica that printed it; "" = the primary's, or it was logged.
    replica: str = ""
    #: What the steps of what was printed count: "epoch", "step" or "line"; "" = it was logged.
    unit: str = ""
    #: Number of points that were read; `points` may be fewer.
    count: int = 0
    #: What was read last.
    value: float | str = 0.0
    #: Ascending by step; the first and the last are always included.
    points: tuple[CurvePoint, ...] = ()


class JobCurves(Record, frozen=True):
    """The curves of a job, by run and tag; for a tuning job or pipeline, of all jobs that it made."""

    #: The job that was asked for.
    job: str = ""
    curves: tuple[JobCurve, ...] = ()
    #: Whether there are more than the answer has; ask for a `run` or a `tag`.
    more: bool = False


class Runtime(Record, frozen=True):
    """What a program runs in."""

    #: Such as "scikit-learn"; "container" = the image as it is.
    family: str = ""
    #: Version of the framework; "" for plain Python and containers.
    version: str = ""
    #: Such as "3.10"; "" for a container.
    python_version: str = ""
    #: The image that is run; "" = an environment of the service.
    image: str = ""
    #: What was asked for and what is given instead.
    notices: tuple[str, ...] = ()


class LaunchMachine(Record, frozen=True):
    """The machine of a replica: what its type has, and what applies here."""

    #: Machine type, such as "n1-standard-4".
    type: str = ""
    #: Processors that the type has.
    vcpus: float = 0.0
    #: Memory that the type has.
    memory_bytes: int = 0
    #: Memory that the program may use; 0 = no limit, or it has not started.
    memory_limit_bytes: int = 0
    #: Disk that was asked for, or the default.
    disk_bytes: int = 0
    #: Processes and threads; 0 = no limit, or it has not started.
    process_limit: int = 0
    #: Type of its accelerators; "" = it has none.
    accelerator: str = ""
    accelerator_count: int = 0
    #: Uuids of the GPUs that are its own.
    gpus: tuple[str, ...] = ()


class Launch(Record, frozen=True):
    """How the newest incarnation of a replica in an attempt was started. For one that has not started: what
    is known before, which is runtime, machine and time limits."""

    #: Full name of the job.
    name: str = ""
    attempt: int = 0
    #: Id of the replica, such as "workerpool0-0".
    replica: str = ""
    #: The replica as the job's log calls it.
    task: str = ""
    #: "" for an earlier attempt, whose node is not known.
    node: str = ""
    #: 0 = it has not started.
    incarnation: int = 0
    #: "" = it has not started.
    start_time: str = ""
    runtime: Runtime = Runtime()
    machine: LaunchMachine = LaunchMachine()
    #: gs:// names of the packages, in the order in which they were installed.
    packages: tuple[str, ...] = ()
    #: Digest of the image, the module or command and the content of the packages: the same for jobs that run
    #: the same code, whatever their arguments.
    code: str = ""
    #: The program and its arguments; longer ones are cut at 16 KiB.
    command: tuple[str, ...] = ()
    #: Directory in which it started; "" = its own working directory.
    directory: str = ""
    #: Names of all its environment variables.
    variables: tuple[str, ...] = ()
    #: Values of those that say where it is and what it may use.
    values: Mapping[str, str] = {}
    #: CLUSTER_SPEC without the job: `cluster` and `task`; null if there is none.
    cluster_spec: Mapping[str, Any] | None = None
    #: "" = the machine's.
    hostname: str = ""
    #: "" = the machine's.
    address: str = ""
    #: Level of isolation (docs/security.md).
    isolation: str = ""
    #: Id of the user that it ran as; null = the service's own.
    user: int | None = None
    #: Seconds that the job may run.
    timeout_seconds: float = 0.0
    #: Account whose credentials the program finds.
    service_account: str = ""
