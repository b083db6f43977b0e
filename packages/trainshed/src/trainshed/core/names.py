"""Typed names of resources: the only place where a name is parsed or put together.

`_id` is one component (`my_job`), `_name` the full path (`projects/p/jobs/my_job`).
"""

import enum
import functools
import re
from collections.abc import Iterable
from typing import Final, NewType

from msgspec import Struct
from msgspec.structs import force_setattr

from trainshed.core.errors import InvalidRequest, Violation

JobUid = NewType("JobUid", int)
"""Identity of a job inside the service: a positive 63-bit integer, ascending with creation time."""


class Api(enum.StrEnum):
    """The public surface a job was created through."""

    VERTEX = "vertex"
    ML = "ml"


class Collection(enum.StrEnum):
    """The collection of a Vertex job in its location. Names of `ml` jobs have none."""

    CUSTOM_JOBS = "customJobs"
    TUNING_JOBS = "hyperparameterTuningJobs"
    PIPELINES = "trainingPipelines"


_VERTEX_JOB = re.compile(rf"projects/([^/]+)/locations/([^/]+)/({'|'.join(Collection)})/([^/]+)")
_ML_JOB = re.compile(r"projects/([^/]+)/jobs/([^/]+)")


class JobName(Struct, frozen=True, order=True):
    """The public name of a job: a custom job, a tuning job or a training pipeline.

    `location` is the Vertex location; for `ml` v1 jobs, whose names have none, it is "". The job of trial 3
    of the `ml` tuning job `census` is called `census.3`. `collection` counts for Vertex only, where ids are
    unique without it.
    """

    api: Api
    project_id: str
    location: str
    job_id: str
    collection: Collection = Collection.CUSTOM_JOBS

    def __str__(self) -> str:
        if self.api is Api.ML:
            return f"projects/{self.project_id}/jobs/{self.job_id}"
        place = f"projects/{self.project_id}/locations/{self.location}"
        return f"{place}/{self.collection}/{self.job_id}"

    def of_trial(self, number: int) -> "JobName":
        """Return the name of the job of a trial of this `ml` tuning job."""
        return JobName(self.api, self.project_id, self.location, f"{self.job_id}.{number}")

    @staticmethod
    def parse(name: str) -> "JobName":
        """Read a full job name of either API. Raise ValueError for anything else."""
        if match := _VERTEX_JOB.fullmatch(name):
            return JobName(Api.VERTEX, match[1], match[2], match[4], Collection(match[3]))
        if match := _ML_JOB.fullmatch(name):
            return JobName(Api.ML, match[1], "", match[2])
        raise ValueError(
            f"{name!r} is not a job name. Use "
            "projects/PROJECT/locations/LOCATION/customJobs/ID or projects/PROJECT/jobs/ID"
        )


PLACE: Final = "projects/PROJECT/locations/LOCATION"
"""The beginning of the forms of names."""


def read_name(name: str, form: str, of: str) -> tuple[str, ...]:
    """Return the parts of a name for the words of its form, such as
    `projects/PROJECT/locations/LOCATION`. Raise InvalidRequest on the field `of` for a name of
    another form."""
    match = _pattern(form).fullmatch(name)
    if match is None:
        raise InvalidRequest((Violation(of, f"{name!r} is not a name of the form {form}."),))
    return match.groups()


@functools.cache
def _pattern(form: str) -> re.Pattern[str]:
    numbered = re.sub(r"\bNUMBER\b", "([0-9]{1,19})", form)
    return re.compile(re.sub(r"\b[A-Z]+\b", "([^/@]+)", numbered))


_STUDY: Final = f"{PLACE}/studies/STUDY"
_MODEL: Final = f"{PLACE}/models/MODEL"
_MAX_NUMBER: Final = 2**63 - 1
"""The largest number that the store can compare. No resource has a larger number."""


class StudyName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/studies/S`, in either API."""

    project_id: str
    location: str
    study_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/studies/{self.study_id}"

    def trial(self, number: int) -> str:
        """Return the name of one of its trials."""
        return f"{self}/trials/{number}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "StudyName":
        """Read a study's name. Raise InvalidRequest on the field `of` for anything else."""
        return StudyName(*read_name(name, _STUDY, of))

    @staticmethod
    def parse_trial(name: str, *, of: str = "name") -> "tuple[StudyName, int]":
        """Return the study and the trial's number. Raise InvalidRequest on the field `of` for anything
        else."""
        *study, number = read_name(name, f"{_STUDY}/trials/NUMBER", of)
        return StudyName(*study), min(int(number), _MAX_NUMBER)


class ModelName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/models/M`; `@1` or `@alias` after it asks for a version."""

    project_id: str
    location: str
    model_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/models/{self.model_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "tuple[ModelName, str]":
        """Return the model and what follows its `@` ("" = nothing). Raise InvalidRequest on the field `of`
        for anything else."""
        if "@" not in name:
            return ModelName(*read_name(name, _MODEL, of)), ""
        *model, version = read_name(name, f"{_MODEL}@VERSION", of)
        return ModelName(*model), version


class EvaluationName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/models/M/evaluations/E`."""

    model: ModelName
    evaluation_id: int

    def __str__(self) -> str:
        return f"{self.model}/evaluations/{self.evaluation_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "EvaluationName":
        """Read an evaluation's name, with or without a version of its model. Raise InvalidRequest on the
        field `of` for anything else."""
        model = f"{_MODEL}@VERSION" if "@" in name else _MODEL
        project_id, location, model_id, *_, number = read_name(
            name, f"{model}/evaluations/NUMBER", of
        )
        return EvaluationName(
            ModelName(project_id, location, model_id), min(int(number), _MAX_NUMBER)
        )


class ReplicaId(Struct, frozen=True, order=True):
    """One replica of a job: worker pool position (0..3) and index within it (facts/program#roles)."""

    pool: int
    index: int

    @property
    def is_primary(self) -> bool:
        return self.pool == 0 and self.index == 0

    def __str__(self) -> str:
        """Return `workerpool1-0`: the name that Vertex uses, and that of log tasks, files and directories."""
        return f"workerpool{self.pool}-{self.index}" if self.pool < SERVICE.pool else SERVICE_TASK

    @staticmethod
    def parse(text: str) -> "ReplicaId":
        match = re.fullmatch(r"workerpool([0-3])-(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a replica name such as workerpool1-0")
        return ReplicaId(int(match[1]), int(match[2]))


SERVICE_TASK = "service"
"""The task of the lines in a job's log that the service itself has written
(facts/lifecycle#service-lines)."""
SERVICE = ReplicaId(4, 0)
"""The writer of those lines: it takes the place of a replica among the writers of a job's log, but is none.
`ReplicaId.parse` never returns it."""

ML_ROLES = ("master", "worker", "ps", "evaluator")
"""Names of the four pools in `ml` v1, by pool position."""


def public_replica_name(api: Api, replica: ReplicaId) -> str:
    """Return the name used in public messages: `workerpool0-0` (Vertex), `master 0` (`ml`)
    (spec/failures#messages)."""
    if api is Api.ML and replica != SERVICE:
        return f"{ML_ROLES[replica.pool]} {replica.index}"
    return str(replica)


def log_task_name(api: Api, replica: ReplicaId) -> str:
    """Return the `task_name` label of a replica's log lines, `workerpool0-0` or `master-replica-0`; for the
    service's lines, `service`."""
    if api is Api.ML and replica != SERVICE:
        return f"{ML_ROLES[replica.pool]}-replica-{replica.index}"
    return str(replica)


def project_number(project_id: str) -> int:
    """Return a stable 12-digit number for a project id; a numeric id stands for itself.

    The public services number projects; programs meet the number in CLOUD_ML_PROJECT_ID
    (facts/program#variables).
    """
    if project_id.isascii() and project_id.isdigit():
        return int(project_id)
    return 10**11 + int(_digest(project_id)[:16], 16) % (9 * 10**11)


def _digest(text: str) -> str:
    import hashlib  # Only here: the commands' help does without.

    return hashlib.sha256(text.encode()).hexdigest()


def ids_by_number(ids: Iterable[str]) -> dict[str, str]:
    """Return the ids of projects by their numbers in resource names; "" is ignored."""
    return {str(project_number(project_id)): project_id for project_id in ids if project_id}


def normalize_email(email: str) -> str:
    """Return an e-mail address in the form for storage and comparison: in lower case."""
    return email.lower()


def normalize_emails(record: Struct, *fields: str) -> None:
    """Normalize the addresses in these fields of a frozen record. Only for its `__post_init__`."""
    for name in fields:
        if (email := getattr(record, name)) != (normal := normalize_email(email)):
            force_setattr(record, name, normal)


DEFAULT_BUCKET: Final = "trainshed"
"""The bucket in which code of the service's own project is staged."""
_MAX_BUCKET_CHARS: Final = 63
_IN_BUCKETS: Final = re.compile(r"[a-z0-9_-]*[a-z0-9]")


def default_bucket(own: str, project_id: str) -> str:
    """Return the name of the bucket in which a project's code is staged. `own`: the service's own project."""
    if project_id == own:
        return DEFAULT_BUCKET
    name = f"{DEFAULT_BUCKET}-{project_id}"
    if _IN_BUCKETS.fullmatch(project_id) and len(name) <= _MAX_BUCKET_CHARS:
        return name
    # Upper case, dots and colons of a domain's project, or too long: no other project has such a name.
    return f"{DEFAULT_BUCKET}--{_digest(project_id)[:16]}"


def host_token(uid: JobUid) -> str:
    """Return ten hexadecimal digits that the hostnames of all replicas of a job share
    (facts/program#cluster_spec)."""
    return _digest(f"host:{uid}")[:10]
