"""What the programs of a job logged as TensorFlow summaries: its curves."""

from trainshed.wire.trainshed_v1.record import Record


class CurvePoint(Record, frozen=True):
    """One value of a scalar."""

    step: int = 0
    at: str = ""
    #: `"NaN"`, `"Infinity"` or `"-Infinity"` where it is no finite number.
    value: float | str = 0.0


class JobCurve(Record, frozen=True):
    """What was logged under one tag into one directory."""

    #: The job that logged it: of a tuning job or pipeline one that it made.
    job: str = ""
    #: The trial that job is; 0 = none.
    trial: int = 0
    #: The directory below the job's log directory, "" = that itself.
    run: str = ""
    tag: str = ""
    #: Points that were read; `points` may be fewer.
    count: int = 0
    #: Ascending by step; the first and the last are always among them.
    points: tuple[CurvePoint, ...] = ()


class JobCurves(Record, frozen=True):
    """The curves of a job, by run and tag; of a tuning job or pipeline of all jobs that it made."""

    #: The job that was asked for.
    job: str = ""
    #: Where its event files are looked for, "" = nowhere.
    log_directory: str = ""
    curves: tuple[JobCurve, ...] = ()
    #: There are more than the answer has; ask for a `run` or a `tag`.
    more: bool = False
