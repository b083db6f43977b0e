"""Requests that create jobs: a program as one, a submitted job as one, trials of a custom job as one, and
where each is sent. Pure."""

import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

from trainshed.core.names import Api
from trainshed.core.packages import COPY_LABEL
from trainshed.core.units import Nanos

INPUTS: Final = (
    *("displayName", "jobSpec", "labels", "encryptionSpec", "studySpec", "maxTrialCount"),
    *("parallelTrialCount", "maxFailedTrialCount", "trialJobSpec", "inputDataConfig"),
    *("trainingTaskDefinition", "trainingTaskInputs"),
    *("modelToUpload", "modelId", "parentModel", "jobId", "trainingInput"),
)
"""The fields of jobs of either API that a create takes; the service writes all others."""
_SEARCHES: Final = ("studySpec", "trialJobSpec", "study_spec", "trial_job_spec")
_PIPELINES: Final = (
    *("trainingTaskDefinition", "trainingTaskInputs"),
    *("training_task_definition", "training_task_inputs"),
)
_OF_ML: Final = ("trainingInput", "predictionInput", "training_input", "prediction_input")
_OF_MADE_MODEL: Final = frozenset({"name", "versionId"})
"""Fields that a pipeline adds to its model to upload once it has made the model."""
_PACKAGES: Final = re.compile(r"packageUris|package_uris")
_COPY: Final = re.compile(r"_copy\d+$")


def copy_of(api: Api, job: Mapping[str, Any], now: Nanos, uid: str) -> dict[str, Any]:
    """Return the request that creates such a job again, with the packages that it was made with. `now`:
    nanoseconds, which make an id that no other job has; `uid`: the job's own."""
    fresh = {key: copy.deepcopy(job[key]) for key in INPUTS if job.get(key)}
    if _PACKAGES.search(json.dumps(fresh)):
        fresh["labels"] = {**fresh.get("labels", {}), COPY_LABEL: uid}
    if api is Api.ML:
        # A trial's id has a dot, which those of jobs have not; together they may have 128 characters.
        stem = _COPY.sub("", str(job.get("jobId", "job"))).replace(".", "_")[:105]
        return {**fresh, "jobId": f"{stem}_copy{now // 10**6}"}
    if model := fresh.get("modelToUpload"):
        fresh["modelToUpload"] = {k: v for k, v in model.items() if k not in _OF_MADE_MODEL}
    return fresh


def api_of(job: Mapping[str, Any]) -> Api:
    """Return the API whose create takes this JSON."""
    return Api.ML if any(key in job for key in _OF_ML) else Api.VERTEX


def is_pipeline(job: Mapping[str, Any]) -> bool:
    """Whether a Vertex job's JSON is that of a training pipeline."""
    return any(key in job for key in _PIPELINES)


def collection_of(api: Api, job: Mapping[str, Any], project: str, region: str) -> str:
    """Return the path to which a create of this JSON is sent."""
    place = f"/v1/projects/{quote(project, safe='')}"
    if api is Api.ML:
        return f"{place}/jobs"
    kind = "customJobs"
    if is_pipeline(job):
        kind = "trainingPipelines"
    elif any(key in job for key in _SEARCHES):
        kind = "hyperparameterTuningJobs"
    return f"{place}/locations/{quote(region, safe='')}/{kind}"


class Run(Struct, frozen=True):
    """A program to be run by a custom job."""

    #: The job's display name.
    name: str
    #: URI of the image.
    image: str
    #: `machineSpec` of each replica.
    machine: Mapping[str, Any]
    #: () = the image's own.
    command: Sequence[str] = ()
    #: gs:// URIs of packages to install; None = the image runs unchanged.
    packages: Sequence[str] | None = None
    #: The module in them that `python -m` runs.
    module: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    replicas: int = 1
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: gs:// URI of the output directory.
    output: str | None = None
    #: Maximum running time, such as "3600s"; None = the service's default.
    timeout: str | None = None
    service_account: str | None = None
    spot: bool = False
    #: Whether shells can be opened in its replicas.
    web_access: bool = False


def custom_job(run: Run) -> dict[str, Any]:
    """Return the body of `customJobs.create`."""
    env = [{"name": name, "value": value} for name, value in run.env.items()]
    common = _filled(args=list(run.args), env=env)
    pool: dict[str, Any] = {"machineSpec": run.machine, "replicaCount": "1"}
    if run.packages is None:
        command = _filled(command=list(run.command))
        pool["containerSpec"] = {"imageUri": run.image, **command, **common}
    else:
        pool["pythonPackageSpec"] = {
            "executorImageUri": run.image,
            "packageUris": list(run.packages),
            "pythonModule": run.module,
            **common,
        }
    others = [{**pool, "replicaCount": str(run.replicas - 1)}] if run.replicas > 1 else []
    spec = _filled(
        workerPoolSpecs=[pool, *others],
        baseOutputDirectory=_filled(outputUriPrefix=run.output),
        serviceAccount=run.service_account,
        enableWebAccess=run.web_access,
        scheduling=_filled(timeout=run.timeout, strategy="SPOT" if run.spot else ""),
    )
    return {"displayName": run.name, "jobSpec": spec, **_filled(labels=dict(run.labels))}


def _filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


_PARAMETER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WHOLE: Final = re.compile(r"-?\d+")
_EXAMPLES: Final = "lr=1e-4..1e-1:log, layers=1..8, batch=16,32,64 or optimizer=adam,sgd"


class Sweep(Struct, frozen=True):
    """The parameters of a search."""

    #: Each `NAME=LOW..HIGH`, `NAME=LOW..HIGH:log` or `NAME=A,B,C`.
    parameters: Sequence[str]
    #: The metric as the program reports or prints it.
    metric: str
    maximize: bool
    trials: int
    #: How many of them run at once.
    parallel: int


def tuning_job(job: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Return the body of `hyperparameterTuningJobs.create` for trials of the custom job. Raises ValueError,
    which names each parameter that cannot be read."""
    parameters: list[dict[str, Any]] = []
    wrong: list[str] = []
    for text in sweep.parameters:
        try:
            parameters.append(parameter(text))
        except ValueError as fault:
            wrong.append(f"{text}: {fault}")
    names = [spec["parameterId"] for spec in parameters]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    wrong += [f"{name}: it is tuned twice; remove one of the two" for name in twice]
    if wrong:
        raise ValueError(f"{'; '.join(wrong)}. Write {_EXAMPLES}.")
    about = {key: value for key, value in job.items() if key != "jobSpec"}
    goal = "MAXIMIZE" if sweep.maximize else "MINIMIZE"
    return {
        **about,
        "studySpec": {
            "metrics": [{"metricId": sweep.metric, "goal": goal}],
            "parameters": parameters,
        },
        "maxTrialCount": sweep.trials,
        "parallelTrialCount": min(sweep.parallel, sweep.trials),
        "trialJobSpec": job["jobSpec"],
    }


def parameter(text: str) -> dict[str, Any]:
    """Return the parameter that a text such as `lr=1e-4..1e-1:log` means. Raises ValueError."""
    name, _, values = text.partition("=")
    if not _PARAMETER.fullmatch(name) or not values:
        raise ValueError("it does not have the form NAME=VALUES")
    low, is_range, rest = values.partition("..")
    if is_range:
        high = rest.removesuffix(":log")
        return {"parameterId": name, **_span(low, high, is_log=high != rest)}
    choices = [choice.strip() for choice in values.split(",")]
    if len(choices) < 2 or not all(choices):
        raise ValueError("it is neither a range nor several values separated by commas")
    numbers = [_number(choice) for choice in choices]
    if None not in numbers:
        ascending = sorted({number for number in numbers if number is not None})
        return {"parameterId": name, "discreteValueSpec": {"values": ascending}}
    return {"parameterId": name, "categoricalValueSpec": {"values": choices}}


def _span(low: str, high: str, *, is_log: bool) -> dict[str, Any]:
    first, last = _number(low), _number(high)
    if first is None or last is None:
        raise ValueError(f"{low if first is None else high} is not a number")
    if first >= last:
        raise ValueError(f"{low} is not below {high}")
    if is_log and first <= 0:
        raise ValueError("a range on a log scale must start above 0")
    scale = {"scaleType": "UNIT_LOG_SCALE" if is_log else "UNIT_LINEAR_SCALE"}
    if _WHOLE.fullmatch(low) and _WHOLE.fullmatch(high):
        return {"integerValueSpec": {"minValue": low, "maxValue": high}, **scale}
    return {"doubleValueSpec": {"minValue": first, "maxValue": last}, **scale}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
