"""The launch plan: a printable value that says everything about how one replica is started."""

from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId

STALL_LABEL = "trainshed-stall-after"
"""Label of a job: whole seconds without progress after which its programs are ended, 0 = never."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one incarnation of one replica.

    `argv[0]` is looked up on the PATH of `environ`. `environ` is complete but for what only the slot knows
    (`HOME`, `TMPDIR`, `PATH` prefix of its own Python, storage endpoint), which the engine adds.
    `hosts`: (name, address) of every replica of the gang. `python_template`: directory of a minimal Python
    environment, used in place and read-only, or copied into the slot where nothing can be mounted ("" = none).
    `memory_limit`: bytes, 0 = none. `cpu_weight`: relative CPU share (100 per vCPU). `banner`: lines that the
    log begins with. `gcs_root`: directory whose sub-directories are the buckets, shown as /gcs ("" = none).
    `path`: directories of commands, put on PATH after those of the slot's own Python. `read_only`:
    directories that the program must not be able to write to, root or not. `stall_after`: ns without any sign of
    progress after which the program is ended, 0 = it is not watched. `watch_metrics`: what the program reports to its
    metrics file is taken down (SPEC §6).
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
    cpu_weight: int = 0
    banner: tuple[str, ...] = ()
    gcs_root: str = ""
    path: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    stall_after: int = 0
    watch_metrics: bool = False
