"""Tuning jobs as `aiplatform` v1 messages, with their trials (facts/resources#tuning-jobs)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.study_views import set_trial
from trainshed.api.aiplatform_v1.views import (
    job_state_numbers,
    set_common_outputs,
    sibling_name,
)
from trainshed.core.names import Collection, StudyName
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.wire import json as wire_json

TUNING_JOB: Final = "google.cloud.aiplatform.v1.HyperparameterTuningJob"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A tuning job's trials, ascending by number, and their measurements by number."""

    trials: Sequence[Trial]
    measurements: Mapping[int, Sequence[Measurement]]


NOTHING_TRIED: Final = Evidence((), {})


def tuning_job(record: TuningJob, found: Evidence) -> Message:
    """The HyperparameterTuningJob message of a stored job."""
    view = wire_json.from_public(TUNING_JOB, json.loads(record.public_json))
    set_outputs(view, record, found)
    return view


def set_outputs(view: Any, record: TuningJob, found: Evidence) -> None:
    """Put the output fields, and the labels as they are now, into a HyperparameterTuningJob with its input
    fields set."""
    view.state = job_state_numbers()[record.state]
    set_common_outputs(view, record)
    study = StudyName(record.name.project_id, record.name.location, str(record.study))
    for trial in found.trials:
        job = sibling_name(record.name, trial.job, Collection.CUSTOM_JOBS)
        set_trial(view.trials.add(), study, trial, found.measurements.get(trial.number, ()), job)
