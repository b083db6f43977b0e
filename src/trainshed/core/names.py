"""Typed names of resources: the only place where a name is parsed or put together.

`_id` is one component (`my_job`), `_name` the full path (`projects/p/jobs/my_job`).
"""

import enum
import hashlib
import re
from dataclasses import dataclass
from typing import NewType

JobUid = NewType("JobUid", int)
"""Identity of a job inside the service: a positive 63-bit integer, ascending with creation time."""


class Api(enum.StrEnum):
    """The public surface a job was created through."""

    VERTEX = "vertex"
    ML = "ml"


_SEGMENT = r"[^/]+"
_CUSTOM_JOB = re.compile(rf"projects/({_SEGMENT})/locations/({_SEGMENT})/customJobs/({_SEGMENT})")
_ML_JOB = re.compile(rf"projects/({_SEGMENT})/jobs/({_SEGMENT})")


@dataclass(frozen=True, slots=True, order=True)
class JobName:
    """The public name of a job.

    `location` is the Vertex location; for `ml` v1 jobs, whose names carry none, it is "".
    """

    api: Api
    project_id: str
    location: str
    job_id: str

    def __str__(self) -> str:
        if self.api is Api.ML:
            return f"projects/{self.project_id}/jobs/{self.job_id}"
        return f"projects/{self.project_id}/locations/{self.location}/customJobs/{self.job_id}"

    @staticmethod
    def parse(name: str) -> "JobName":
        """Read a full job name of either API. Raises ValueError for anything else."""
        if match := _CUSTOM_JOB.fullmatch(name):
            return JobName(Api.VERTEX, match[1], match[2], match[3])
        if match := _ML_JOB.fullmatch(name):
            return JobName(Api.ML, match[1], "", match[2])
        raise ValueError(
            f"{name!r} is not a job name; expected projects/PROJECT/locations/LOCATION/customJobs/ID "
            "or projects/PROJECT/jobs/ID"
        )


@dataclass(frozen=True, slots=True, order=True)
class ReplicaId:
    """One replica of a job: worker pool position (0..3) and index within it (facts §3.1)."""

    pool: int
    index: int

    @property
    def is_primary(self) -> bool:
        return self.pool == 0 and self.index == 0

    def __str__(self) -> str:
        """`workerpool1-0`: the name Vertex uses, and the one of log tasks, files and directories."""
        return f"workerpool{self.pool}-{self.index}"

    @staticmethod
    def parse(text: str) -> "ReplicaId":
        match = re.fullmatch(r"workerpool([0-3])-(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a replica name such as workerpool1-0")
        return ReplicaId(int(match[1]), int(match[2]))


ML_ROLES = ("master", "worker", "ps", "evaluator")
"""Names of the four pools in `ml` v1, by pool position."""


def public_replica_name(api: Api, replica: ReplicaId) -> str:
    """The name used in public messages: `workerpool0-0` (Vertex), `master 0` (`ml`) (SPEC §2.1)."""
    if api is Api.ML:
        return f"{ML_ROLES[replica.pool]} {replica.index}"
    return str(replica)


def log_task_name(api: Api, replica: ReplicaId) -> str:
    """The `task_name` label of a replica's log lines: `workerpool0-0`, `master-replica-0`."""
    if api is Api.ML:
        return f"{ML_ROLES[replica.pool]}-replica-{replica.index}"
    return str(replica)


def project_number(project_id: str) -> int:
    """A stable 12-digit number for a project id; a numeric id stands for itself.

    The public services number projects; programs meet the number in CLOUD_ML_PROJECT_ID (facts §3.4).
    """
    if project_id.isdigit():
        return int(project_id)
    digest = hashlib.sha256(project_id.encode()).digest()
    return 10**11 + int.from_bytes(digest[:8], "big") % (9 * 10**11)


def host_token(uid: JobUid) -> str:
    """Ten hexadecimal digits shared by the hostnames of all replicas of a job (facts §3.2)."""
    return hashlib.sha256(b"host:%d" % uid).hexdigest()[:10]
