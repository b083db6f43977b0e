"""The access book: tokens, roles, projects, service accounts and their keys.

A book is immutable: each change creates a new book. The service's database stores one document per entry of
the book. The bucket process reads the same documents from a file that the service writes.
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

    #: SHA-256 of the token in hexadecimal digits. The first 12 digits are the token's ID.
    digest: str
    #: E-mail address of the token's user or service account.
    email: str
    created: Nanos
    #: None = the token does not expire.
    expires: Nanos | None = None
    #: The creator's description.
    note: str = ""
    #: Identity of the issuer by which the user signed in (`Issuer.mark`); None = a user created the token.
    issuer: str | None = None
    #: The user's groups according to the issuer.
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        normalize_emails(self, "email")

    @property
    def id(self) -> str:
        """The token's public ID."""
        return self.digest[:12]


class Project(Struct, frozen=True):
    """A project that a user created or deleted. All other projects exist without an entry."""

    id: str
    created: Nanos
    display_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Time of the deletion; None = not deleted. The ID of a deleted project is not reused.
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


class Revocation(Struct, frozen=True):
    """The last revocation of all tokens of a user or service account. It also invalidates ID tokens that were
    issued before it."""

    email: str
    at: Nanos
    #: Time of the last deletion of a service account with this address; None = never deleted. The account's
    #: jobs from before the deletion are rejected, too.
    deleted: Nanos | None = None


class AccessBook(Struct, frozen=True):
    """All data that access decisions depend on. Immutable."""

    #: Tokens by digest.
    tokens: Mapping[str, Token] = field(default_factory=dict[str, Token])
    policy: Policy = field(default_factory=Policy)
    projects: Mapping[str, Project] = field(default_factory=dict[str, Project])
    #: Service accounts by e-mail address.
    accounts: Mapping[str, ServiceAccount] = field(default_factory=dict[str, ServiceAccount])
    #: Keys by ID.
    keys: Mapping[str, AccountKey] = field(default_factory=dict[str, AccountKey])
    #: Revocations by e-mail address.
    revocations: Mapping[str, Revocation] = field(default_factory=dict[str, Revocation])

    def with_token(self, token: Token) -> "AccessBook":
        return replace(self, tokens={**self.tokens, token.digest: token})

    def without_tokens(self, digests: Iterable[str]) -> "AccessBook":
        gone = frozenset(digests)
        kept = {digest: token for digest, token in self.tokens.items() if digest not in gone}
        return replace(self, tokens=kept)

    def with_revocations(self, emails: Iterable[str], now: Nanos) -> "AccessBook":
        known = self.revocations
        out = {email: replace(known.get(email, Revocation(email, now)), at=now) for email in emails}
        return replace(self, revocations={**known, **out})

    def with_grants(self, project: str, grants: Iterable[Grant]) -> "AccessBook":
        """Return the book with these grants in place of a project's grants. Raises FailedPrecondition for
        grants in a deleted project, since they would allow access to its former contents."""
        if (known := self.projects.get(project)) and known.deleted and (grants := tuple(grants)):
            raise FailedPrecondition(
                f"The project {project} was deleted and its contents are kept. Choose another project, or "
                f"restore this one: gcloud projects undelete {project}."
            )
        return replace(self, policy=self.policy.with_project(project, grants))

    def with_project(self, project: Project) -> "AccessBook":
        return replace(self, projects={**self.projects, project.id: project})

    def without_project(self, project: str, now: Nanos) -> "AccessBook":
        """Return the book without a project's grants and service accounts, and with the project marked as
        deleted."""
        book = self.with_grants(project, ())
        for account in self.accounts.values():
            if account.project == project:
                book = book.without_account(account.email, now)
        known = self.projects.get(project, Project(project, now))
        return book.with_project(replace(known, deleted=now))

    def with_account(self, account: ServiceAccount) -> "AccessBook":
        return replace(self, accounts={**self.accounts, account.email: account})

    def without_account(self, email: str, now: Nanos) -> "AccessBook":
        """Return the book without a service account and without its keys, tokens and grants. A new account
        with the same address therefore inherits none of them."""
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
            revocations={**self.revocations, email: Revocation(email, now, deleted=now)},
        )

    def with_key(self, key: AccountKey) -> "AccessBook":
        return replace(self, keys={**self.keys, key.id: key})

    def without_key(self, id_: str) -> "AccessBook":
        return replace(self, keys={known: key for known, key in self.keys.items() if known != id_})


FILE: Final = "access.json"
"""Name of the `AccessFile` in the data directory."""

Documents = Mapping[tuple[str, str], bytes]
"""The entries of a book as JSON, by (kind, key)."""

_E = TypeVar("_E", bound=Struct)


def documents(book: AccessBook) -> dict[tuple[str, str], bytes]:
    """Return the entries of a book as JSON, by (kind, key)."""
    grants = {f"{grant.project}/{grant.role}/{grant.member}": grant for grant in book.policy.grants}
    tables: Mapping[str, Mapping[str, Struct]] = {
        "token": book.tokens,
        "project": book.projects,
        "account": book.accounts,
        "key": book.keys,
        "signed_out": book.revocations,
        "grant": grants,
    }
    return {
        (kind, key): msgspec.json.encode(entry)
        for kind, table in tables.items()
        for key, entry in table.items()
    }


def book_of(stored: Documents) -> AccessBook:
    """Return the book with these entries. Raises ValueError for an unreadable entry."""
    by_kind: dict[str, dict[str, bytes]] = {}
    for (kind, key), content in stored.items():
        by_kind.setdefault(kind, {})[key] = content

    def entries(kind: str, of: type[_E]) -> dict[str, _E]:
        decode = msgspec.json.Decoder(of).decode
        return {key: decode(content) for key, content in by_kind.get(kind, {}).items()}

    # msgspec reports an unreadable entry as a subclass of ValueError.
    return AccessBook(
        entries("token", Token),
        Policy(entries("grant", Grant).values()),
        entries("project", Project),
        entries("account", ServiceAccount),
        entries("key", AccountKey),
        entries("signed_out", Revocation),
    )


class AccessFile(Struct, frozen=True):
    """The file `FILE`, from which the bucket process reads the access book and the digest of the token of the
    service's owner."""

    #: SHA-256 of the token of the service's owner, in hexadecimal digits.
    owner: str
    #: (kind, key, content) of each entry.
    entries: Sequence[tuple[str, str, msgspec.Raw]]

    @classmethod
    def of(cls, owner: str, stored: Documents) -> "AccessFile":
        return cls(owner, [(*name, msgspec.Raw(content)) for name, content in stored.items()])

    def book(self) -> AccessBook:
        """Return the book in the file. Raises ValueError for an unreadable entry."""
        return book_of({(kind, key): bytes(content) for kind, key, content in self.entries})
