"""Records as `ml` v1 messages (facts §1.1)."""

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.timestamps import set_micros
from trainshed.core.catalog.ml_units import consumed_units, units_per_hour
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.specs.model import WorkerPool
from trainshed.wire import json as wire_json
from trainshed.wire import pool

STATES: Final[Mapping[str, JobState | None]] = {
    **{state.value: state for state in JobState},
    "STATE_UNSPECIFIED": None,
}
"""Public state names; None for the one that no job here is ever in."""

JOB: Final = "google.cloud.ml.v1.Job"


def job(record: Job, etag: str, position: int = 0) -> Message:
    """The Job message of a stored job; `etag` as the store gives it. `position`: its place in the queue, 0 = none."""
    view = wire_json.from_public(JOB, json.loads(record.public_json))
    set_outputs(view, record, etag, position)
    return view


def set_outputs(view: Any, record: Job, etag: str, position: int = 0) -> None:
    """Put the output fields, and the labels as they are now, into a Job with its input fields set."""
    view.job_position = position
    view.state = _state_numbers()[record.state]
    view.etag = base64.b64decode(etag)
    set_micros(view.create_time, record.created)
    if record.started:
        set_micros(view.start_time, record.started)
    if record.ended:
        set_micros(view.end_time, record.ended)
    if record.ended and (consumed := _consumed(record)):
        view.training_output.consumed_ml_units = consumed
    if message := _error_message(record):
        view.error_message = message
    view.labels.clear()
    view.labels.update(dict(record.labels))


def _error_message(record: Job) -> str:
    """What went wrong, or, from the moment a cancellation is decided, its reason."""
    if record.error is not None:
        return record.error.message
    decided = record.outcome
    if record.state is JobState.CANCELLING and decided is not None and decided.error is not None:
        return decided.error.message
    return ""


def _consumed(record: Job) -> float:
    running = record.ended - record.started if record.started else 0
    rates = (rate for pool_ in record.spec.pools for rate in _rates(pool_))
    return consumed_units(rates, running)


def _rates(pool_: WorkerPool) -> tuple[float, ...]:
    """Units per hour of each node of a pool; nothing for machines that the public table has no price for."""
    devices = pool_.machine.accelerators
    rate = units_per_hour(
        pool_.machine.type, devices.type if devices else "", devices.count if devices else 0
    )
    return () if rate is None else (rate,) * pool_.replica_count


@cache
def _state_numbers() -> dict[JobState, int]:
    field = pool.message_descriptor(JOB).fields_by_name["state"]
    assert field.enum_type is not None
    return {state: field.enum_type.values_by_name[state.value].number for state in JobState}
