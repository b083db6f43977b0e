"""The launch plan: a printable value that says everything about how one replica is started."""

from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId

STALL_LABEL = "trainshed-stall-after"
"""Label of a job: whole seconds without progress after which its programs are ended, 0 = never."""


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """The root file system that a program sees instead of the machine's: `directory`, whose content stays as
    it is whatever the program writes. `workdir`, `user`: as in the container image, "" = its slot's own
    directory, root."""

    directory: str
    workdir: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class ReductionWatch:
    """A replica that reduces, or is to use reducers (spec/reduction#reports): what it reports is taken down.
    `reducers`: how many the job has. `verdict_after`: ns without any report after which its processes are
    looked at, for whether its program can use reducers at all; 0 = nobody looks."""

    reducers: int
    verdict_after: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one incarnation of one replica.

    `argv[0]` is looked up on the PATH of `environ`. `environ` is complete but for what only the slot knows
    (`HOME`, `TMPDIR`, `PATH` prefix of its own Python, storage endpoint), which the engine adds. `hosts`:
    (name, address) of every replica of the gang. `python_template`: directory of a minimal Python
    environment, used in place and read-only, or copied into the slot where nothing can be mounted ("" =
    none). `memory_limit`: bytes, 0 = none. `disk_limit`: bytes of the disk that the job asked for, watched by
    its shim (spec/submit#defaults), 0 = not known. `cpu_weight`: relative CPU share (100 per vCPU).
    `buckets`: (name, directory) of those that are shown as /gcs/NAME. `path`: directories of commands, put on
    PATH after those of the slot's own Python. `read_only`: directories that the program must not be able to
    write to, root or not. `stall_after`: ns without any sign of progress after which the program is ended, 0
    = it is not watched. `watch_metrics`: what the program reports to its metrics file is taken down
    (spec/tuning#measurements); `watch_reduction`: likewise what it reports about its part in a job with
    reducers. `reduction`: directory of the package that it does so by, "" = it has no part in any; in an
    image it is shown at `core.reduction.IMAGE_PACKAGES`. `image`: the program runs in this file system.
    `project`, `service_account`, `region`: as whom, and where, the replica's own endpoint speaks for it: to
    buckets, and when it hands out credentials.
    """

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    hostname: str
    address: str
    hosts: tuple[tuple[str, str], ...]
    python_template: str = ""
    memory_limit: int = 0
    disk_limit: int = 0
    cpu_weight: int = 0
    buckets: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    stall_after: int = 0
    watch_metrics: bool = False
    image: ImageRoot | None = None
    project: str = ""
    service_account: str = ""
    region: str = ""
    watch_reduction: ReductionWatch | None = None
    reduction: str = ""
