"""Reads job files in YAML or JSON: the resource of either API, or what gcloud's `--config` takes. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from trainshed.core.names import Api


class Unreadable(Exception):
    """The file is no job; the message says why, and what would be one."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job in the form that its API's create method takes."""

    api: Api
    job: dict[str, Any]


_JOB_SPEC = frozenset({"jobSpec", "job_spec", "trialJobSpec", "trial_job_spec"})
"""Fields with the specification of a custom job, or of a tuning job's trials. Files may have either
spelling."""
_PIPELINE = frozenset({"trainingTaskInputs", "training_task_inputs"})
_POOLS = frozenset({"workerPoolSpecs", "worker_pool_specs"})
_TRAINING = frozenset({"trainingInput", "training_input"})
_LISTS = frozenset(
    {
        *("args", "categoricalvalues", "command", "conditionalparameterspecs", "containerargs"),
        *("containercommand", "discretevalues", "env", "metrics", "nfsmounts", "packageuris"),
        *("parameters", "params", "reservedipranges", "values", "workerpoolspecs"),
    }
)
"""Fields of jobs that hold lists, in lower case and without underscores."""


def read(text: str) -> dict[str, Any]:
    """Return the object in a file's text. Raises Unreadable."""
    try:
        value = json.loads(text)
    except ValueError:
        value = _yaml(text)
    if value is None:
        raise Unreadable("It is empty.")
    if not isinstance(value, dict):
        raise Unreadable(
            "What it holds is not an object, which has a `name: value` for each field."
        )
    return {name: _listed(name, item) for name, item in cast(dict[str, Any], value).items()}


def recognised(fields: Mapping[str, Any], api: Api | None, name: str, job_id: str) -> JobFile:
    """Return the job that a file's fields describe. `api`: the job's API, None = find it by the fields.
    `name`: display name of a Vertex job that has none; `job_id`: id of an `ml` job that has none. Raises
    Unreadable."""
    keys = fields.keys()
    if keys & _PIPELINE:
        raise Unreadable(
            "It is a training pipeline, which asks for nothing but its job: give the workerPoolSpecs of its"
            " trainingTaskInputs."
        )
    if api is not Api.ML and keys & _JOB_SPEC:
        return JobFile(Api.VERTEX, _with(fields, ("displayName", "display_name"), name))
    if api is not Api.ML and (keys & _POOLS or api is Api.VERTEX):
        return JobFile(
            Api.VERTEX, _with({"jobSpec": dict(fields)}, ("displayName", "display_name"), name)
        )
    if keys & _TRAINING:
        return JobFile(Api.ML, _with(fields, ("jobId", "job_id"), job_id))
    if api is Api.ML:
        return JobFile(Api.ML, _with({"trainingInput": dict(fields)}, ("jobId", "job_id"), job_id))
    raise Unreadable(
        "It has neither workerPoolSpecs nor jobSpec (Vertex custom jobs) nor trainingInput (ml v1); say whose"
        " job it is with --api."
    )


def _listed(name: str, value: Any) -> Any:
    """Return what a field holds, with a list where gcloud takes a single value for one."""
    if isinstance(value, list):
        return [_listed("", item) for item in cast(list[Any], value)]
    content: Any = value
    if isinstance(value, dict) and name != "labels":
        content = {key: _listed(key, item) for key, item in cast(dict[str, Any], value).items()}
    wraps = content is not None and name.replace("_", "").lower() in _LISTS
    return [content] if wraps else content


def as_id(name: str) -> str:
    """Convert a name to the beginning of an `ml` job's id, of letters, digits and underscores."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return word if word[:1].isalpha() else f"job_{word}"


def with_region(file: JobFile, region: str) -> JobFile:
    """Return an `ml` job with `region`, unless it names one; a Vertex job unchanged, since its region is not
    part of it."""
    if file.api is not Api.ML or not region:
        return file
    key = next(iter(_TRAINING & file.job.keys()), "trainingInput")
    value = file.job.get(key)
    if not isinstance(value, dict) or "region" in value:
        return file
    training = cast(dict[str, Any], value)
    return JobFile(file.api, {**file.job, key: {**training, "region": region}})


def _with(job: Mapping[str, Any], keys: tuple[str, str], value: str) -> dict[str, Any]:
    """Return the job with a value by the first of the keys, unless it has one by either."""
    return {**job} if job.keys() & set(keys) else {keys[0]: value, **job}


def _yaml(text: str) -> Any:
    import yaml  # Only here: JSON does without.

    try:
        # Through JSON, so that dates become texts: every value of a job has a JSON form.
        return json.loads(json.dumps(yaml.safe_load(text), default=str))
    except (yaml.YAMLError, TypeError, ValueError) as failure:
        mark: Any = getattr(failure, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        cause = getattr(failure, "problem", None) or failure
        raise Unreadable(f"It is neither JSON nor YAML: {where}{cause}") from None
