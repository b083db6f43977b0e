"""Principals are who asks: an identity, how policies name it, and what it may do where."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from trainshed.access.job_tokens import JobClaims
from trainshed.core.names import normalize_email, normalize_emails

USER: Final = "user:"
SERVICE_ACCOUNT: Final = "serviceAccount:"
_ACCOUNTS: Final = ".gserviceaccount.com"
"""How the address of every service account ends."""
_NOTHING: Final = frozenset[str]()


class Rights(Struct, frozen=True):
    """The permissions of somebody, in all projects and in single ones."""

    everywhere: frozenset[str] = _NOTHING
    #: By the project's id; what is held everywhere is not repeated.
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def within(self, project: str) -> frozenset[str]:
        """Everything that is held in a project."""
        own = self.projects.get(project)
        return self.everywhere | own if own else self.everywhere

    def anywhere(self, permission: str) -> bool:
        """Whether the permission is held in some project."""
        return permission in self.everywhere or any(
            permission in held for held in self.projects.values()
        )

    def where(self, permission: str) -> tuple[str, ...]:
        """The single projects in which the permission is held; () = in all projects, or in none."""
        if permission in self.everywhere:
            return ()
        return tuple(name for name, held in self.projects.items() if permission in held)


class Bearer(Struct, frozen=True):
    """For whom a token speaks that is stored nowhere, and who vouches for it."""

    email: str
    #: The id of the key that signed, or by which `by` has obtained the token; None = none did.
    key: str | None = None
    #: The address of that somebody, or what an issuer calls the machine that has its ID token.
    by: str | None = None
    #: When the token ends (seconds since the epoch); 0 = there is none yet.
    expires: int = 0
    #: The mark of the issuer of whose ID token this is; None = this service or the account's key signed.
    issuer: str | None = None
    #: The groups of the person of whom the ID token is.
    groups: tuple[str, ...] = ()
    #: When the ID token was issued (seconds since the epoch).
    issued: int = 0
    #: The groups of `by`.
    by_groups: tuple[str, ...] = ()

    @property
    def borrower(self) -> str | None:
        """The address of who has obtained it for the account; None = it is not lent."""
        return None if self.issuer else self.by


Shown = str | Bearer
"""The digest of a token, or what a token says that is stored nowhere."""


class Principal(Struct, frozen=True):
    """An identity that this service knows."""

    #: Its name in the audit record and in answers.
    email: str
    rights: Rights = Rights()
    #: What it showed; None = it is a program, which shows a token of its job.
    shown: Shown | None = None
    #: The program of a job that it is; None = it is a person or a service account with a token of its own.
    program: JobClaims | None = None

    def __post_init__(self) -> None:
        normalize_emails(self, "email")

    def may(self, permission: str, project: str) -> bool:
        """Whether it has a permission in a project."""
        return permission in self.rights.within(project)

    @property
    def project(self) -> str | None:
        """The id of the only project that it has rights in; None = there are several, or it has rights in
        all."""
        projects = self.rights.projects
        return next(iter(projects)) if len(projects) == 1 and not self.rights.everywhere else None


def member_of(email: str) -> str:
    """Return how a policy names a person or a service account."""
    email = normalize_email(email)
    return (SERVICE_ACCOUNT if email.endswith(_ACCOUNTS) else USER) + email
