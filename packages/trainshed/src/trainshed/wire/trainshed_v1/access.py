"""Records of who is known to a service, of their roles, of what they changed, and of secrets."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class Token(Record, frozen=True):
    """A token, without itself."""

    #: The name by which it is revoked.
    id: str = ""
    #: For whom it speaks.
    email: str = ""
    created: str = ""
    #: "" = never.
    expires: str = ""
    #: To the minute; "" = it was not used yet.
    last_used: str = ""
    note: str = ""


class TokenList(Record, frozen=True):
    """Tokens, oldest first."""

    tokens: tuple[Token, ...] = ()


class NewToken(Record, frozen=True):
    """A token to be made."""

    #: The e-mail address of the person or service account for whom it speaks.
    email: str = ""
    #: Days that it is valid; 0 = until it is revoked.
    days: float = 0
    note: str = ""
    #: A role to give its holder as well; "" = none.
    role: str = ""
    #: The project in which the role is given; "-" = all projects, "" = the service's default project.
    project: str = ""


class IssuedToken(Token, frozen=True):
    """A token that was made just now."""

    #: The token itself, which is shown this once.
    token: str = ""


class Grant(Record, frozen=True):
    """One member has one role."""

    #: "-" = all projects.
    project: str = ""
    role: str = ""
    #: `user:EMAIL` or `serviceAccount:EMAIL`.
    member: str = ""


class GrantList(Record, frozen=True):
    """Who has which role."""

    grants: tuple[Grant, ...] = ()


class GrantChange(Record, frozen=True):
    """A role that is given or taken away."""

    #: "" = the service's default project, "-" = all projects.
    project: str = ""
    role: str = ""
    member: str = ""
    #: Whether it is taken away.
    remove: bool = False


class Identity(Record, frozen=True):
    """Who asks, and what they may do."""

    email: str = ""
    #: The roles of theirs; a program of a job has none.
    grants: tuple[Grant, ...] = ()
    #: The mark of the issuer at which they signed in; "" = they have a token that somebody made.
    issuer: str = ""


class AuditEntry(Record, frozen=True):
    """What somebody changed."""

    seq: int = 0
    time: str = ""
    who: str = ""
    #: The service account as which it was done; "" = none.
    acting_as: str = ""
    #: The method's full name.
    method: str = ""
    #: "" = it concerns the whole service.
    project: str = ""
    resource: str = ""
    #: The address that the request came from; "" = it is not known.
    source: str = ""
    detail: Mapping[str, Any] = {}
    #: Name of the answer's google.rpc code: `OK`, or `PERMISSION_DENIED`; `DATA_LOSS` = its hash is wrong.
    answer: str = ""
    #: SHA-256 of the entry before and of this one, in hexadecimal digits.
    hash: str = ""


class AuditPage(Record, frozen=True):
    """A page of the audit record, newest first."""

    entries: tuple[AuditEntry, ...] = ()
    #: What to send as `pageToken` for the next page; "" = there is none.
    next_page_token: str = ""


class SecretVersion(Record, frozen=True):
    """One version of a secret."""

    version: int = 0
    created: str = ""


class Secret(Record, frozen=True):
    """A secret without its value, which no method returns."""

    name: str = ""
    #: When the newest version was stored.
    created: str = ""
    #: Newest first.
    versions: tuple[SecretVersion, ...] = ()


class SecretList(Record, frozen=True):
    """A project's secrets, by name."""

    project: str = ""
    secrets: tuple[Secret, ...] = ()


class SecretValue(Record, frozen=True):
    """A new version of a secret, to be stored."""

    #: "" = the service's default project.
    project: str = ""
    name: str = ""
    value: str = ""


class StoredSecret(Record, frozen=True):
    """A version that was stored."""

    project: str = ""
    name: str = ""
    version: int = 0
    created: str = ""
