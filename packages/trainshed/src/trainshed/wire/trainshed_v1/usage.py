"""Records of what a job's replicas use."""

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
    #: What its machines amount to for the time that it has run, without what earlier attempts held.
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
