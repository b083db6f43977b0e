"""The launch plan: all inputs of a replica's start as one printable value."""

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Bytes

REDUCTION_PACKAGES = "/opt/trainshed/reduction"
"""Directory of the package `trainshed_reduction` for programs in container images."""
METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
"""The variable with the path of a trial's metrics file (facts/program#variables). If an engine cannot provide
a separate file at this path for each replica, it sets another path."""
REDUCTION_REPORT_FILE = "TRAINSHED_REDUCTION_REPORT_FILE"
"""The variable with the path of the report file for workers and reducers (spec/reduction#reports). An engine
may set another path."""
STALL_LABEL = "trainshed-stall-after"
"""Label of a job: the whole seconds without progress after which its programs are ended. 0 disables the
limit."""
WARM_LABEL = "trainshed-warm-start"
"""Label of a job: "on" starts its programs in a process with imported frameworks if possible. "off" disables
such warm starts."""


class ImageRoot(Struct, frozen=True):
    """A root file system that the program sees instead of the machine's root file system."""

    #: Directory of the image, whose content never changes. None if the agent already runs in the image and
    #: adds the image's variables (`trainshed_cluster.remote.agent`).
    directory: str | None
    #: The container image's working directory, or None for /.
    workdir: str | None = None
    #: The container image's user as `USER[:GROUP]` by name or number, or None for root.
    user: str | None = None


class Software(Struct, frozen=True):
    """The software of a program: an environment of the service, or a container image."""

    #: Directory of a minimal Python environment, which is used in place and read-only. If mounts are not
    #: possible, the environment is copied into the replica's directory.
    template: str | None = None
    #: Directories of commands, added to PATH after the replica's own Python.
    path: tuple[str, ...] = ()
    #: Directories that the program cannot write to, even as root.
    read_only: tuple[str, ...] = ()
    #: The root file system of the program. With None, the program sees the machine's root file system.
    image: ImageRoot | None = None


class Limits(Struct, frozen=True):
    """The limits of one replica."""

    #: Memory limit in bytes, or None without a limit.
    memory: Bytes | None = None
    #: The disk size in bytes that the job requests, enforced by the shim (spec/submit#defaults). None if
    #: unknown.
    disk: Bytes | None = None
    #: Relative CPU share: 100 per vCPU. None selects the default share of a process.
    cpu_weight: int | None = None
    #: Nanoseconds without any sign of progress after which the program is ended. None disables the limit.
    stall_after: int | None = None


class Account(Struct, frozen=True):
    """The account of a replica: its identity for requests to buckets through its own endpoint, and the
    machine type that its metadata server reports."""

    project: str = ""
    service_account: str = ""
    region: str = ""
    #: The public machine type.
    machine_type: str = ""
    is_spot: bool = False


class ReductionPart(Struct, frozen=True):
    """The role of a replica in a Reduction Server (spec/reduction#reports). By default, the replica has no
    role."""

    #: Directory of the package for reductions. In a container image it is mounted at `REDUCTION_PACKAGES`.
    packages: str | None = None
    #: Number of the job's reducers. The replica's reports about reducers are stored. None for jobs without
    #: reducers: their reports are not stored.
    reducers: int | None = None
    #: Whether the user receives a warning if the program ends without using the reducers.
    is_expected: bool = False


class WarmStart(Struct, frozen=True):
    """The start of a program as a fork of an interpreter that has imported its frameworks (docs/adr/0083)."""

    #: Directory of the runtime's Python environment with the interpreter, or None if a warm start is not
    #: possible.
    runtime: str | None = None
    #: The frameworks that the interpreter has imported.
    modules: tuple[str, ...] = ()
    #: Why a warm start is not possible, as a clause.
    cold_because: str | None = None


class LaunchPlan(Struct, frozen=True):
    """All inputs for the start of one run (incarnation) of a replica."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    #: The program's command line. The first item is looked up in the PATH of `environ`.
    argv: tuple[str, ...]
    #: The program's variables, except those that the engine adds for the replica's directory and address:
    #: `HOME`, `TMPDIR`, the storage endpoint and the prefix of `PATH` for the replica's own Python.
    environ: tuple[tuple[str, str], ...]
    hostname: str
    address: str
    #: (name, address) of every replica of the gang.
    hosts: tuple[tuple[str, str], ...]
    software: Software = Software()
    limits: Limits = Limits()
    account: Account = Account()
    #: (name, directory) of the buckets that are mounted at /gcs/NAME.
    buckets: tuple[tuple[str, str], ...] = ()
    #: Whether the program's reports to its metrics file are stored (spec/tuning#measurements).
    watch_metrics: bool = False
    reduction: ReductionPart = ReductionPart()
    #: The requested warm start (spec/program#warm-starts), or None if none was requested.
    warm: WarmStart | None = None
