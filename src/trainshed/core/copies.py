"""A job that was submitted once as a new one: what of its JSON a create takes, and where creates go. Pure."""

import copy
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from trainshed.core.names import Api

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
    ),
    Api.ML: ("trainingInput", "labels"),
}
"""What of a job its create takes; all else the service writes."""
_SEARCHES: Final = ("studySpec", "trialJobSpec")
_COPY: Final = re.compile(r"_copy\d+$")


def copy_of(api: Api, job: Mapping[str, Any], now: int) -> dict[str, Any]:
    """The job's own JSON as a create of the same. `now`: nanoseconds, for an id that no other job has."""
    fresh = {key: copy.deepcopy(job[key]) for key in _TAKEN[api] if job.get(key)}
    if api is Api.ML:
        stem = _COPY.sub("", str(job.get("jobId", "job")))
        return {"jobId": f"{stem}_copy{now // 10**6}", **fresh}
    return fresh


def collection_of(api: Api, job: Mapping[str, Any], project: str, region: str) -> str:
    """The path to which a create of this JSON is sent."""
    place = f"/v1/projects/{quote(project, safe='')}"
    if api is Api.ML:
        return f"{place}/jobs"
    kind = "hyperparameterTuningJobs" if any(key in job for key in _SEARCHES) else "customJobs"
    return f"{place}/locations/{quote(region, safe='')}/{kind}"
