"""The four types of work that clients create, wait for and cancel: a job, a tuning job, a training pipeline,
and a pipeline job.

All have a uid, a name, labels, times, a state, an error and a timeline. They are stored, listed, cancelled
and reported in the same way.
"""

from trainshed.core.lifecycle.records import Job
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob

Work = Job | TuningJob | Pipeline | PipelineJob
