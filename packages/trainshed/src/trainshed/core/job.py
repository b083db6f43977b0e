"""The validated specification of a job, one model for both public APIs; how a replica's process ended, and
the public error of a job that may follow.

Specifications are built only by `core.specs.vertex` and `core.specs.ml`, so that no user of a `JobSpec` need
check it again.
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
    #: The type's nominal memory.
    memory_bytes: int
    #: How much of it a replica may use (spec/machines#memory).
    memory_limit_bytes: int
    accelerators: Accelerators | None = None


class Disk(Struct, frozen=True):
    """Boot disk of each replica of a pool. Default: `pd-ssd`, 100 GB (spec/machines#disk)."""

    type: str = "pd-ssd"
    size_gb: int = 100


class Program(Struct, frozen=True):
    """The program of a replica: a Python package (`module` set) or a container (`module` is None).

    A package job installs `package_uris` in order and runs `python -m module args`.
    """

    runtime: RuntimeChoice
    #: The image of a container, or the executor image of a package job.
    image_uri: str = ""
    package_uris: tuple[str, ...] = ()
    #: SHA-256 of each of them when the job was made, or its beginning; "" = it is not pinned, () = none is.
    package_digests: tuple[str, ...] = ()
    module: str | None = None
    #: Overrides the entry point of a container's image (facts/program#arguments).
    command: tuple[str, ...] = ()
    #: Arguments of the module; of a container they override those of its image (facts/program#arguments).
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def packages(self) -> tuple[JobPackage, ...]:
        """The packages in the order in which they are installed."""
        digests = self.package_digests or ("",) * len(self.package_uris)
        return tuple(map(JobPackage, self.package_uris, digests))

    @property
    def environment(self) -> tuple[RuntimeChoice, tuple[JobPackage, ...]]:
        """The parts to prepare for it: a runtime, and the packages on top."""
        names_gsutil = any("gsutil" in word for word in (*self.command, *self.args))
        return replace(self.runtime, gsutil=names_gsutil), self.packages


class WorkerPool(Struct, frozen=True):
    """One worker pool."""

    #: 0..3: primary, workers, parameter servers or reducers, evaluators.
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
"""Seven days in nanoseconds (spec/lifecycle#time-limits)."""


class Scheduling(Struct, frozen=True):
    """Time limits and retry options."""

    #: Nanoseconds that it may run.
    timeout: int = DEFAULT_TIMEOUT
    #: Nanoseconds that it may wait; None = no limit.
    max_wait: int | None = None
    priority: int = 0
    restart_job_on_worker_restart: bool = False
    disable_retries: bool = False
    strategy: Strategy = Strategy.STANDARD


_SLASHES_OF_A_BUCKET: Final = 2
"""The number of slashes in `gs://BUCKET`."""
LOG_DIRECTORY: Final = "AIP_TENSORBOARD_LOG_DIR"
"""The variable with the directory to which a Vertex program writes event files."""
_MOUNT: Final = "/gcs/"


class JobSpec(Struct, frozen=True):
    """Everything needed to run a job."""

    api: Api
    region: str
    #: Only the pools that have replicas, ascending by position; pool 0 has exactly one.
    pools: tuple[WorkerPool, ...]
    scheduling: Scheduling
    #: The spec as given, as JSON text in the public spelling: the `job` entry of CLUSTER_SPEC.
    job_json: str
    #: The account as which its programs run; None = the project's default one.
    service_account: str | None = None
    #: `gs://` URIs below which it writes: of a job of Vertex, and of an `ml` job.
    base_output_directory: str | None = None
    job_dir: str | None = None
    #: Of an `ml` job; None = it runs in containers, or in the newest version.
    runtime_version: str | None = None
    use_chief_in_tf_config: bool = False
    #: Notices for the timeline and the first lines of the log (spec/submit#defaults,
    #: spec/submit#warnings, spec/runtimes#substitutes).
    warnings: tuple[str, ...] = ()
    #: Number of the trial that this job is, as text. An `ml` trial's job is named `JOB.TRIAL`.
    trial: str | None = None
    #: The name under which an `ml` trial's program reports its objective.
    metric_tag: str | None = None
    #: The part of a dataset that is written to files before the programs start.
    data: SplitPlan | None = None
    #: The id of the persistent resource on whose machines it runs; None = it has its own machines.
    persistent_resource: str | None = None

    @property
    def primary(self) -> ReplicaId:
        """The replica that speaks for the job."""
        return ReplicaId(self.pools[0].position, 0)

    def replicas(self) -> tuple[ReplicaId, ...]:
        return tuple(replica for pool in self.pools for replica in pool.replicas())

    @property
    def output(self) -> str | None:
        """The gs:// directory below which the job is to write, without a slash at its end; None if it has
        none, or only a whole bucket."""
        uri = (self.base_output_directory or self.job_dir or "").rstrip("/")
        return uri if uri.count("/") > _SLASHES_OF_A_BUCKET else None

    @property
    def log_directory(self) -> str | None:
        """The `gs://` URI of the directory of the job's event files, without a slash at its end;
        None for a job without one.

        For `ml` v1 it is the job's own directory. A Vertex program writes to the value of the
        variable if the user sets it. Such a value counts only if it is in a bucket.
        """
        if self.api is Api.ML:
            return self.job_dir.rstrip("/") if self.job_dir else None
        value = dict(self.pools[0].program.env).get(LOG_DIRECTORY)
        if value is not None:
            if value.startswith(_MOUNT):
                value = f"gs://{value.removeprefix(_MOUNT)}"
            # The service cannot know a value that the program computes at its start.
            return value.rstrip("/") if value.startswith("gs://") and "$(" not in value else None
        base = self.base_output_directory
        return f"{base.removesuffix('/')}/logs" if base else None

    @property
    def tensorboard(self) -> str | None:
        """The name of the Tensorboard to which the job's curves are written as well."""
        if self.api is Api.ML or '"tensorboard"' not in self.job_json:
            return None
        return json.loads(self.job_json).get("tensorboard") or None

    @property
    def runtime_notices(self) -> tuple[str, ...]:
        """The notices about the pools' runtimes: what was asked for and what is given instead, each once."""
        notices = (notice for pool in self.pools for notice in pool.program.runtime.notices)
        return tuple(dict.fromkeys(notices))

    @property
    def substitutions(self) -> tuple[str, ...]:
        """Those of the `runtime_notices` that say that another version or Python is given."""
        choices = (pool.program.runtime for pool in self.pools)
        return tuple(dict.fromkeys(choice.notices[0] for choice in choices if not choice.is_exact))

    def pool(self, position: int) -> WorkerPool:
        """Return the pool at `position`. Raise KeyError if the job has none there."""
        for pool in self.pools:
            if pool.position == position:
                return pool
        raise KeyError(f"the job has no worker pool {position}")


SpecT_co = TypeVar("SpecT_co", covariant=True)


class JobDraft(Struct, Generic[SpecT_co], frozen=True):
    """The contents of a valid request to create a job or tuning job; `labels` keep their order."""

    spec: SpecT_co
    display_name: str
    labels: tuple[tuple[str, str], ...]


class ExitRecord(Struct, frozen=True, kw_only=True):
    """How a replica's main process ended, as its shim saw it (spec/invariants#shims, "attempt record").

    Exactly one of `exit_code` and `signal` is set.
    """

    exit_code: int | None
    signal: int | None
    #: The replica's memory limit was hit, and the main process died of it.
    oom: bool
    #: Nanoseconds since the epoch.
    started: Nanos
    #: Nanoseconds since the epoch.
    ended: Nanos
    #: Lines written to the log in all, so that readers know the log is whole.
    log_lines: int = 0
    #: Of a program that failed, the last lines of its log: at most 8 KiB.
    tail: str = ""
    #: How many other processes of the replica were killed at the memory limit.
    child_oom: int = 0
    #: It had been asked to stop before it ended.
    stopped: bool = False
    #: The stall watchdog ended it.
    stalled: bool = False
    #: It was ended because its files exceeded the replica's disk limit.
    out_of_disk: bool = False


class JobError(Struct, frozen=True):
    """The public error of a job: a google.rpc code and the public message (spec/failures#messages), with
    typed facts beside it."""

    #: A google.rpc code.
    code: int
    #: The public message.
    message: str
    #: A value of `core.failure.evidence.Cause`, or "trials" or "model"; None = of no work's end.
    cause: str | None = None
    #: The replica whose end it was; None = the whole attempt's.
    replica: str | None = None
    #: The published exit status.
    status: int | None = None
    #: The last lines of that replica's log.
    tail: str = ""
    #: The error in one sentence, if the message does not start with it.
    reason: str | None = None
    #: Advice for the user; None = no advice is known.
    advice: str | None = None
