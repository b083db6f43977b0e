"""The inputs of a training pipeline's task, which clients send as any JSON: mixed spellings, whole numbers as
floats, numbers for texts, nulls (spec/clients#task-inputs). Read as the public message that they stand for,
and no field more."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf.message import Message

from trainshed.core.errors import Violation
from trainshed.core.pipelines.records import Task
from trainshed.core.requests import snake_case
from trainshed.core.specs.pipeline import DEFINITIONS
from trainshed.core.tuning.trial_jobs import printed
from trainshed.wire import json as wire_json
from trainshed.wire import plans, pool
from trainshed.wire.decode import Walk
from trainshed.wire.status import Undecided

FIELD: Final = "training_task_inputs"
_MESSAGES: Final[Mapping[Task, str]] = {
    Task.CUSTOM: "google.cloud.aiplatform.v1.CustomJobSpec",
    Task.TUNING: "google.cloud.aiplatform.v1.HyperparameterTuningJob",
}
_TEXT: Final = "TYPE_STRING"
_TUNING_FIELDS: Final = frozenset(
    {
        "study_spec",
        "trial_job_spec",
        "max_trial_count",
        "parallel_trial_count",
        "max_failed_trial_count",
    }
)
"""What the tuning task takes of a tuning job (facts/resources#tuning-jobs)."""


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """`given`: the JSON as it was sent. `message`: the same as far as it can be read, None where the task is
    not known. `unreadable`: what cannot, of that `undecided` the enum fields."""

    given: Any
    message: Message | None = None
    unreadable: tuple[Violation, ...] = ()
    undecided: tuple[Undecided, ...] = ()

    @property
    def public(self) -> dict[str, Any]:
        """The message as canonical public JSON."""
        return {} if self.message is None else wire_json.to_public(self.message)


def read_inputs(definition: str, text: str | None, value: Message) -> TaskInputs:
    """Read a pipeline's inputs. `text`: their JSON as it was sent, None where only the Value message is
    known."""
    given: Any = wire_json.to_public(value) if text is None else json.loads(text)
    task = DEFINITIONS.get(definition.rpartition("/")[2])
    if task is None or given is None:
        return TaskInputs(given)
    message = pool.message_class(_MESSAGES[task])()
    plan = plans.plan_for(message)
    known, unknown = _split(task, given)
    walk = Walk(keep_output_only=False)
    walk.message(plan, _with_texts(plan, known), message, FIELD)
    refused = tuple(Violation(v.field, v.description) for v in walk.violations)
    return TaskInputs(given, message, (*unknown, *refused), tuple(walk.undecided))


def _split(task: Task, given: Any) -> tuple[Any, tuple[Violation, ...]]:
    """The inputs without the fields of the message that are none of the task's, and those as violations."""
    if task is Task.CUSTOM or not isinstance(given, dict):
        return given, ()
    members = cast("dict[str, Any]", given)
    unknown = [name for name in members if snake_case(name) not in _TUNING_FIELDS]
    return {name: members[name] for name in members if name not in unknown}, tuple(
        Violation(
            f"{FIELD}.{name}",
            f"Unknown name {name!r} at {FIELD!r}: Cannot find field. The tuning task has: "
            f"{', '.join(sorted(_TUNING_FIELDS))}.",
        )
        for name in unknown
    )


def _with_texts(plan: plans.Plan, raw: Any) -> Any:
    """The JSON of a message with its numbers as texts where the message has texts: the SDK lets arguments be
    numbers, and sends 10 as 10.0, which was meant to be `10`."""
    if plan.special is not None or not isinstance(raw, dict):
        return raw
    members = cast("dict[str, Any]", raw)
    return {
        name: value if (field := plan.by_key.get(name)) is None else _values(field, value)
        for name, value in members.items()
    }


def _values(field: plans.Field, raw: Any) -> Any:
    if field.shape is plans.Shape.LIST and isinstance(raw, list):
        return [_value(field.value, each) for each in cast("list[Any]", raw)]
    if field.shape is plans.Shape.MAP and isinstance(raw, dict):
        entries = cast("dict[str, Any]", raw)
        return {key: _value(field.value, each) for key, each in entries.items()}
    return _value(field.value, raw)


def _value(kind: plans.Value, raw: Any) -> Any:
    if kind.is_message:
        return _with_texts(kind.plan, raw)
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    return printed(raw) if is_number and kind.label == _TEXT else raw
