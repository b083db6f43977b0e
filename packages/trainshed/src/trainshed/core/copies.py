"""A submitted job as the request for a new one: the parts of its JSON that a create takes, and where the
create is sent. Pure."""

import copy
import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from trainshed.core.names import Api
from trainshed.core.packages import COPY_LABEL
from trainshed.core.units import Nanos

_TAKEN: Final[Mapping[Api, tuple[str, ...]]] = {
    Api.VERTEX: (
        "displayName",
        "jobSpec",
        "labels",
        "encryptionSpec",
        "studySpec",
        "maxTrialCount",
        "parallelTrialCount",
        "maxFailedTrialCount",
        "trialJobSpec",
        "inputDataConfig",
        "trainingTaskDefinition",
        "trainingTaskInputs",
        "modelToUpload",
        "modelId",
        "parentModel",
    ),
    Api.ML: ("trainingInput", "labels"),
}
"""The fields of a job that its create takes; the service writes all others."""
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
    fresh = {key: copy.deepcopy(job[key]) for key in _TAKEN[api] if job.get(key)}
    if _PACKAGES.search(json.dumps(fresh)):
        fresh["labels"] = {**fresh.get("labels", {}), COPY_LABEL: uid}
    if api is Api.ML:
        stem = _COPY.sub("", str(job.get("jobId", "job")))
        return {"jobId": f"{stem}_copy{now // 10**6}", **fresh}
    if model := fresh.get("modelToUpload"):
        fresh["modelToUpload"] = {k: v for k, v in model.items() if k not in _OF_MADE_MODEL}
    return fresh


def api_of(job: Mapping[str, Any]) -> Api:
    """Return the API whose create takes this JSON."""
    return Api.ML if any(key in job for key in _OF_ML) else Api.VERTEX


def is_pipeline(job: Mapping[str, Any]) -> bool:
    """Whether a Vertex job's JSON is that of a training pipeline."""
    return any(key in job for key in _PIPELINES)


def is_search(job: Mapping[str, Any]) -> bool:
    """Whether a Vertex job's JSON is that of a tuning job."""
    return not is_pipeline(job) and any(key in job for key in _SEARCHES)


def collection_of(api: Api, job: Mapping[str, Any], project: str, region: str) -> str:
    """Return the path to which a create of this JSON is sent."""
    place = f"/v1/projects/{quote(project, safe='')}"
    if api is Api.ML:
        return f"{place}/jobs"
    kind = "customJobs"
    if is_pipeline(job):
        kind = "trainingPipelines"
    elif is_search(job):
        kind = "hyperparameterTuningJobs"
    return f"{place}/locations/{quote(region, safe='')}/{kind}"
