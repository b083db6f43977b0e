"""Who is asking, in which role, and where."""

import enum

from msgspec import Struct

from trainshed.access.job_tokens import JobClaims


class Role(enum.StrEnum):
    """What a principal may do in general; `permissions` says it exactly."""

    OWNER = "owner"
    #: A program of a job, with the token that its metadata endpoint gave it.
    JOB = "job"


class Principal(Struct, frozen=True):
    """An identity that this service knows."""

    #: Names it in the audit log and in answers.
    email: str
    role: Role = Role.OWNER
    #: The only project that it may work in, by its id; "" = any.
    project: str = ""
    #: Which program of a job it is; None = a person.
    program: JobClaims | None = None
