"""Records of access: tokens, roles, the caller's identity, the audit log, and secrets."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class Token(Record, frozen=True):
    """The description of a token, without the token itself."""

    #: ID of the token, for revoking it.
    id: str = ""
    #: Account of the token.
    email: str = ""
    created: str = ""
    #: "" = the token does not expire.
    expires: str = ""
    #: Time of the last use, to the minute; "" = not used yet.
    last_used: str = ""
    note: str = ""


class TokenList(Record, frozen=True):
    """A list of tokens, oldest first."""

    tokens: tuple[Token, ...] = ()


class NewToken(Record, frozen=True):
    """The properties of a token to create."""

    #: E-mail address of the user or service account.
    email: str = ""
    #: Days until the token expires; 0 = it does not expire.
    days: float = 0
    note: str = ""
    #: A role to grant to the account; "" = none.
    role: str = ""
    #: Project of the granted role; "-" = all projects, "" = the service's default project.
    project: str = ""


class IssuedToken(Token, frozen=True):
    """A token that was just created."""

    #: The token itself. No later answer contains it.
    token: str = ""


class Grant(Record, frozen=True):
    """A role of one member."""

    #: "-" = all projects.
    project: str = ""
    role: str = ""
    #: `user:EMAIL` or `serviceAccount:EMAIL`.
    member: str = ""


class GrantList(Record, frozen=True):
    """A list of members and their roles."""

    grants: tuple[Grant, ...] = ()


class GrantChange(Record, frozen=True):
    """A role to grant or revoke."""

    #: "" = the service's default project, "-" = all projects.
    project: str = ""
    role: str = ""
    member: str = ""
    #: Whether to revoke the role.
    remove: bool = False


class Identity(Record, frozen=True):
    """The caller's identity and roles."""

    email: str = ""
    #: The caller's roles; a job's program has none.
    grants: tuple[Grant, ...] = ()
    #: ID of the issuer with which the caller signed in; "" = the caller uses a token of this service.
    issuer: str = ""


class AuditEntry(Record, frozen=True):
    """One change, as recorded in the audit log."""

    seq: int = 0
    time: str = ""
    who: str = ""
    #: The impersonated service account; "" = none.
    acting_as: str = ""
    #: Full name of the method.
    method: str = ""
    #: "" = the change concerns the whole service.
    project: str = ""
    resource: str = ""
    #: Network address of the client; "" = unknown.
    source: str = ""
    detail: Mapping[str, Any] = {}
    #: Name of the answer's google.rpc code, such as `OK` or `PERMISSION_DENIED`; `DATA_LOSS` = the entry's
    #: hash is wrong.
    answer: str = ""
    #: SHA-256 of the previous entry and this one, in hexadecimal digits.
    hash: str = ""


class AuditPage(Record, frozen=True):
    """A page of the audit log, newest entry first."""

    entries: tuple[AuditEntry, ...] = ()
    #: `pageToken` of the next page; "" = this is the last page.
    next_page_token: str = ""


class SecretVersion(Record, frozen=True):
    """One version of a secret."""

    version: int = 0
    created: str = ""


class Secret(Record, frozen=True):
    """A secret without its value. No method returns the value."""

    name: str = ""
    #: Time at which the newest version was stored.
    created: str = ""
    #: Versions, newest first.
    versions: tuple[SecretVersion, ...] = ()


class SecretList(Record, frozen=True):
    """The secrets of a project, sorted by name."""

    project: str = ""
    secrets: tuple[Secret, ...] = ()


class SecretValue(Record, frozen=True):
    """A new version of a secret to store."""

    #: "" = the service's default project.
    project: str = ""
    name: str = ""
    value: str = ""


class StoredSecret(Record, frozen=True):
    """The version of a secret that was stored."""

    project: str = ""
    name: str = ""
    version: int = 0
    created: str = ""
