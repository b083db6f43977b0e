"""What a program may ask for when it creates jobs: no more than it has itself.

A job runs as the service account that its request names, and with the secrets that it names; whoever may submit jobs has
both. A program gets neither by a job that it creates.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

from google.protobuf.message import Message

from trainshed.access.principals import Principal
from trainshed.core import secrets
from trainshed.core.errors import PermissionDenied
from trainshed.wire import json as wire_json

_CREATING: Final = frozenset(
    {
        "google.cloud.aiplatform.v1.JobService.CreateCustomJob",
        "google.cloud.aiplatform.v1.JobService.CreateHyperparameterTuningJob",
        "google.cloud.aiplatform.v1.PipelineService.CreateTrainingPipeline",
        "google.cloud.ml.v1.JobService.CreateJob",
    }
)
_ACCOUNT: Final = frozenset({"serviceAccount", "service_account"})
"""Also as clients spell it in what is JSON of their own."""


def refuse_more(program: Principal, method: str, request: Message) -> None:
    """Raises PermissionDenied, naming all that the job would have and its creator has not."""
    if method not in _CREATING:
        return
    beyond = list(dict.fromkeys(_beyond(wire_json.to_public(request), program.email)))
    if beyond:
        raise PermissionDenied(
            f"{program.email} may create jobs that have no more than it has itself, and this one asks for "
            f"{', '.join(beyond)}: leave that out, or have a person submit the job"
        )


def _beyond(value: object, email: str) -> Iterator[str]:
    match value:
        case dict():
            for key, part in cast("dict[str, Any]", value).items():
                if key in _ACCOUNT and isinstance(part, str):
                    if part not in ("", email):
                        yield f"the service account {part}"
                elif key != "labels":
                    yield from _beyond(part, email)
        case list():
            for part in cast("list[Any]", value):
                yield from _beyond(part, email)
        case str():
            yield from (f"the secret {ref.name!r}" for ref in secrets.references(value))
        case _:
            pass
