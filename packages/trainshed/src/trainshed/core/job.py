"""The validated specification of a job, the record of a replica's end, and the public error of a job.

Both public APIs share one specification. Only `core.specs.vertex` and `core.specs.ml` create specifications,
so other code need not validate a `JobSpec` again.
"""

import enum
import json
from typing import Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.datasets.plans import SplitPlan
from trainshed.core.names import Api, ReplicaId
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import RuntimeChoice
from trainshed.core.units import Nanos


class Accelerators(Struct, frozen=True):
    """`count` devices of public type `type` (`NVIDIA_TESLA_T4`) on each replica."""

    type: str
    count: int


class Machine(Struct, frozen=True):
    """A public machine type with its sizes."""

    type: str
    vcpus: float
    #: The nominal memory of the machine type.
    memory_bytes: int
    #: Maximum memory of a replica on this machine (spec/machines#memory).
    memory_limit_bytes: int
    accelerators: Accelerators | None = None


class Disk(Struct, frozen=True):
    """Boot disk of each replica of a pool. Default: `pd-ssd`, 100 GB (spec/machines#disk)."""

    type: str = "pd-ssd"
    size_gb: int = 100


class Program(Struct, frozen=True):
    """The program of a replica: a Python package if `module` is set, otherwise a container. A package job
    installs `package_uris` in order and runs `python -m module args`."""

    runtime: RuntimeChoice
    #: The image of a container, or the executor image of a package job.
    image_uri: str = ""
    package_uris: tuple[str, ...] = ()
    #: SHA-256 digests, complete or shortened, of the packages at the job's creation. "" for a package that is
    #: not pinned, and an empty tuple if no package is pinned.
    package_digests: tuple[str, ...] = ()
    module: str | None = None
    #: Overrides the ENTRYPOINT of a container's image (facts/program#arguments).
    command: tuple[str, ...] = ()
    #: Arguments of the module. For a container, they override the CMD of its image (facts/program#arguments).
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def packages(self) -> tuple[JobPackage, ...]:
        """The packages in the order in which they are installed."""
        digests = self.package_digests or ("",) * len(self.package_uris)
        return tuple(map(JobPackage, self.package_uris, digests))

    @property
    def environment(self) -> tuple[RuntimeChoice, tuple[JobPackage, ...]]:
        """The environment to prepare for the program: a runtime with the packages on top."""
        names_gsutil = any("gsutil" in word for word in (*self.command, *self.args))
        return replace(self.runtime, gsutil=names_gsutil), self.packages


class WorkerPool(Struct, frozen=True):
    """One worker pool."""

    #: 0: primary. 1: workers. 2: parameter servers or reducers. 3: evaluators.
    position: int
    replica_count: int
    machine: Machine
    program: Program
    disk: Disk = Disk()

    def replicas(self) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(self.position, index) for index in range(self.replica_count))


class Strategy(enum.StrEnum):
    STANDARD = "STANDARD"
    SPOT = "SPOT"
    FLEX_START = "FLEX_START"


DEFAULT_TIMEOUT = 7 * 24 * 3600 * 10**9
"""Default maximum running time of a job: seven days in nanoseconds (spec/lifecycle#time-limits)."""


class Scheduling(Struct, frozen=True):
    """Time limits and retry options."""

    #: Maximum running time in nanoseconds.
    timeout: int = DEFAULT_TIMEOUT
    #: Maximum waiting time in nanoseconds, or None for no limit.
    max_wait: int | None = None
    priority: int = 0
    restart_job_on_worker_restart: bool = False
    disable_retries: bool = False
    strategy: Strategy = Strategy.STANDARD


_SLASHES_OF_A_BUCKET: Final = 2
"""Number of slashes in `gs://BUCKET`. A URI with more slashes also contains a directory."""
LOG_DIRECTORY: Final = "AIP_TENSORBOARD_LOG_DIR"
"""The variable with the directory for event files of a Vertex program."""
_MOUNT: Final = "/gcs/"


class JobSpec(Struct, frozen=True):
    """Everything needed to run a job."""

    api: Api
    region: str
    #: Only the pools with replicas, ascending by position. Pool 0 has exactly one replica.
    pools: tuple[WorkerPool, ...]
    scheduling: Scheduling
    #: The spec of the request as JSON text in the public spelling: the `job` entry of CLUSTER_SPEC.
    job_json: str
    #: The service account of the job's programs. None selects the project's default account.
    service_account: str | None = None
    #: `gs://` URIs below which the job writes: `base_output_directory` for Vertex, `job_dir` for `ml`.
    base_output_directory: str | None = None
    job_dir: str | None = None
    #: The runtime version of an `ml` job. None for a job in containers or on the newest version.
    runtime_version: str | None = None
    use_chief_in_tf_config: bool = False
    #: Notices for the timeline and the first lines of the log (spec/submit#defaults, spec/submit#warnings,
    #: spec/runtimes#substitutes).
    warnings: tuple[str, ...] = ()
    #: Number of the trial that this job evaluates, as text. An `ml` trial's job is called `JOB.TRIAL`.
    trial: str | None = None
    #: The name under which an `ml` trial's program reports its objective.
    metric_tag: str | None = None
    #: The part of a dataset that is written to files before the programs start.
    data: SplitPlan | None = None
    #: The id of the persistent resource whose machines run the job. None if the job has its own machines.
    persistent_resource: str | None = None

    @property
    def primary(self) -> ReplicaId:
        """The replica whose exit decides the job's success."""
        return ReplicaId(self.pools[0].position, 0)

    def replicas(self) -> tuple[ReplicaId, ...]:
        return tuple(replica for pool in self.pools for replica in pool.replicas())

    @property
    def output(self) -> str | None:
        """The gs:// directory below which the job writes, without a slash at its end. None if the job has no
        such directory, or specifies a bucket without a directory."""
        uri = (self.base_output_directory or self.job_dir or "").rstrip("/")
        return uri if uri.count("/") > _SLASHES_OF_A_BUCKET else None

    @property
    def log_directory(self) -> str | None:
        """The `gs://` URI of the job's directory for event files, without a slash at its end, or None.

        For `ml` v1 it is the job's own directory. On Vertex, the job's variable overrides the default if its
        value is in a bucket.
        """
        if self.api is Api.ML:
            return self.job_dir.rstrip("/") if self.job_dir else None
        value = dict(self.pools[0].program.env).get(LOG_DIRECTORY)
        if value is not None:
            if value.startswith(_MOUNT):
                value = f"gs://{value.removeprefix(_MOUNT)}"
            # The service does not know values that the program computes at its start.
            return value.rstrip("/") if value.startswith("gs://") and "$(" not in value else None
        base = self.base_output_directory
        return f"{base.removesuffix('/')}/logs" if base else None

    @property
    def tensorboard(self) -> str | None:
        """The name of the Tensorboard that also receives the job's curves, or None."""
        if self.api is Api.ML or '"tensorboard"' not in self.job_json:
            return None
        return json.loads(self.job_json).get("tensorboard") or None

    @property
    def runtime_notices(self) -> tuple[str, ...]:
        """The distinct notices about differences between the requested and the actual runtimes of pools."""
        notices = (notice for pool in self.pools for notice in pool.program.runtime.notices)
        return tuple(dict.fromkeys(notices))

    @property
    def substitutions(self) -> tuple[str, ...]:
        """The notices about runtimes whose framework version or Python differs from the requested one."""
        choices = (pool.program.runtime for pool in self.pools)
        return tuple(dict.fromkeys(choice.notices[0] for choice in choices if not choice.is_exact))

    def pool(self, position: int) -> WorkerPool:
        """Return the pool at `position`. Raise KeyError if the job has no such pool."""
        for pool in self.pools:
            if pool.position == position:
                return pool
        raise KeyError(f"the job has no worker pool {position}")


SpecT_co = TypeVar("SpecT_co", covariant=True)


class JobDraft(Struct, Generic[SpecT_co], frozen=True):
    """The contents of a valid request to create a job or tuning job. `labels` keep their order."""

    spec: SpecT_co
    display_name: str
    labels: tuple[tuple[str, str], ...]


class ExitRecord(Struct, frozen=True, kw_only=True):
    """How a replica's main process ended, as recorded by its shim (spec/invariants#shims, "attempt record").

    Exactly one of `exit_code` and `signal` is set.
    """

    exit_code: int | None
    signal: int | None
    #: Whether the replica reached its memory limit and the main process was killed.
    oom: bool
    #: Start of the main process, in nanoseconds since the epoch.
    started: Nanos
    #: End of the main process, in nanoseconds since the epoch.
    ended: Nanos
    #: Total number of lines in the log, so that readers can detect its end.
    log_lines: int = 0
    #: The last lines of a failed program's log: at most 8 KiB.
    tail: str = ""
    #: Number of the replica's other processes that were killed at the memory limit.
    child_oom: int = 0
    #: Whether the replica received a request to stop before it ended.
    stopped: bool = False
    #: Whether the stall watchdog ended the program.
    stalled: bool = False
    #: Whether the program was ended because its files exceeded the replica's disk limit.
    out_of_disk: bool = False


class JobError(Struct, frozen=True):
    """The public error of a job: a google.rpc code, the public message (spec/failures#messages) and typed
    facts."""

    #: A google.rpc code.
    code: int
    #: The public message.
    message: str
    #: A value of `core.failure.evidence.Cause`, or "trials" or "model". None if the error is not about the
    #: end of a job.
    cause: str | None = None
    #: The replica whose end caused the error, or None for the whole attempt.
    replica: str | None = None
    #: The published exit status of the replica.
    status: int | None = None
    #: The last lines of the replica's log.
    tail: str = ""
    #: The error in one sentence, unless the message begins with it.
    reason: str | None = None
    #: Advice for the user, or None if no advice is known.
    advice: str | None = None
