"""The launch plan: a printable value that holds everything about how one replica is started."""

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Bytes

REDUCTION_PACKAGES = "/opt/trainshed/reduction"
"""Where programs in container images find the package `trainshed_reduction`."""
METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
"""The variable with the path of a trial's metrics file (facts/program#variables). An engine that
cannot show this path to a single replica sets another path."""
REDUCTION_REPORT_FILE = "TRAINSHED_REDUCTION_REPORT_FILE"
"""The variable that names the file in which workers and reducers report (spec/reduction#reports). Engines may
put another path in its place as well."""
STALL_LABEL = "trainshed-stall-after"
"""Label of a job: whole seconds without progress after which its programs are ended, 0 = never."""
WARM_LABEL = "trainshed-warm-start"
"""Label of a job: "on" = its programs begin with their frameworks imported, where that is possible, "off" =
they do not."""


class ImageRoot(Struct, frozen=True):
    """The root file system that a program sees instead of the machine's."""

    #: Its content stays unchanged, whatever the program writes; None = whoever starts the program is in
    #: the image already, and adds the variables that it sets (`trainshed_cluster.remote.agent`).
    directory: str | None
    #: As in the container image; None = /.
    workdir: str | None = None
    #: As in the container image, `USER[:GROUP]` by name or number; None = root.
    user: str | None = None


class Software(Struct, frozen=True):
    """The software that a program runs in: an environment of the service, or a container image."""

    #: Directory of a minimal Python environment, used in place and read-only, or copied into the slot where
    #: nothing can be mounted.
    template: str | None = None
    #: Directories of commands, put on PATH after those of the slot's own Python.
    path: tuple[str, ...] = ()
    #: Directories that the program must not be able to write to, root or not.
    read_only: tuple[str, ...] = ()
    #: The program runs in this file system; None = in the machine's.
    image: ImageRoot | None = None


class Limits(Struct, frozen=True):
    """The limits of one replica."""

    #: None = no limit.
    memory: Bytes | None = None
    #: Bytes of the disk that the job asked for, watched by its shim (spec/submit#defaults); None = not known.
    disk: Bytes | None = None
    #: Relative share of the processors, 100 per vCPU; None = as any other process.
    cpu_weight: int | None = None
    #: Nanoseconds without any sign of progress after which the program is ended; None = it is not watched.
    stall_after: int | None = None


class Account(Struct, frozen=True):
    """The identity with which the replica's own endpoint acts for it towards buckets, and the machine that
    its metadata describe."""

    project: str = ""
    service_account: str = ""
    region: str = ""
    #: The public machine type.
    machine_type: str = ""
    is_spot: bool = False


class ReductionPart(Struct, frozen=True):
    """A replica's part in a Reduction Server (spec/reduction#reports); by default it has none."""

    #: Directory of the package that it reduces by; in a container image it is shown at `REDUCTION_PACKAGES`.
    packages: str | None = None
    #: How many reducers the job has; the replica's reports about them are stored. None = there are none,
    #: and nothing is stored.
    reducers: int | None = None
    #: Whether the user gets a warning if the program ends without having used them.
    is_expected: bool = False


class WarmStart(Struct, frozen=True):
    """The start of a program in a fork of an interpreter that has imported its frameworks (docs/adr/0083)."""

    #: Directory of the runtime's Python environment, to which the interpreter belongs; None = there is
    #: none.
    runtime: str | None = None
    #: Frameworks that are imported there.
    modules: tuple[str, ...] = ()
    #: Why it cannot be had, as a clause.
    cold_because: str | None = None


class LaunchPlan(Struct, frozen=True):
    """How to start one incarnation of one replica."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    #: The first item is looked up on the PATH of `environ`.
    argv: tuple[str, ...]
    #: Complete except for what only the slot knows (`HOME`, `TMPDIR`, the `PATH` prefix of its own Python,
    #: the storage endpoint), which the engine adds.
    environ: tuple[tuple[str, str], ...]
    hostname: str
    address: str
    #: (name, address) of every replica of the gang.
    hosts: tuple[tuple[str, str], ...]
    software: Software = Software()
    limits: Limits = Limits()
    account: Account = Account()
    #: (name, directory) of the buckets that are shown as /gcs/NAME.
    buckets: tuple[tuple[str, str], ...] = ()
    #: The program's reports to its metrics file are stored (spec/tuning#measurements).
    watch_metrics: bool = False
    reduction: ReductionPart = ReductionPart()
    #: The warm start that was asked for (spec/program#warm-starts); None = none was.
    warm: WarmStart | None = None
