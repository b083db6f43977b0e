"""Records of access: tokens, roles, the caller's identity, the audit log, and secrets."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class Token(Record, frozen=True):
    """The description of a token. It does not contain the token itself."""

    #: ID of the token, for example for revoking it.
    id: str = ""
    #: E-mail address of the token's user or service account.
    email: str = ""
    created: str = ""
    #: Expiry time; "" = the token does not expire.
    expires: str = ""
    #: Time of the last use, to the minute; "" = not used yet.
    last_used: str = ""
    note: str = ""


class TokenList(Record, frozen=True):
    """A list of tokens, oldest first."""

    tokens: tuple[Token, ...] = ()


class NewToken(Record, frozen=True):
    """Properties of a token to create."""

    #: E-mail address of the user or service account.
    email: str = ""
    #: Days until the token expires; 0 = it does not expire.
    days: float = 0
    note: str = ""
    #: Role to grant to the account; "" = no role.
    role: str = ""
    #: Project in which the role is granted; "-" = all projects, "" = the service's default project.
    project: str = ""


class IssuedToken(Token, frozen=True):
    """A token that this response created."""

    #: The token itself. No later response contains it.
    token: str = ""


class Grant(Record, frozen=True):
    """A role of one member."""

    #: Project of the grant; "-" = all projects.
    project: str = ""
    role: str = ""
    #: `user:EMAIL` or `serviceAccount:EMAIL`.
    member: str = ""


class GrantList(Record, frozen=True):
    """A list of members and their roles."""

    grants: tuple[Grant, ...] = ()


class GrantChange(Record, frozen=True):
    """A role to grant to a member or to revoke."""

    #: Project of the grant; "" = the service's default project, "-" = all projects.
    project: str = ""
    role: str = ""
    member: str = ""
    #: Whether to revoke the role instead of granting it.
    remove: bool = False


class Identity(Record, frozen=True):
    """The caller's identity and roles."""

    email: str = ""
    #: The caller's roles. Empty if the caller is a program of a job, because programs have no roles.
    grants: tuple[Grant, ...] = ()
    #: The issuer whose ID token the caller used to sign in; "" = the caller uses a token of this service.
    issuer: str = ""


class AuditEntry(Record, frozen=True):
    """One change, as recorded in the audit log."""

    seq: int = 0
    time: str = ""
    who: str = ""
    #: The service account that the caller impersonated; "" = no impersonation.
    acting_as: str = ""
    #: Full name of the method.
    method: str = ""
    #: Project of the change; "" = the change affects the whole service.
    project: str = ""
    resource: str = ""
    #: Network address of the client; "" = unknown.
    source: str = ""
    detail: Mapping[str, Any] = {}
    #: Name of the response's google.rpc code, such as `OK` or `PERMISSION_DENIED`; `DATA_LOSS` = the entry's
    #: hash is wrong.
    answer: str = ""
    #: SHA-256 of the previous entry's hash and this entry, in hexadecimal digits.
    hash: str = ""


class AuditPage(Record, frozen=True):
    """A page of the audit log, newest entry first."""

    entries: tuple[AuditEntry, ...] = ()
    #: `pageToken` for the next page; "" = this is the last page.
    next_page_token: str = ""


class SecretVersion(Record, frozen=True):
    """One version of a secret."""

    version: int = 0
    created: str = ""


class Secret(Record, frozen=True):
    """A secret. It does not contain the secret's value, because no method returns values."""

    name: str = ""
    #: Time of the newest version.
    created: str = ""
    #: Versions of the secret, newest first.
    versions: tuple[SecretVersion, ...] = ()


class SecretList(Record, frozen=True):
    """The secrets of a project, sorted by name."""

    project: str = ""
    secrets: tuple[Secret, ...] = ()


class SecretValue(Record, frozen=True):
    """A new version of a secret to store."""

    #: Project of the secret; "" = the service's default project.
    project: str = ""
    name: str = ""
    value: str = ""


class StoredSecret(Record, frozen=True):
    """The version of a secret that this response confirms as stored."""

    project: str = ""
    name: str = ""
    version: int = 0
    created: str = ""
