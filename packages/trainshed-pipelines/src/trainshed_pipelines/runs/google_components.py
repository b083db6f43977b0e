"""Recognizes Google Cloud Pipeline Components by their programs, and reads the arguments of these programs.
Pure.

The public service runs such a component as a container that calls an API. This service carries out the
components that concern training itself (`runs.native`), and refuses all others.
"""

import contextlib
import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from msgspec.structs import replace

from trainshed.api.calls.errors import not_served
from trainshed.core.datasets.records import OTHERWISE
from trainshed.core.errors import Violation
from trainshed.wire.routes import KnownMethod
from trainshed_pipelines.template.placeholders import Context
from trainshed_pipelines.template.structures import Component, Container, Json, ParameterType, Template


class Operation(enum.Enum):
    """What a component of Google Cloud Pipeline Components does."""

    CUSTOM_JOB = enum.auto()
    TUNING_JOB = enum.auto()
    UPLOAD_MODEL = enum.auto()
    GET_MODEL = enum.auto()
    CREATE_DATASET = enum.auto()
    UNSERVED = enum.auto()

    @property
    def is_immediate(self) -> bool:
        """Return whether the operation ends at once, without a job."""
        return self in (Operation.UPLOAD_MODEL, Operation.GET_MODEL, Operation.CREATE_DATASET)


_SERVED: Final = {
    r"(custom_job|gcp_launcher)\.launcher CustomJob": Operation.CUSTOM_JOB,
    r"(hyperparameter_tuning_job|gcp_launcher)\.launcher HyperparameterTuningJob": Operation.TUNING_JOB,
    r"(model\.upload_model|gcp_launcher)\.launcher UploadModel": Operation.UPLOAD_MODEL,
    r"model\.get_model\.launcher ": Operation.GET_MODEL,
    r"aiplatform\.remote_runner (Tabular|TimeSeries|Image|Text)Dataset create": Operation.CREATE_DATASET,
}
"""The served programs in the form of `_program`, without the first words of the module, which depend on the
release."""
_RELEASE: Final = r"(container|remote)\.(v1\.|preview\.|experimental\.)?"
_PACKAGE: Final = "google_cloud_pipeline_components."
_IMAGE: Final = re.compile(
    r"gcr\.io/ml-pipeline/google[-_]cloud[-_]pipeline[-_]components([:@].+)?"
    r"|\S*vertex-ai(-restricted)?/automl\S*"
)
"""The image of the components, and the images of AutoML's components."""


def _public_advice(word: str) -> str:
    """Return the advice about methods that are not served, for a word in `api/calls/unserved.toml`."""
    return str(not_served(KnownMethod("", word), ())).removeprefix(" is not served here. ")


_ADVICE: Final = {
    "email": "Omit the component, and set the label trainshed-notify=TARGET on the pipeline job: the service "
    "then sends a notification when the pipeline job ends.",
    "google-cloud-pipeline": "Use a Python image such as python:3.11, and add "
    "google-cloud-pipeline-components to packages_to_install.",
    "videodataset": f"Video datasets are not supported. {OTHERWISE}",
    "bigquery": _public_advice("bigquery"),
    "batch": _public_advice("batchPredictionJobs"),
    "endpoint": _public_advice("endpoints"),
    "deploy": _public_advice("endpoints"),
    "automl": "AutoML is not supported. Train with a program of your own, for example in a "
    "CustomTrainingJobOp.",
    "": _public_advice("aiplatform"),
}
"""The advice for components that are not served, by a word in the program or in the component's name. The
first match applies."""


def operation_of(component: Component) -> Operation | None:
    """Return the operation of a component, or None if it is not one of Google Cloud Pipeline Components."""
    program = _program(component)
    if not program:
        return None
    served = (operation for form, operation in _SERVED.items() if re.fullmatch(_RELEASE + form, program))
    return next(served, Operation.UNSERVED)


def component_faults(template: Template) -> Iterator[Violation]:
    """Yield a violation for each component that the service cannot carry out."""
    for name, component in template.components.items():
        if operation_of(component) is Operation.UNSERVED:
            words = f"{_program(component)} {name}".lower()
            advice = next(text for word, text in _ADVICE.items() if word in words)
            text = f"The component {name.removeprefix('comp-')!r} is not served here. {advice}"
            yield Violation(f"pipeline_spec.components.{name}", text)


def method_class(component: Component) -> str:
    """Return the class whose method the component calls, such as `TabularDataset`; "" = none."""
    return _value_after("--cls_name", component)


def _program(component: Component) -> str:
    """Return the program of a component: its module below the package, and its type of resource or its
    method. Return the image for other programs in the images of the components, and "" for all others."""
    container = component.implementation
    if not isinstance(container, Container):
        return ""
    module = _value_after("-m", component)
    if not module.startswith(_PACKAGE):
        return container.image if _IMAGE.fullmatch(container.image) else ""
    method = f"{method_class(component)} {_value_after('--method_name', component)}".strip()
    return f"{module.removeprefix(_PACKAGE)} {_value_after('--type', component) or method}"


def _value_after(flag: str, component: Component) -> str:
    container = component.implementation
    assert isinstance(container, Container), "only containers have arguments"
    words = (*container.command, *container.args)
    return words[words.index(flag) + 1] if flag in words[:-1] else ""


def for_payload(context: Context, component: Component) -> Context:
    """Return the context for the arguments of a component whose payload is JSON with placeholders.

    Missing values are null in JSON. The placeholders in worker pools are resolved, unlike those in other
    values, because worker pools contain the command lines of programs with the same inputs and outputs. The
    component has escaped these placeholders for the JSON.
    """
    inputs, pools = context.parameters or {}, "worker_pool_specs"
    texts = {key for key, i in component.input_parameters.items() if i.type is ParameterType.STRING}
    missing = component.input_parameters.keys() - inputs.keys() - texts
    parameters = {**inputs, **dict.fromkeys(missing, "null")}
    if isinstance(text := inputs.get(pools), str):
        parameters[pools] = context.resolve_text(text)
    elif text is not None:
        parameters[pools] = replace(context, is_inside_json=True).resolve_value(text)
    return replace(context, parameters=parameters)


def read_flags(args: Iterable[str]) -> dict[str, str]:
    """Return the value of each flag in resolved arguments, by its name without dashes and without the prefix
    `method.`."""
    words = [word.strip() for word in args]
    names = (word.removeprefix("--").removeprefix("method.") for word in words[::2])
    return dict(zip(names, words[1::2], strict=False))


def read_object(flags: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the JSON object in a flag without its empty fields, because components send all fields, set or
    not. Return {} for a missing flag. Raises ValueError."""
    try:
        # Like the components, accept line breaks in texts.
        value = _without_empty(json.loads(flags.get(name, "") or "{}", strict=False))
    except (ValueError, RecursionError) as fault:
        raise ValueError(
            f"The argument --{name} of the component is not valid JSON: {fault}. Check the inputs of the "
            'task: texts may not contain " or \\.'
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"The argument --{name} of the component is not a JSON object.")
    return cast("dict[str, Any]", value)


def read_uris(text: str) -> list[str]:
    """Return the URIs in an input that is one URI, or a list in the syntax of JSON or Python."""
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return [str(uri) for uri in json.loads(text.replace("'", '"'))]
    return [text] if text else []


def _without_empty(value: Json) -> Json:
    if isinstance(value, dict):
        fields = {k: _without_empty(v) for k, v in cast("dict[str, Json]", value).items()}
        return {key: field for key, field in fields.items() if field}
    if isinstance(value, list):
        items = [_without_empty(item) for item in cast("list[Json]", value)]
        return [item for item in items if not isinstance(item, dict | list) or item]
    return value
