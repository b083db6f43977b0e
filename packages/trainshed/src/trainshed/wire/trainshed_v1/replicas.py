"""Records of a job's replicas: usage, measurements, and starts."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class GpuUsage(Record, frozen=True):
    """A GPU of a replica."""

    uuid: str = ""
    type: str = ""
    #: Part of the recent time in which the GPU was busy, from 0 to 1; null = the GPU does not report it.
    busy: float | None = None
    #: Part of the whole time of the replica's run (incarnation) in which the GPU was busy, from 0 to 1; null
    #: = unknown.
    mean_busy: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    #: Temperature in degrees Celsius.
    temperature: float | None = None


class UsagePoint(Record, frozen=True):
    """The usage of a replica at one time."""

    at: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    #: Part of the time in which each GPU was busy, from 0 to 1; null = the GPU does not report it.
    gpus: tuple[float | None, ...] = ()


class ReplicaUsage(Record, frozen=True):
    """The current and past usage of one replica. `points`, and averages and maxima of processors and memory,
    are over all runs (incarnations) of the replica in the attempt. All other values, including those of GPUs,
    are those of the newest run."""

    id: str = ""
    task: str = ""
    #: State of the replica; "" = unknown, because the attempt is not the newest.
    state: str = ""
    machine_type: str = ""
    vcpus: float = 0.0
    #: Memory limit of the program; 0 = no limit.
    limit_bytes: int = 0
    incarnation: int = 0
    start_time: str = ""
    #: Time of the last measurement; "" = not measured yet.
    sample_time: str = ""
    #: Whether the usage is no longer measured.
    over: bool = False
    processes: int = 0
    #: Number of busy processors: the recent value, the average and the maximum.
    cpus: float = 0.0
    mean_cpus: float = 0.0
    most_cpus: float = 0.0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    #: Disk space of the replica's files; 0 = unknown.
    disk_bytes: int = 0
    gpus: tuple[GpuUsage, ...] = ()
    #: The newest measurements, oldest first.
    points: tuple[UsagePoint, ...] = ()


class Usage(Record, frozen=True):
    """The current and past usage of a job's replicas."""

    name: str = ""
    state: str = ""
    attempt: int = 0
    replicas: tuple[ReplicaUsage, ...] = ()
    #: Usage in the newest attempt since its first program started.
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    #: Cost according to the setting `prices`.
    cost: float = 0.0


class CurvePoint(Record, frozen=True):
    """One value of a curve."""

    step: float = 0
    at: str = ""
    #: The value. `"NaN"`, `"Infinity"` or `"-Infinity"` if it is not a finite number.
    value: float | str = 0.0


class JobCurve(Record, frozen=True):
    """A curve: the values of a tag in event files, or of a metric that a program printed."""

    #: Name of the job that the curve belongs to. For a tuning job or pipeline, this is one of its jobs.
    job: str = ""
    #: Number of the job's trial; 0 = the job does not run a trial.
    trial: int = 0
    #: For event files: their directory, relative to the job's log directory; "" = the log directory itself.
    #: For printed values: the data set of the measurement; "" = training data.
    run: str = ""
    tag: str = ""
    #: Task of the replica that printed the values; "" = the primary replica, or a curve from event files.
    replica: str = ""
    #: Unit of the steps of printed values: "epoch", "step" or "line"; "" = a curve from event files.
    unit: str = ""
    #: Number of points of the complete curve. `points` may contain fewer points.
    count: int = 0
    #: The last value of the curve.
    value: float | str = 0.0
    #: Points sorted by step. They include the first and the last point.
    points: tuple[CurvePoint, ...] = ()


class JobCurves(Record, frozen=True):
    """Curves of a job by run and tag. For a tuning job or pipeline, the curves of all of its jobs."""

    #: Name of the requested job.
    job: str = ""
    curves: tuple[JobCurve, ...] = ()
    #: Whether the response omits curves. To get the omitted curves, request a `run` or a `tag`.
    more: bool = False


class Runtime(Record, frozen=True):
    """The runtime in which a program runs."""

    #: Framework, such as "scikit-learn"; "container" = the program runs in an unmodified image.
    family: str = ""
    #: Version of the framework; "" = plain Python, or a container.
    version: str = ""
    #: Python version, such as "3.10"; "" = a container.
    python_version: str = ""
    #: The image that runs; "" = the program runs in an environment of the service instead.
    image: str = ""
    #: Differences between the requested and the actual runtime.
    notices: tuple[str, ...] = ()


class LaunchMachine(Record, frozen=True):
    """The machine of a replica: properties of its machine type, and limits of this service."""

    #: Machine type, such as "n1-standard-4".
    type: str = ""
    #: Number of vCPUs of the machine type.
    vcpus: float = 0.0
    #: Memory size of the machine type.
    memory_bytes: int = 0
    #: Memory limit of the program; 0 = no limit, or not started.
    memory_limit_bytes: int = 0
    #: Requested or default disk size.
    disk_bytes: int = 0
    #: Maximum number of processes and threads; 0 = no limit, or not started.
    process_limit: int = 0
    #: Accelerator type; "" = no accelerators.
    accelerator: str = ""
    accelerator_count: int = 0
    #: UUIDs of the replica's GPUs.
    gpus: tuple[str, ...] = ()


class Launch(Record, frozen=True):
    """How the newest run (incarnation) of a replica in an attempt was started. Before its start, only
    runtime, machine and time limit are set."""

    #: Full name of the job.
    name: str = ""
    attempt: int = 0
    #: ID of the replica, such as "workerpool0-0".
    replica: str = ""
    #: Name of the replica in the job's log.
    task: str = ""
    #: Node of the replica; "" = unknown, because the attempt is not the newest.
    node: str = ""
    #: Number of the replica's run (incarnation); 0 = not started.
    incarnation: int = 0
    #: Start time of the replica's run (incarnation); "" = not started.
    start_time: str = ""
    runtime: Runtime = Runtime()
    machine: LaunchMachine = LaunchMachine()
    #: gs:// URIs of the packages, in the order of their installation.
    packages: tuple[str, ...] = ()
    #: Digest of the image, the module or command, and the contents of the packages. It does not depend on the
    #: arguments. Jobs with the same code therefore have the same digest.
    code: str = ""
    #: The program and its arguments, truncated to 16 KiB.
    command: tuple[str, ...] = ()
    #: Initial working directory; "" = the replica's own working directory.
    directory: str = ""
    #: Names of all environment variables of the program.
    variables: tuple[str, ...] = ()
    #: Values of the variables that describe the position and resources of the program.
    values: Mapping[str, str] = {}
    #: CLUSTER_SPEC without the job: only `cluster` and `task`; null = not set.
    cluster_spec: Mapping[str, Any] | None = None
    #: Hostname of the program; "" = the machine's hostname.
    hostname: str = ""
    #: IP address of the program; "" = the machine's address.
    address: str = ""
    #: Isolation level (docs/security.md).
    isolation: str = ""
    #: ID of the Unix user of the program; null = the user of the service.
    user: int | None = None
    #: Maximum run time of the job in seconds.
    timeout_seconds: float = 0.0
    #: Service account of the program's default credentials.
    service_account: str = ""
