"""Principals are who asks: an identity, its role, and the project it may work in."""

import enum

from msgspec import Struct

from trainshed.access.job_tokens import JobClaims


class Role(enum.StrEnum):
    """What a principal may do in general; `permissions` has the exact table."""

    OWNER = "owner"
    #: A program of a job, which shows the token that its metadata endpoint gave it.
    JOB = "job"


class Principal(Struct, frozen=True):
    """An identity that this service knows."""

    #: Its name in the audit log and in answers.
    email: str
    role: Role = Role.OWNER
    #: The id of the only project that it may work in; "" = any project.
    project: str = ""
    #: The program of a job that it is; None = it is a person.
    program: JobClaims | None = None
