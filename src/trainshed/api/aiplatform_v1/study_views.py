"""Studies as `aiplatform` v1 messages, and what clients send of trials in neutral shapes. Trials are in `trial_views`."""

import json
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources import studies
from trainshed.core.study.reading import GivenParameter
from trainshed.core.study.studies import Study, StudyState
from trainshed.wire import json as wire_json
from trainshed.wire import pool

STUDY: Final = "google.cloud.aiplatform.v1.Study"


def study(record: Study) -> Message:
    """The Study message of a stored study."""
    view: Any = wire_json.from_public(STUDY, json.loads(record.public_json))
    view.name = str(record.name)
    view.state = _state_numbers()[record.state]
    view.inactive_reason = record.inactive_reason if record.state is StudyState.INACTIVE else ""
    set_micros(view.create_time, record.created)
    return view


def given_parameters(trial: Any, path: str) -> Iterator[GivenParameter]:
    """The parameters of a Trial message that stands at `path` in the request."""
    for index, entry in enumerate(trial.parameters):
        value: float | str | None = None
        match entry.value.WhichOneof("kind"):
            case "number_value":
                value = entry.value.number_value
            case "string_value":
                value = entry.value.string_value
            case _:
                pass
        yield GivenParameter(
            f"{path}.parameters[{index}]", "parameter_id", entry.parameter_id, value
        )


given_measurement = partial(
    studies.given_measurement, elapsed="elapsed_duration", metric="metric_id"
)
"""`studies.given_measurement` of this API's messages."""


@cache
def _state_numbers() -> dict[StudyState, int]:
    field = pool.message_descriptor(STUDY).fields_by_name["state"]
    assert field.enum_type is not None
    return {state: field.enum_type.values_by_name[state.value].number for state in StudyState}
