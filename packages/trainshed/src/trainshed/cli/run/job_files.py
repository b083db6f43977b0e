"""Reads job files in YAML or JSON. A file contains a resource of either API, or the content of gcloud's
`--config`. Pure."""

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from trainshed.core.names import Api

MAX_YAML: Final = 32 << 20
"""Maximum length in characters of a YAML file after the expansion of its aliases, as JSON."""


class JobFileError(Exception):
    """The file does not contain a job. The message contains the reason and advice."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job in the form that its API's create method accepts."""

    api: Api
    job: dict[str, Any]


_JOB_SPEC = frozenset({"jobSpec", "job_spec", "trialJobSpec", "trial_job_spec"})
"""Fields that contain the specification of a custom job, or of a tuning job's trials, in both spellings."""
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
"""Fields of jobs whose values are lists, in lower case and without underscores."""


def read(text: str) -> dict[str, Any]:
    """Return the object that a file's text contains. Raises JobFileError."""
    value, *others = documents(text)
    if others:
        raise JobFileError("The file has more than one YAML document. Keep only the job.")
    if value is None:
        raise JobFileError("The job file is empty. Write the fields of a job into it.")
    if not isinstance(value, dict):
        raise JobFileError("The job file contains no fields. Write a line `name: value` for each field.")
    return {name: _with_lists(name, item) for name, item in cast(dict[str, Any], value).items()}


def recognize(fields: Mapping[str, Any], api: Api | None, name: str, job_id: str) -> JobFile:
    """Return the job that a file's fields describe. Raises JobFileError.

    Args:
        api: the job's API; None = determine it by the fields
        name: display name of a Vertex job if the file has none
        job_id: ID of an `ml` job if the file has none
    """
    keys = fields.keys()
    if keys & _PIPELINE:
        raise JobFileError(
            "A training pipeline runs only its job. Use the workerPoolSpecs of its trainingTaskInputs."
        )
    if api is not Api.ML and keys & _JOB_SPEC:
        return JobFile(Api.VERTEX, _with_default(fields, ("displayName", "display_name"), name))
    if api is not Api.ML and (keys & _POOLS or api is Api.VERTEX):
        return JobFile(
            Api.VERTEX, _with_default({"jobSpec": dict(fields)}, ("displayName", "display_name"), name)
        )
    if keys & _TRAINING:
        return JobFile(Api.ML, _with_default(fields, ("jobId", "job_id"), job_id))
    if api is Api.ML:
        return JobFile(Api.ML, _with_default({"trainingInput": dict(fields)}, ("jobId", "job_id"), job_id))
    raise JobFileError(
        "The API of the job is not clear: it has neither workerPoolSpecs nor jobSpec (Vertex custom jobs) "
        "nor trainingInput (ml v1). Specify the API with --api."
    )


def _with_lists(name: str, value: Any) -> Any:
    """Return a field's content. If gcloud accepts a single value for a list, convert it to a list."""
    if isinstance(value, list):
        return [_with_lists("", item) for item in cast(list[Any], value)]
    content: Any = value
    if isinstance(value, dict) and name != "labels":
        content = {key: _with_lists(key, item) for key, item in cast(dict[str, Any], value).items()}
    wraps = content is not None and name.replace("_", "").lower() in _LISTS
    return [content] if wraps else content


def as_id(name: str) -> str:
    """Convert a name to a text with which the ID of an `ml` job can begin. The text contains only letters,
    digits and underscores."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return word if word[:1].isalpha() else f"job_{word}"


def with_region(file: JobFile, region: str) -> JobFile:
    """Return an `ml` job with `region` as its default region. Return a Vertex job unchanged, because Vertex
    jobs contain no region."""
    if file.api is not Api.ML or not region:
        return file
    key = next(iter(_TRAINING & file.job.keys()), "trainingInput")
    value = file.job.get(key)
    if not isinstance(value, dict) or "region" in value:
        return file
    training = cast(dict[str, Any], value)
    return JobFile(file.api, {**file.job, key: {**training, "region": region}})


def _with_default(job: Mapping[str, Any], keys: tuple[str, str], value: str) -> dict[str, Any]:
    """Set the first of the keys to a default value, unless the job has one of the keys."""
    return {**job} if job.keys() & set(keys) else {keys[0]: value, **job}


def documents(text: str) -> list[Any]:
    """Return the content of a JSON text, or the documents of a YAML text, at least one. Raises
    JobFileError."""
    with contextlib.suppress(ValueError, RecursionError):
        return [json.loads(text)]
    import yaml  # Slow import, not needed for JSON.

    try:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        # Convert all values through JSON, so that YAML dates become texts. A job contains only JSON values.
        loaded, parts = list(yaml.load_all(text, loader)), io.StringIO()
        for part in json.JSONEncoder(default=str).iterencode(loaded):
            if parts.tell() + len(part) > MAX_YAML:
                raise JobFileError(f"Aliases expand it beyond {MAX_YAML} characters. Remove them")
            parts.write(part)
        return json.loads(parts.getvalue()) or [None]
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as failure:
        mark: Any = getattr(failure, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        cause = getattr(failure, "problem", None) or failure
        raise JobFileError(f"The file is neither JSON nor YAML: {where}{cause}") from None
