"""Training pipelines as `aiplatform` v1 messages (facts/resources#pipelines)."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, assert_never

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.views import set_common_outputs, sibling_name
from trainshed.core.lifecycle.states import PipelineState
from trainshed.core.names import Collection
from trainshed.core.pipelines.records import Pipeline, Task
from trainshed.wire import json as wire_json
from trainshed.wire import pool

PIPELINE: Final = "google.cloud.aiplatform.v1.TrainingPipeline"

STATES: Final[Mapping[str, PipelineState | None]] = {
    **{f"PIPELINE_STATE_{state}": state for state in PipelineState},
    "PIPELINE_STATE_UNSPECIFIED": None,
    "PIPELINE_STATE_PAUSED": None,
}
"""Public state names; None for those that no pipeline here is ever in."""


def training_pipeline(record: Pipeline) -> Message:
    """The TrainingPipeline message of a stored pipeline."""
    view = wire_json.from_public(PIPELINE, json.loads(record.public_json))
    set_outputs(view, record)
    return view


def set_outputs(view: Any, record: Pipeline) -> None:
    """Put the output fields, and the labels as they are now, into a TrainingPipeline with its input fields
    set."""
    view.state = _state_numbers()[record.state]
    set_common_outputs(view, record)
    for key, name in _metadata(record):
        view.training_task_metadata.struct_value.fields[key].string_value = name
    if record.model:
        model, _, version = record.model.rpartition("@")
        view.model_to_upload.name = model
        view.model_to_upload.version_id = version


def definition(record: Pipeline) -> str:
    """The trainingTaskDefinition that the pipeline was created with."""
    return str(json.loads(record.public_json).get("trainingTaskDefinition", ""))


def _metadata(record: Pipeline) -> Iterator[tuple[str, str]]:
    """Which jobs did the pipeline's work, as far as that is known; the SDK follows the first of them."""
    match record.spec.task:
        case Task.CUSTOM:
            names = (("backingCustomJob", record.job, Collection.CUSTOM_JOBS),)
        case Task.TUNING:
            names = (
                ("backingHyperparameterTuningJob", record.job, Collection.TUNING_JOBS),
                ("bestTrialBackingCustomJob", record.best_job, Collection.CUSTOM_JOBS),
            )
        case _:
            assert_never(record.spec.task)
    for key, uid, collection in names:
        if name := sibling_name(record.name, uid, collection):
            yield key, name


@cache
def _state_numbers() -> dict[PipelineState, int]:
    field = pool.message_descriptor(PIPELINE).fields_by_name["state"]
    assert field.enum_type is not None
    numbers = field.enum_type.values_by_name
    return {state: numbers[name].number for name, state in STATES.items() if state is not None}
