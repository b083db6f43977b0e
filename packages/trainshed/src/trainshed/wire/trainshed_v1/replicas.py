"""Records of a job's replicas: usage, measurements, and starts."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class GpuUsage(Record, frozen=True):
    """A GPU of a replica."""

    uuid: str = ""
    type: str = ""
    #: Busy part of recent time, from 0 to 1; null = the GPU does not report it.
    busy: float | None = None
    #: Average busy part, from 0 to 1.
    mean_busy: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    #: Degrees Celsius.
    temperature: float | None = None


class UsagePoint(Record, frozen=True):
    """The usage of a replica at one time."""

    at: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    #: Busy part of each GPU, from 0 to 1.
    gpus: tuple[float | None, ...] = ()


class ReplicaUsage(Record, frozen=True):
    """The current and past usage of one replica. Averages and maxima include all incarnations of the attempt.
    All other values are those of the newest incarnation."""

    id: str = ""
    task: str = ""
    #: "" = unknown, for an earlier attempt.
    state: str = ""
    machine_type: str = ""
    vcpus: float = 0.0
    #: Memory limit; 0 = no limit.
    limit_bytes: int = 0
    incarnation: int = 0
    start_time: str = ""
    #: Time of the last measurement; "" = not measured yet.
    sample_time: str = ""
    #: Whether measuring has ended.
    over: bool = False
    processes: int = 0
    #: Busy processors: recently, on average, and the maximum.
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
    #: Usage of the newest attempt since the start of its first program.
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    #: Cost by the setting `prices`.
    cost: float = 0.0


class CurvePoint(Record, frozen=True):
    """One value of a curve."""

    step: float = 0
    at: str = ""
    #: `"NaN"`, `"Infinity"` or `"-Infinity"` if the value is no finite number.
    value: float | str = 0.0


class JobCurve(Record, frozen=True):
    """The values of one tag in one log directory, or of one measure in a program's output."""

    #: The job with this curve. For a tuning job or pipeline, one of its jobs.
    job: str = ""
    #: Number of the job's trial; 0 = none.
    trial: int = 0
    #: For logged values: the directory below the job's log directory; "" = that directory itself. For printed
    #: values: the data set of the measurement; "" = training data.
    run: str = ""
    tag: str = ""
    #: Task of the replica that printed the values; "" = the primary replica's, or logged values.
    replica: str = ""
    #: Unit of the steps of printed values: "epoch", "step" or "line"; "" = logged values.
    unit: str = ""
    #: Number of available points. `points` may contain fewer.
    count: int = 0
    #: The last value.
    value: float | str = 0.0
    #: Points sorted by step, including the first and the last.
    points: tuple[CurvePoint, ...] = ()


class JobCurves(Record, frozen=True):
    """The curves of a job by run and tag. For a tuning job or pipeline, the curves of all of its jobs."""

    #: The requested job.
    job: str = ""
    curves: tuple[JobCurve, ...] = ()
    #: Whether the answer omits curves. To get them, request a `run` or a `tag`.
    more: bool = False


class Runtime(Record, frozen=True):
    """The runtime of a program."""

    #: Such as "scikit-learn"; "container" = the unmodified image.
    family: str = ""
    #: Version of the framework; "" = plain Python, or a container.
    version: str = ""
    #: Such as "3.10"; "" = a container.
    python_version: str = ""
    #: The image that runs; "" = an environment of the service.
    image: str = ""
    #: Differences between the requested and the actual runtime.
    notices: tuple[str, ...] = ()


class LaunchMachine(Record, frozen=True):
    """The machine of a replica: properties of its type, and limits on this service."""

    #: Machine type, such as "n1-standard-4".
    type: str = ""
    #: Processors of the machine type.
    vcpus: float = 0.0
    #: Memory of the machine type.
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
    """The start of a replica's newest incarnation in an attempt. Before the start, only runtime, machine and
    time limit are set."""

    #: Full name of the job.
    name: str = ""
    attempt: int = 0
    #: ID of the replica, such as "workerpool0-0".
    replica: str = ""
    #: Name of the replica in the job's log.
    task: str = ""
    #: "" = unknown, for an earlier attempt.
    node: str = ""
    #: 0 = not started.
    incarnation: int = 0
    #: "" = not started.
    start_time: str = ""
    runtime: Runtime = Runtime()
    machine: LaunchMachine = LaunchMachine()
    #: gs:// names of the packages, in the order of their installation.
    packages: tuple[str, ...] = ()
    #: Digest of the image, the module or command, and the contents of the packages. Jobs with the same code
    #: have the same digest, with any arguments.
    code: str = ""
    #: The program and its arguments, limited to 16 KiB.
    command: tuple[str, ...] = ()
    #: Initial working directory; "" = the replica's own working directory.
    directory: str = ""
    #: Names of all environment variables of the program.
    variables: tuple[str, ...] = ()
    #: Values of the variables that describe the program's position and resources.
    values: Mapping[str, str] = {}
    #: CLUSTER_SPEC without the job: `cluster` and `task`; null = none.
    cluster_spec: Mapping[str, Any] | None = None
    #: "" = the machine's hostname.
    hostname: str = ""
    #: "" = the machine's address.
    address: str = ""
    #: Isolation level (docs/security.md).
    isolation: str = ""
    #: ID of the program's user; null = the service's own user.
    user: int | None = None
    #: Maximum run time of the job in seconds.
    timeout_seconds: float = 0.0
    #: Account of the program's default credentials.
    service_account: str = ""
