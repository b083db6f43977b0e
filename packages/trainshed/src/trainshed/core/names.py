"""Typed names of resources. Only this module parses or builds a name.

In identifiers, `_id` is one component (`my_job`), and `_name` is the full path (`projects/p/jobs/my_job`).
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
"""Identity of a job inside the service: a positive 63-bit integer that ascends with creation time."""


class Api(enum.StrEnum):
    """The public API through which a job was created."""

    VERTEX = "vertex"
    ML = "ml"


class Collection(enum.StrEnum):
    """The collection that contains a Vertex job in its location. Names of `ml` jobs have no collection."""

    CUSTOM_JOBS = "customJobs"
    TUNING_JOBS = "hyperparameterTuningJobs"
    PIPELINES = "trainingPipelines"
    PIPELINE_JOBS = "pipelineJobs"


_VERTEX_JOB = re.compile(rf"projects/([^/]+)/locations/([^/]+)/({'|'.join(Collection)})/([^/]+)")
_ML_JOB = re.compile(r"projects/([^/]+)/jobs/([^/]+)")


class JobName(Struct, frozen=True, order=True):
    """The public name of a job: a custom job, a tuning job or a training pipeline.

    `location` is the Vertex location. Names of `ml` v1 jobs have no location, so it is "". The job of trial 3
    of the `ml` tuning job `census` is called `census.3`. `collection` applies to Vertex only. Vertex ids are
    unique even without the collection.
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
        """Return the name of the job that evaluates a trial of this `ml` tuning job."""
        return JobName(self.api, self.project_id, self.location, f"{self.job_id}.{number}")

    @staticmethod
    def parse(name: str) -> "JobName":
        """Parse a full job name of either API. Raise ValueError for an invalid name."""
        if match := _VERTEX_JOB.fullmatch(name):
            return JobName(Api.VERTEX, match[1], match[2], match[4], Collection(match[3]))
        if match := _ML_JOB.fullmatch(name):
            return JobName(Api.ML, match[1], "", match[2])
        raise ValueError(
            f"{name!r} is not a job name. Use "
            "projects/PROJECT/locations/LOCATION/customJobs/ID or projects/PROJECT/jobs/ID"
        )


PLACE: Final = "projects/PROJECT/locations/LOCATION"
"""The beginning of name forms in error messages."""


def read_name(name: str, form: str, of: str) -> tuple[str, ...]:
    """Return the parts of a name that replace the words of its form, such as
    `projects/PROJECT/locations/LOCATION`. Raise InvalidRequest on the field `of` if the name has another
    form."""
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
    """A study's name in either API: `projects/P/locations/L/studies/S`."""

    project_id: str
    location: str
    study_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/studies/{self.study_id}"

    def trial(self, number: int) -> str:
        """Return the name of a trial of this study."""
        return f"{self}/trials/{number}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "StudyName":
        """Parse a study's name. Raise InvalidRequest on the field `of` for an invalid name."""
        return StudyName(*read_name(name, _STUDY, of))

    @staticmethod
    def parse_trial(name: str, *, of: str = "name") -> "tuple[StudyName, int]":
        """Parse a trial's name. Return the study's name and the trial's number. Raise InvalidRequest on the
        field `of` for an invalid name."""
        *study, number = read_name(name, f"{_STUDY}/trials/NUMBER", of)
        return StudyName(*study), min(int(number), _MAX_NUMBER)


class ModelName(Struct, frozen=True, order=True):
    """A model's name: `projects/P/locations/L/models/M`. A suffix `@1` or `@alias` selects a version."""

    project_id: str
    location: str
    model_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/models/{self.model_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "tuple[ModelName, str]":
        """Parse a model's name. Return the name and the version after its `@`, or "" without a version. Raise
        InvalidRequest on the field `of` for an invalid name."""
        if "@" not in name:
            return ModelName(*read_name(name, _MODEL, of)), ""
        *model, version = read_name(name, f"{_MODEL}@VERSION", of)
        return ModelName(*model), version


class EvaluationName(Struct, frozen=True, order=True):
    """An evaluation's name: `projects/P/locations/L/models/M/evaluations/E`."""

    model: ModelName
    evaluation_id: int

    def __str__(self) -> str:
        return f"{self.model}/evaluations/{self.evaluation_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "EvaluationName":
        """Parse an evaluation's name, with or without a version of its model. Raise InvalidRequest on the
        field `of` for an invalid name."""
        model = f"{_MODEL}@VERSION" if "@" in name else _MODEL
        project_id, location, model_id, *_, number = read_name(name, f"{model}/evaluations/NUMBER", of)
        return EvaluationName(ModelName(project_id, location, model_id), min(int(number), _MAX_NUMBER))


class ReplicaId(Struct, frozen=True, order=True):
    """Identifies a replica of a job by its worker pool (0..3) and its index in the pool
    (facts/program#roles)."""

    pool: int
    index: int

    @property
    def is_primary(self) -> bool:
        return self.pool == 0 and self.index == 0

    def __str__(self) -> str:
        """Return the replica's name on Vertex, such as `workerpool1-0`. Log tasks, files and directories use
        the same name."""
        return f"workerpool{self.pool}-{self.index}" if self.pool < SERVICE.pool else SERVICE_TASK

    @staticmethod
    def parse(text: str) -> "ReplicaId":
        match = re.fullmatch(r"workerpool([0-3])-(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a replica name such as workerpool1-0")
        return ReplicaId(int(match[1]), int(match[2]))


SERVICE_TASK = "service"
"""The task of the service's own lines in a job's log (facts/lifecycle#service-lines)."""
SERVICE = ReplicaId(4, 0)
"""Identifies the service as the writer of its own lines in a job's log. It is not a replica, and
`ReplicaId.parse` never returns it."""

ML_ROLES = ("master", "worker", "ps", "evaluator")
"""Names of the four pools in `ml` v1, by pool position."""


def public_replica_name(api: Api, replica: ReplicaId) -> str:
    """Return a replica's name for public messages: `workerpool0-0` (Vertex), `master 0` (`ml`)
    (spec/failures#messages)."""
    if api is Api.ML and replica != SERVICE:
        return f"{ML_ROLES[replica.pool]} {replica.index}"
    return str(replica)


def log_task_name(api: Api, replica: ReplicaId) -> str:
    """Return the `task_name` label of a replica's log lines: `workerpool0-0` or `master-replica-0`, or
    `service` for the service's own lines."""
    if api is Api.ML and replica != SERVICE:
        return f"{ML_ROLES[replica.pool]}-replica-{replica.index}"
    return str(replica)


def project_number(project_id: str) -> int:
    """Return a stable 12-digit number for a project id, or the id itself if it is numeric. The public
    services number projects, and programs receive the number in CLOUD_ML_PROJECT_ID
    (facts/program#variables)."""
    if project_id.isascii() and project_id.isdigit():
        return int(project_id)
    return 10**11 + int(_digest(project_id)[:16], 16) % (9 * 10**11)


def _digest(text: str) -> str:
    import hashlib  # Imported here, because commands that only print help compute no digests.

    return hashlib.sha256(text.encode()).hexdigest()


def ids_by_number(ids: Iterable[str]) -> dict[str, str]:
    """Return project ids by their project numbers. The empty id is ignored."""
    return {str(project_number(project_id)): project_id for project_id in ids if project_id}


def normalize_email(email: str) -> str:
    """Return an e-mail address in lower case, for storage and comparison."""
    return email.lower()


def normalize_emails(record: Struct, *fields: str) -> None:
    """Normalize the e-mail addresses in the given fields of a frozen record. Only for its `__post_init__`."""
    for name in fields:
        if (email := getattr(record, name)) != (normal := normalize_email(email)):
            force_setattr(record, name, normal)


DEFAULT_BUCKET: Final = "trainshed"
"""The bucket for staged code of the project to which the service itself belongs."""
_MAX_BUCKET_CHARS: Final = 63
_IN_BUCKETS: Final = re.compile(r"[a-z0-9_-]*[a-z0-9]")


def default_bucket(own: str, project_id: str) -> str:
    """Return the name of the bucket for a project's staged code. `own`: the project to which the service
    itself belongs."""
    if project_id == own:
        return DEFAULT_BUCKET
    name = f"{DEFAULT_BUCKET}-{project_id}"
    if _IN_BUCKETS.fullmatch(project_id) and len(name) <= _MAX_BUCKET_CHARS:
        return name
    # Project ids with upper case, dots or colons, and long ids, are replaced by a digest. No other project
    # has such a bucket.
    return f"{DEFAULT_BUCKET}--{_digest(project_id)[:16]}"


def host_token(uid: JobUid) -> str:
    """Return ten hexadecimal digits that the hostnames of all replicas of a job share
    (facts/program#cluster_spec)."""
    return _digest(f"host:{uid}")[:10]
