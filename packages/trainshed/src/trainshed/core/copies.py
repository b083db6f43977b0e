"""Builds requests that create jobs: from a program, from an existing job, or as a tuning job whose trials run
a custom job. Also returns the path for each request. Pure."""

import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, field

from trainshed.core.dependencies import AFTER_LABEL
from trainshed.core.names import Api
from trainshed.core.packages import COPY_LABEL
from trainshed.core.units import Nanos

INPUTS: Final = (
    *("displayName", "jobSpec", "labels", "encryptionSpec", "studySpec", "maxTrialCount"),
    *("parallelTrialCount", "maxFailedTrialCount", "trialJobSpec", "inputDataConfig"),
    *("trainingTaskDefinition", "trainingTaskInputs"),
    *("modelToUpload", "modelId", "parentModel", "jobId", "trainingInput"),
)
"""The job fields that clients of either API may set. The service sets all other fields."""
_SEARCHES: Final = ("studySpec", "trialJobSpec", "study_spec", "trial_job_spec")
_PIPELINES: Final = (
    *("trainingTaskDefinition", "trainingTaskInputs"),
    *("training_task_definition", "training_task_inputs"),
)
_OF_ML: Final = ("trainingInput", "predictionInput", "training_input", "prediction_input")
_OF_MADE_MODEL: Final = frozenset({"name", "versionId"})
"""Fields that a pipeline adds to its `modelToUpload` after it has created the model."""
_PACKAGES: Final = re.compile(r"packageUris|package_uris")
_COPY: Final = re.compile(r"_copy\d+$")


def copy_of(api: Api, job: Mapping[str, Any], now: Nanos, uid: str) -> dict[str, Any]:
    """Return the request that creates a copy of a job, with the same package contents and without its
    dependencies. `now`: the time in nanoseconds, from which a unique id is formed. `uid`: the uid of the
    existing job."""
    fresh = {key: copy.deepcopy(job[key]) for key in INPUTS if job.get(key)}
    if fresh.get("labels", {}).pop(AFTER_LABEL, None) and not fresh["labels"]:
        del fresh["labels"]
    if _PACKAGES.search(json.dumps(fresh)):
        fresh["labels"] = {**fresh.get("labels", {}), COPY_LABEL: uid}
    if api is Api.ML:
        # Replace dots, because the id of a trial's job contains a dot, but job ids in requests cannot.
        # Shorten the id, because an id and its suffix together may have at most 128 characters.
        stem = _COPY.sub("", str(job.get("jobId", "job"))).replace(".", "_")[:105]
        return {**fresh, "jobId": f"{stem}_copy{now // 10**6}"}
    if model := fresh.get("modelToUpload"):
        fresh["modelToUpload"] = {k: v for k, v in model.items() if k not in _OF_MADE_MODEL}
    return fresh


def api_of(job: Mapping[str, Any]) -> Api:
    """Return the API whose create method accepts this JSON."""
    return Api.ML if any(key in job for key in _OF_ML) else Api.VERTEX


def is_pipeline(job: Mapping[str, Any]) -> bool:
    """Return whether the JSON of a Vertex job describes a training pipeline."""
    return any(key in job for key in _PIPELINES)


def collection_of(api: Api, job: Mapping[str, Any], project: str, region: str) -> str:
    """Return the path of the collection in which a request creates this job."""
    place = f"/v1/projects/{quote(project, safe='')}"
    if api is Api.ML:
        return f"{place}/jobs"
    kind = "customJobs"
    if is_pipeline(job):
        kind = "trainingPipelines"
    elif any(key in job for key in _SEARCHES):
        kind = "hyperparameterTuningJobs"
    return f"{place}/locations/{quote(region, safe='')}/{kind}"


RETRY_LABEL: Final = "trainshed-retry-of"
"""Label of a retry: the ID of the original pipeline job, or its uid if the ID is longer than a label."""
_MAX_LABEL: Final = 63
"""Maximum length of a label's value in characters."""
RUN_INPUTS: Final = (
    *("displayName", "pipelineSpec", "labels", "runtimeConfig", "serviceAccount", "network"),
    *("reservedIpRanges", "templateUri"),
)
"""The fields of a pipeline job that clients set."""


def retry_of(job: Mapping[str, Any], uid: str) -> dict[str, Any]:
    """Return the request that runs a pipeline job again, and uses the outputs of its tasks that succeeded."""
    job_id = str(job["name"]).rpartition("/")[2]
    label = job_id if len(job_id) <= _MAX_LABEL else uid
    inputs = {name: job[name] for name in RUN_INPUTS if job.get(name)}
    return {**inputs, "labels": {**job.get("labels", {}), RETRY_LABEL: label}}


class Run(Struct, frozen=True):
    """A program to run as a custom job."""

    #: The display name of the job.
    name: str
    #: URI of the container image.
    image: str
    #: `machineSpec` of each replica.
    machine: Mapping[str, Any]
    #: The command line. If it is empty, the image's own command runs.
    command: Sequence[str] = ()
    #: gs:// URIs of packages to install. With None, the image runs unchanged.
    packages: Sequence[str] | None = None
    #: The Python module in the packages that `python -m` runs.
    module: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    replicas: int = 1
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: gs:// URI of the output directory.
    output: str | None = None
    #: Maximum running time, such as "3600s". None selects the service's default.
    timeout: str | None = None
    service_account: str | None = None
    spot: bool = False
    #: Whether users can open shells in the job's replicas.
    web_access: bool = False


def custom_job(run: Run) -> dict[str, Any]:
    """Return the request body of `customJobs.create` for a program."""
    env = [{"name": name, "value": value} for name, value in run.env.items()]
    common = _non_empty(args=list(run.args), env=env)
    pool: dict[str, Any] = {"machineSpec": run.machine, "replicaCount": "1"}
    if run.packages is None:
        command = _non_empty(command=list(run.command))
        pool["containerSpec"] = {"imageUri": run.image, **command, **common}
    else:
        pool["pythonPackageSpec"] = {
            "executorImageUri": run.image,
            "packageUris": list(run.packages),
            "pythonModule": run.module,
            **common,
        }
    others = [{**pool, "replicaCount": str(run.replicas - 1)}] if run.replicas > 1 else []
    spec = _non_empty(
        workerPoolSpecs=[pool, *others],
        baseOutputDirectory=_non_empty(outputUriPrefix=run.output),
        serviceAccount=run.service_account,
        enableWebAccess=run.web_access,
        scheduling=_non_empty(timeout=run.timeout, strategy="SPOT" if run.spot else ""),
    )
    return {"displayName": run.name, "jobSpec": spec, **_non_empty(labels=dict(run.labels))}


def _non_empty(**fields: Any) -> dict[str, Any]:
    """Return the fields whose values are not empty."""
    return {name: value for name, value in fields.items() if value}


_PARAMETER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_WHOLE: Final = re.compile(r"-?\d+")
_EXAMPLES: Final = "lr=1e-4..1e-1:log, layers=1..8, batch=16,32,64 or optimizer=adam,sgd"


class Sweep(Struct, frozen=True):
    """The options of a hyperparameter search."""

    #: Parameters in the form `NAME=LOW..HIGH`, `NAME=LOW..HIGH:log` or `NAME=A,B,C`.
    parameters: Sequence[str]
    #: Name of the metric that the program reports or prints.
    metric: str
    maximize: bool
    trials: int
    #: Maximum number of trials that run at the same time.
    parallel: int


def tuning_job(job: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Return the request body of `hyperparameterTuningJobs.create` whose trials run the custom job. Raise
    ValueError, which lists each invalid parameter."""
    parameters: list[dict[str, Any]] = []
    wrong: list[str] = []
    for text in sweep.parameters:
        try:
            parameters.append(parameter(text))
        except ValueError as fault:
            wrong.append(f"{text}: {fault}")
    names = [spec["parameterId"] for spec in parameters]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    wrong += [f"{name}: the parameter appears twice; remove one of the two" for name in twice]
    if wrong:
        raise ValueError(f"{'; '.join(wrong)}. Write {_EXAMPLES}.")
    about = {key: value for key, value in job.items() if key != "jobSpec"}
    goal = "MAXIMIZE" if sweep.maximize else "MINIMIZE"
    return {
        **about,
        "studySpec": {"metrics": [{"metricId": sweep.metric, "goal": goal}], "parameters": parameters},
        "maxTrialCount": sweep.trials,
        "parallelTrialCount": min(sweep.parallel, sweep.trials),
        "trialJobSpec": job["jobSpec"],
    }


def parameter(text: str) -> dict[str, Any]:
    """Parse a parameter such as `lr=1e-4..1e-1:log`. Raise ValueError if the text is invalid."""
    name, _, values = text.partition("=")
    if not _PARAMETER.fullmatch(name) or not values:
        raise ValueError("the parameter does not have the form NAME=VALUES")
    low, is_range, rest = values.partition("..")
    if is_range:
        high = rest.removesuffix(":log")
        return {"parameterId": name, **_span(low, high, is_log=high != rest)}
    choices = [choice.strip() for choice in values.split(",")]
    if len(choices) < 2 or not all(choices):
        raise ValueError("the values are neither a range nor two or more values separated by commas")
    numbers = [_number(choice) for choice in choices]
    if None not in numbers:
        ascending = sorted({number for number in numbers if number is not None})
        return {"parameterId": name, "discreteValueSpec": {"values": ascending}}
    return {"parameterId": name, "categoricalValueSpec": {"values": choices}}


def _span(low: str, high: str, *, is_log: bool) -> dict[str, Any]:
    first, last = _number(low), _number(high)
    if first is None or last is None:
        raise ValueError(f"the bound {low if first is None else high} is not a number")
    if first >= last:
        raise ValueError(f"the lower bound {low} is not below the upper bound {high}")
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
