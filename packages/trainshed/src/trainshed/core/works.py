"""All that clients create, wait for and cancel: a job, a tuning job, a training pipeline.

The three have a uid, a name, labels, times, a state, an error and a timeline in common, and are stored,
listed, cancelled and reported alike.
"""

from typing import assert_never

from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob

Work = Job | TuningJob | Pipeline


def parent_of(work: Work) -> JobUid | None:
    """Return the work that made this one; None if a user did."""
    match work:
        case Job() | TuningJob():
            return work.parent.uid if work.parent else None
        case Pipeline():
            return None
        case _:
            assert_never(work)
