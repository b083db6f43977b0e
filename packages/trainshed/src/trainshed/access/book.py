"""The access book contains tokens, roles, projects, service accounts and their keys.

A book is an immutable value: a change creates a new one. The service's database stores one document per
entry. The bucket process reads the same documents from a file that the service writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.access.policy import Grant, Policy
from trainshed.core.errors import FailedPrecondition
from trainshed.core.names import normalize_email, normalize_emails
from trainshed.core.units import Nanos


class Token(Struct, frozen=True):
    """A token of a user or of a service account. Only its digest is stored."""

    #: SHA-256 in hexadecimal digits; the first 12 are the token's ID.
    digest: str
    #: The principal that the token authenticates.
    email: str
    created: Nanos
    #: None = the token does not expire.
    expires: Nanos | None = None
    #: The creator's description.
    note: str = ""
    #: The mark of the issuer by which the user signed in; None = a user created the token.
    issuer: str | None = None
    #: The user's groups according to the issuer.
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        normalize_emails(self, "email")

    @property
    def id(self) -> str:
        """The ID that users see."""
        return self.digest[:12]


class Project(Struct, frozen=True):
    """A project that a user created. A project without an entry exists from its first use on."""

    id: str
    created: Nanos
    display_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Time of the deletion; the ID is not reused. None = not deleted.
    deleted: Nanos | None = None


class ServiceAccount(Struct, frozen=True):
    """An identity for machines."""

    email: str
    project: str
    created: Nanos
    display_name: str = ""
    description: str = ""
    disabled: bool = False


class AccountKey(Struct, frozen=True):
    """The public half of a service account's key."""

    id: str
    email: str
    #: PEM.
    public: str
    created: Nanos
    #: The host name by which the key's creator called the service; None = unknown.
    host: str | None = None


class SignedOut(Struct, frozen=True):
    """The last revocation of a principal's tokens. It also invalidates all ID tokens issued before."""

    email: str
    at: Nanos
    #: The last deletion of a service account of this address. Its jobs are rejected, too.
    deleted: Nanos | None = None


class AccessBook(Struct, frozen=True):
    """The data of all access decisions. Immutable."""

    #: By digest.
    tokens: Mapping[str, Token] = field(default_factory=dict[str, Token])
    policy: Policy = field(default_factory=Policy)
    projects: Mapping[str, Project] = field(default_factory=dict[str, Project])
    #: By address.
    accounts: Mapping[str, ServiceAccount] = field(default_factory=dict[str, ServiceAccount])
    #: By key ID.
    keys: Mapping[str, AccountKey] = field(default_factory=dict[str, AccountKey])
    #: By address.
    signed_out: Mapping[str, SignedOut] = field(default_factory=dict[str, SignedOut])

    def with_token(self, token: Token) -> "AccessBook":
        return replace(self, tokens={**self.tokens, token.digest: token})

    def without_tokens(self, digests: Iterable[str]) -> "AccessBook":
        gone = frozenset(digests)
        kept = {digest: token for digest, token in self.tokens.items() if digest not in gone}
        return replace(self, tokens=kept)

    def with_signed_out(self, emails: Iterable[str], now: Nanos) -> "AccessBook":
        known = self.signed_out
        out = {email: replace(known.get(email, SignedOut(email, now)), at=now) for email in emails}
        return replace(self, signed_out={**known, **out})

    def with_grants(self, project: str, grants: Iterable[Grant]) -> "AccessBook":
        """Return the book with a project's grants replaced. Raises FailedPrecondition for grants in a deleted
        project, since they would give access to its former contents."""
        if (known := self.projects.get(project)) and known.deleted and (grants := tuple(grants)):
            raise FailedPrecondition(
                f"The project {project} was deleted and its contents are kept. Choose another project, or "
                f"restore this one: gcloud projects undelete {project}."
            )
        return replace(self, policy=self.policy.with_project(project, grants))

    def with_project(self, project: Project) -> "AccessBook":
        return replace(self, projects={**self.projects, project.id: project})

    def without_project(self, project: str, now: Nanos) -> "AccessBook":
        """Return the book with a project deleted, without its grants and service accounts."""
        book = self.with_grants(project, ())
        for account in self.accounts.values():
            if account.project == project:
                book = book.without_account(account.email, now)
        known = self.projects.get(project, Project(project, now))
        return book.with_project(replace(known, deleted=now))

    def with_account(self, account: ServiceAccount) -> "AccessBook":
        return replace(self, accounts={**self.accounts, account.email: account})

    def without_account(self, email: str, now: Nanos) -> "AccessBook":
        """Return the book without a service account and its keys, tokens and grants. A later account with the
        same address inherits none of them."""
        return replace(
            self,
            tokens={key: token for key, token in self.tokens.items() if token.email != email},
            policy=Policy(
                grant
                for grant in self.policy.grants
                if grant.member.partition(":")[2] != normalize_email(email)
            ),
            accounts={name: account for name, account in self.accounts.items() if name != email},
            keys={id_: key for id_, key in self.keys.items() if key.email != email},
            signed_out={**self.signed_out, email: SignedOut(email, now, deleted=now)},
        )

    def with_key(self, key: AccountKey) -> "AccessBook":
        return replace(self, keys={**self.keys, key.id: key})

    def without_key(self, id_: str) -> "AccessBook":
        return replace(self, keys={known: key for known, key in self.keys.items() if known != id_})


FILE: Final = "access.json"
"""The name of the `AccessFile` in the data directory."""

Documents = Mapping[tuple[str, str], bytes]
"""The entries of a book in JSON, by (kind, key)."""

_E = TypeVar("_E", bound=Struct)


def documents(book: AccessBook) -> dict[tuple[str, str], bytes]:
    """Return the entries of a book in their stored form."""
    grants = {f"{grant.project}/{grant.role}/{grant.member}": grant for grant in book.policy.grants}
    tables: Mapping[str, Mapping[str, Struct]] = {
        "token": book.tokens,
        "project": book.projects,
        "account": book.accounts,
        "key": book.keys,
        "signed_out": book.signed_out,
        "grant": grants,
    }
    return {
        (kind, key): msgspec.json.encode(entry)
        for kind, table in tables.items()
        for key, entry in table.items()
    }


def book_of(stored: Documents) -> AccessBook:
    """Return the book of these entries. Raises ValueError for an unreadable entry."""
    by_kind: dict[str, dict[str, bytes]] = {}
    for (kind, key), content in stored.items():
        by_kind.setdefault(kind, {})[key] = content

    def entries(kind: str, of: type[_E]) -> dict[str, _E]:
        decode = msgspec.json.Decoder(of).decode
        return {key: decode(content) for key, content in by_kind.get(kind, {}).items()}

    # msgspec's errors are ValueErrors.
    return AccessBook(
        entries("token", Token),
        Policy(entries("grant", Grant).values()),
        entries("project", Project),
        entries("account", ServiceAccount),
        entries("key", AccountKey),
        entries("signed_out", SignedOut),
    )


class AccessFile(Struct, frozen=True):
    """The copy of the book and of the owner's token digest for the bucket process, in the file `FILE`."""

    #: SHA-256 of the owner's token, in hexadecimal digits.
    owner: str
    #: (kind, key, content)
    entries: Sequence[tuple[str, str, msgspec.Raw]]

    @classmethod
    def of(cls, owner: str, stored: Documents) -> "AccessFile":
        return cls(owner, [(*name, msgspec.Raw(content)) for name, content in stored.items()])

    def book(self) -> AccessBook:
        """Raises ValueError."""
        return book_of({(kind, key): bytes(content) for kind, key, content in self.entries})
