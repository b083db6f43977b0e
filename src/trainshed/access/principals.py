"""Who is asking, and in which role."""

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """What a principal may do in general; `permissions` says it exactly."""

    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity that this service knows. `email` names it in the audit log and in answers."""

    email: str
    role: Role = Role.OWNER
