"""`aiplatform` v1 ModelService: imported evaluations of model versions (facts/models#evaluations)."""

import asyncio
import json
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.messages import V1, message
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import cut, decode_number, page_size
from trainshed.api.calls.parents import read_name
from trainshed.api.calls.timestamps import set_micros
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines import ModelEvaluation
from trainshed.core.requests import Faults
from trainshed.wire import json as wire_json
from trainshed.wire.json import endless

_SERVICE: Final = f"{V1}.ModelService"
MAX_DISPLAY_NAME: Final = 128
MAX_BYTES: Final = 200_000
"""Most bytes of an evaluation as JSON."""
_PAGE: Final = 50
_LARGEST: Final = 100


async def import_(call: Call, request: Any) -> Message:
    """Import an evaluation of the version that the parent names, or else of the default one."""
    model, version = read_name(ModelName.parse, request.parent, "parent")
    sent = request.model_evaluation
    public = wire_json.to_public(sent)
    kept = wire_json.compact_text(
        {key: value for key, value in public.items() if key not in ("name", "createTime")}
    )
    _check(sent, kept)
    services = call.services
    evaluation = ModelEvaluation(
        name=EvaluationName(model, services.new_uid()),
        version=(await services.models.version(model, version)).version,
        public_json=kept,
        created=services.now(),
    )
    await services.evaluations.add(evaluation)
    return _view(evaluation)


async def get(call: Call, request: Any) -> Message:
    name = read_name(EvaluationName.parse, request.name)
    return _view(await call.services.evaluations.evaluation(name))


async def list_(call: Call, request: Any) -> Message:
    """List the evaluations of one version, newest first."""
    model, version = read_name(ModelName.parse, request.parent, "parent")
    if request.filter:
        text = "Evaluations cannot be filtered; leave the filter out and choose among the answer."
        raise InvalidRequest((Violation("filter", text),))
    services = call.services
    number = (await services.models.version(model, version)).version
    size = page_size(request.page_size, default=_PAGE, maximum=_LARGEST)
    question = f"{model}@{number}"
    below = decode_number(request.page_token, question)
    evaluations = await services.evaluations.evaluations(model, number, below, size + 1)
    page, token = cut(evaluations, size, lambda record: record.name.evaluation_id, question)
    # In a thread, because each of many may be large.
    views = await asyncio.to_thread(lambda: [_view(evaluation) for evaluation in page])
    return message("ListModelEvaluationsResponse", model_evaluations=views, next_page_token=token)


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.ImportModelEvaluation": import_,
    f"{_SERVICE}.GetModelEvaluation": get,
    f"{_SERVICE}.ListModelEvaluations": list_,
}


def _view(record: ModelEvaluation) -> Message:
    view: Any = wire_json.from_public(f"{V1}.ModelEvaluation", json.loads(record.public_json))
    view.name = str(record.name)
    set_micros(view.create_time, record.created)
    return view


def _check(sent: Any, kept: str) -> None:
    """Raise InvalidRequest with all faults of an evaluation. `kept`: it as JSON."""
    faults = Faults()
    for field in ("metrics", "metadata"):
        for inner in endless(getattr(sent, field)):
            dot = "." if inner and not inner.startswith("[") else ""
            faults.add(f"model_evaluation.{field}{dot}{inner}", "It is not a finite number.")
    if len(kept.encode()) > MAX_BYTES:
        text = f"It has more than {MAX_BYTES} bytes as JSON; leave out what nobody reads."
        faults.add("model_evaluation", text)
    if len(sent.display_name) > MAX_DISPLAY_NAME:
        text = f"At most {MAX_DISPLAY_NAME} characters are allowed."
        faults.add("model_evaluation.display_name", text)
    faults.refuse()
