"""Records of curves: what the programs of a job logged as TensorFlow summaries, or printed."""

from trainshed.wire.trainshed_v1.record import Record


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
    #: What the steps of what was printed count: "epoch", "step" or "line"; "" = it was logged.
    unit: str = ""
    #: Number of points that were read; `points` may be fewer.
    count: int = 0
    #: Ascending by step; the first and the last are always included.
    points: tuple[CurvePoint, ...] = ()


class JobCurves(Record, frozen=True):
    """The curves of a job, by run and tag; for a tuning job or pipeline, of all jobs that it made."""

    #: The job that was asked for.
    job: str = ""
    #: Where its event files are looked for; "" = nowhere.
    log_directory: str = ""
    curves: tuple[JobCurve, ...] = ()
    #: Whether there are more than the answer has; ask for a `run` or a `tag`.
    more: bool = False
