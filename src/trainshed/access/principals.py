"""Who is asking, in which role, and where."""

import enum
from dataclasses import dataclass

from trainshed.access.job_tokens import JobClaims


class Role(enum.StrEnum):
    """What a principal may do in general; `permissions` says it exactly."""

    OWNER = "owner"
    JOB = "job"
    """A program of a job, with the token that its metadata endpoint gave it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity that this service knows. `email` names it in the audit log and in answers. `project`: the only one
    that it may work in, by its id; "" = any. `program`: which one it is, None = a person."""

    email: str
    role: Role = Role.OWNER
    project: str = ""
    program: JobClaims | None = None
