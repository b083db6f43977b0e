"""Principals: authenticated callers with their identity, their rights, and their member name in policies."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from trainshed.access.job_tokens import JobClaims
from trainshed.core.names import normalize_email, normalize_emails

USER: Final = "user:"
SERVICE_ACCOUNT: Final = "serviceAccount:"
_ACCOUNTS: Final = ".gserviceaccount.com"
"""Suffix of the address of every service account."""
_NOTHING: Final = frozenset[str]()


class Rights(Struct, frozen=True):
    """The permissions of a principal, in all projects and in single ones."""

    everywhere: frozenset[str] = _NOTHING
    #: Additional permissions by project ID, without the permissions in `everywhere`.
    projects: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def within(self, project: str) -> frozenset[str]:
        """Return all permissions in a project."""
        own = self.projects.get(project)
        return self.everywhere | own if own else self.everywhere

    def anywhere(self, permission: str) -> bool:
        """Return whether the principal has the permission in at least one project."""
        return permission in self.everywhere or any(permission in held for held in self.projects.values())

    def where(self, permission: str) -> tuple[str, ...]:
        """Return the projects in which the permission is granted; () if it is granted in all projects or in
        no project."""
        if permission in self.everywhere:
            return ()
        return tuple(name for name, held in self.projects.items() if permission in held)


class Bearer(Struct, frozen=True):
    """The identity from a token that the service does not store, such as an ID token. Also contains the
    principal and the key with which the token was obtained."""

    email: str
    #: ID of the key that signed the token, or of the key with which `by` obtained the token; None = no key.
    key: str | None = None
    #: Address of the principal that obtained the token. For an ID token of a machine: the subject of that ID
    #: token.
    by: str | None = None
    #: Expiry time (seconds since the epoch); 0 = not set yet.
    expires: int = 0
    #: Identity of the issuer of an ID token (`Issuer.mark`); None = this service or the account's key signed
    #: the token.
    issuer: str | None = None
    #: Groups of the user, from the ID token.
    groups: tuple[str, ...] = ()
    #: Issue time of the ID token (seconds since the epoch).
    issued: int = 0
    #: Groups of the principal in `by`.
    by_groups: tuple[str, ...] = ()

    @property
    def borrower(self) -> str | None:
        """The principal that impersonates the service account; None = no impersonation."""
        return None if self.issuer else self.by


Credential = str | Bearer
"""The digest of a stored token, or the bearer of a token that is not stored."""


class Principal(Struct, frozen=True):
    """An authenticated caller: a user, a service account or a program of a job."""

    #: Name of the principal in the audit log and in responses.
    email: str
    rights: Rights = Rights()
    #: The credential of the principal; None = a program with a token of its job.
    credential: Credential | None = None
    #: The identity of the program, if the principal is a program of a job; None = a user or a service
    #: account.
    program: JobClaims | None = None

    def __post_init__(self) -> None:
        normalize_emails(self, "email")

    def may(self, permission: str, project: str) -> bool:
        """Return whether the principal has a permission in a project."""
        return permission in self.rights.within(project)

    @property
    def project(self) -> str | None:
        """The ID of the only project in which the principal has rights; None = several or all projects."""
        projects = self.rights.projects
        return next(iter(projects)) if len(projects) == 1 and not self.rights.everywhere else None


def member_of(email: str) -> str:
    """Return the member of a policy for an address: a user or a service account."""
    email = normalize_email(email)
    return (SERVICE_ACCOUNT if email.endswith(_ACCOUNTS) else USER) + email
