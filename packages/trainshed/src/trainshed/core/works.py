"""The three types of work that clients create, wait for and cancel: a job, a tuning job, a training pipeline.

All have a uid, a name, labels, times, a state, an error and a timeline. They are stored, listed, cancelled
and reported in the same way.
"""

from trainshed.core.lifecycle.records import Job
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob

Work = Job | TuningJob | Pipeline
