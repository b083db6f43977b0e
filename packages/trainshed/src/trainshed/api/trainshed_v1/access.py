"""Tokens, roles and the audit log (docs/team.md), and the secrets of projects, whose values no method returns
(spec/operations#secrets).

In methods for secrets, the default of `project` is the service's own project.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from msgspec.structs import asdict, replace

from trainshed.access.book import AccessBook, Token
from trainshed.access.permissions import PERMISSIONS
from trainshed.access.policy import Grant, member_fault, role_fault
from trainshed.access.principals import member_of
from trainshed.access.sealing import KeyUnusable, SecretId
from trainshed.access.tokens import OWNER_EMAIL, digest_of, new_token
from trainshed.api.calls.parents import reject_numbers
from trainshed.api.trainshed_v1.call import JsonCall, queried_project, read_project
from trainshed.core.errors import FailedPrecondition, NotFound, Unavailable
from trainshed.core.names import normalize_email
from trainshed.core.requests import Faults
from trainshed.core.secrets import name_fault, value_fault
from trainshed.core.units import text_micros
from trainshed.store.audit import AuditRow
from trainshed.store.records import SecretVersion
from trainshed.wire.status import StatusCode
from trainshed.wire.trainshed_v1 import access as records
from trainshed.wire.trainshed_v1.record import Nothing

_ALL_PROJECTS: Final = "-"
_DAY: Final = 24 * 3600 * 10**9
_MAX_DAYS: Final = 3650
"""Maximum lifetime of a token in days. A token without an expiry time has no limit."""
_MAX_NOTE_LENGTH: Final = 200
_MAX_TOKENS: Final = 20
"""Maximum number of tokens of one user. The limit reveals scripts that create a new token on each run."""
_COMMAND_LINE_NOTE: Final = "for the command line"
_PAGE_SIZE: Final = 500
_READ_PERMISSION: Final = PERMISSIONS["trainshed.v1.Access.Policy"]
_REVOKE_PERMISSION: Final = PERMISSIONS["trainshed.v1.Tokens.Revoke"]


async def who_am_i(call: JsonCall) -> records.Identity:
    """`GET /trainshed/v1/whoami`: return the caller's identity and roles."""
    principal = call.principal
    if principal.program is not None:
        return records.Identity(email=principal.email)
    if principal.email == OWNER_EMAIL:
        own = (records.Grant(project=_ALL_PROJECTS, role="roles/owner", member=f"user:{OWNER_EMAIL}"),)
        return records.Identity(email=principal.email, grants=own)
    book = call.services.access.book
    token = call.services.access.origin_of(principal)
    groups, issuer = (token.groups, token.issuer) if token is not None else ((), None)
    grants = sorted(book.policy.grants_of(principal.email, groups))
    return records.Identity(
        email=principal.email, grants=tuple(map(_grant_view, grants)), issuer=issuer or ""
    )


async def list_tokens(call: JsonCall) -> records.TokenList:
    """`GET /trainshed/v1/tokens[?email=E]`: list the tokens that the caller may revoke, without their secret
    values."""
    email = normalize_email(call.parameter("email"))
    tokens = _revocable_tokens(call, call.services.access.book)
    selected = [token for token in tokens if email in ("", token.email)]
    selected.sort(key=lambda token: (token.created, token.digest))
    return records.TokenList(tokens=tuple([_token_view(call, token) for token in selected]))


async def create_token(call: JsonCall) -> records.IssuedToken:
    """`POST /trainshed/v1/tokens`: create a token. Only this response contains the token. With `role`, also
    grant the role to the token's user, in the same transaction."""
    new, faults = call.read_body(records.NewToken)
    email, days, note, role = normalize_email(new.email), new.days, new.note, new.role
    if fault := member_fault(member_of(email)):
        faults.add("email", fault)
    if email == OWNER_EMAIL:
        faults.add("email", "The owner's token is in the file owner.token of the data directory.")
    if not 0 <= days <= _MAX_DAYS:
        faults.add("days", f"The lifetime must be 0 to {_MAX_DAYS} days.")
    if len(note) > _MAX_NOTE_LENGTH or not note.isprintable():
        faults.add("note", f"The note must be one line of at most {_MAX_NOTE_LENGTH} characters.")
    if role and (fault := role_fault(role)):
        faults.add("role", fault)
    # Check the project only if the request grants a role, because the project has no other effect.
    project = _project(call, new.project, faults) if role else new.project
    faults.refuse()
    token, now = new_token(), call.services.now()
    stored = Token(digest_of(token), email, now, int(now + days * _DAY) if days else None, note)
    grant = Grant(project, role, member_of(email)) if role else None

    def add(book: AccessBook) -> AccessBook:
        own = (existing for existing in book.tokens.values() if existing.email == email)
        book = book.without_tokens(
            [existing.digest for existing in own if existing.expires and existing.expires <= now]
        )
        if sum(existing.email == email for existing in book.tokens.values()) >= _MAX_TOKENS:
            raise FailedPrecondition(
                f"{email} already has the maximum of {_MAX_TOKENS} tokens. Revoke one (trainshed tokens "
                "list, trainshed tokens delete ID)."
            )
        added = book.with_token(stored)
        if grant is None:
            return added
        return added.with_grants(project, {*book.policy.of_project(project), grant})

    detail: dict[str, object] = {"for": email, "token": stored.id}
    if grant is not None:
        detail["added"] = [f"{role} in {project or 'all projects'}"]
    await call.services.access.change(add, project if grant else "", email, detail)
    return _issued_token(call, stored, token)


async def create_own_token(call: JsonCall) -> records.IssuedToken:
    """`POST /trainshed/v1/tokens:own`: create a command-line token for a user who has signed in by an issuer.
    The token has the rights of the sign-in and expires with it. If the user already has the maximum number of
    tokens, the oldest token is revoked. Raises FailedPrecondition for other callers."""
    signed_in = call.services.access.origin_of(call.principal)
    if not isinstance(signed_in, Token) or not signed_in.issuer or signed_in.note == _COMMAND_LINE_NOTE:
        raise FailedPrecondition(
            "Only users who signed in with an issuer receive a token here. You already have one: use "
            "your token with `trainshed login URL --token TOKEN`."
        )
    token = new_token()
    stored = replace(signed_in, digest=digest_of(token), created=call.services.now(), note=_COMMAND_LINE_NOTE)

    def add(book: AccessBook) -> AccessBook:
        if signed_in.digest not in book.tokens:
            raise FailedPrecondition("This sign-in has ended. Sign in again.")
        user_tokens = [existing for existing in book.tokens.values() if existing.email == stored.email]
        own = [
            existing for existing in user_tokens if existing.issuer and existing.note == _COMMAND_LINE_NOTE
        ]
        own.sort(key=lambda existing: -existing.created)
        oldest = own[_MAX_TOKENS - 1 :]
        return book.without_tokens(existing.digest for existing in oldest).with_token(stored)

    await call.services.access.change(add, "", stored.email, {"token": stored.id})
    return _issued_token(call, stored, token)


def _issued_token(call: JsonCall, stored: Token, token: str) -> records.IssuedToken:
    return records.IssuedToken(**asdict(_token_view(call, stored)), token=token)


async def revoke_token(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/tokens/{token}`: revoke a token by its ID, or all tokens of a user by the user's
    e-mail address. When the method returns, the tokens are invalid. Raises NotFound."""
    target = call.target
    # A revocation by address also covers ID tokens, which are not stored. It does not cover tokens of
    # programs, because they are not tokens of their service account.
    is_own = call.principal.program is None and normalize_email(target) == call.principal.email
    may = is_own or _REVOKE_PERMISSION in call.principal.rights.everywhere
    is_issuer_user = call.services.access.has_issuers and not member_fault(member_of(target))
    unlisted = {normalize_email(target)} if may and is_issuer_user else set[str]()

    def remove(book: AccessBook) -> AccessBook:
        names = {target, normalize_email(target)}
        revoked = [t for t in _revocable_tokens(call, book) if names & {t.id, t.email}]
        if not revoked and not unlisted:
            raise NotFound(
                f"The token {target[:200]!r} does not exist, or you may not revoke it. Use an ID or an "
                "e-mail address from `trainshed tokens list`."
            )
        detail["tokens"] = [token.id for token in revoked]
        detail["of"] = sorted({token.email for token in revoked})
        remaining = book.without_tokens(token.digest for token in revoked)
        # Exclude command-line tokens. If a user signs out in one command-line client, the user's other tokens
        # must remain valid.
        signed_out_emails = {token.email for token in revoked if token.note != _COMMAND_LINE_NOTE} | unlisted
        return remaining.with_revocations(signed_out_emails, call.services.now())

    detail: dict[str, object] = {}
    await call.services.access.change(remove, "", target, detail)
    return Nothing()


def _revocable_tokens(call: JsonCall, book: AccessBook) -> list[Token]:
    """Return the tokens that the caller may revoke: all tokens, or the caller's own tokens. A program may not
    revoke any token, because the tokens of its service account do not belong to the program."""
    principal, tokens = call.principal, book.tokens.values()
    if _REVOKE_PERMISSION in principal.rights.everywhere:
        return list(tokens)
    is_user = principal.program is None
    return [token for token in tokens if is_user and token.email == principal.email]


async def list_grants(call: JsonCall) -> records.GrantList:
    """`GET /trainshed/v1/access[?project=P]`: list the role grants in a project and in all projects. With the
    project `-`, list all grants, including those in single projects."""
    project = _queried_project(call)
    grants = call.services.access.book.policy.grants
    selected = [grant for grant in grants if not project or grant.project == project]
    if project and _READ_PERMISSION in call.principal.rights.everywhere:
        selected += [grant for grant in grants if not grant.project]
    return records.GrantList(grants=tuple([_grant_view(grant) for grant in sorted(selected)]))


async def change_grant(call: JsonCall) -> records.Grant:
    """`POST /trainshed/v1/access:change`: grant a role to a member, or revoke it. Raises NotFound for a role
    that the member does not have."""
    grant_change, faults = call.read_body(records.GrantChange)
    role, member, is_removed = grant_change.role, grant_change.member, grant_change.remove
    if fault := role_fault(role):
        faults.add("role", fault)
    if fault := member_fault(member):
        faults.add("member", fault)
    project = _project(call, grant_change.project, faults)
    faults.refuse()
    grant = Grant(project, role, member)
    member = grant.member

    def update_book(book: AccessBook) -> AccessBook:
        grants = book.policy.of_project(project)
        if is_removed and grant not in grants:
            raise NotFound(
                f"{member} does not have the role {role} in {project or 'all projects'}. List all roles "
                "with `trainshed grants list`."
            )
        return book.with_grants(project, grants - {grant} if is_removed else {*grants, grant})

    detail: dict[str, object] = {"removed" if is_removed else "added": [f"{role} {member}"]}
    where = f"projects/{project}" if project else ""
    await call.services.access.change(update_book, project, where, detail)
    return _grant_view(grant)


async def audit(call: JsonCall) -> records.AuditPage:
    """`GET /trainshed/v1/audit[?project=P&pageToken=T]`: list audit records, newest first. With the project
    `-`, list the records of all projects and of the service itself."""
    project = _queried_project(call)
    before = call.number("pageToken", None)
    rows = await call.services.access.audit_rows(project or None, before, _PAGE_SIZE + 1)
    if not rows:
        reject_numbers((project,))
    page = rows[:_PAGE_SIZE]
    return records.AuditPage(
        entries=tuple([_entry(row) for row in page]),
        next_page_token=str(page[-1].seq) if len(rows) > _PAGE_SIZE else "",
    )


def _project(call: JsonCall, project: str, faults: Faults) -> str:
    """Return the project ID as the access records store it. `project`: `-` = all projects, which are stored
    as ""; "" = the service's own project. Adds errors to `faults`."""
    return "" if project == _ALL_PROJECTS else read_project(call, project, faults)


def _queried_project(call: JsonCall) -> str:
    """Return the project ID of the query, as `_project` does. Raises InvalidRequest."""
    return "" if call.parameter("project") == _ALL_PROJECTS else queried_project(call)


def _token_view(call: JsonCall, token: Token) -> records.Token:
    return records.Token(
        id=token.id,
        email=token.email,
        created=text_micros(token.created),
        expires=text_micros(token.expires or 0),
        last_used=text_micros(call.services.access.uses.get(token.digest, 0)),
        note=token.note,
    )


def _grant_view(grant: Grant) -> records.Grant:
    return records.Grant(project=grant.project or _ALL_PROJECTS, role=grant.role, member=grant.member)


def _entry(row: AuditRow) -> records.AuditEntry:
    return records.AuditEntry(
        seq=row.seq,
        time=text_micros(row.at),
        who=row.record.who,
        acting_as=row.record.acting_as or "",
        method=row.record.method,
        project=row.project,
        resource=row.record.resource,
        source=row.record.source or "",
        detail=row.record.facts,
        answer=StatusCode.of(row.record.status).name,
        hash=row.hash.hex(),
    )


async def list_secrets(call: JsonCall) -> records.SecretList:
    """`GET /trainshed/v1/secrets[?project=P]`: list the project's secrets."""
    project = queried_project(call)
    stored = await call.services.secrets.versions(project)
    grouped = groupby(stored, key=lambda version: version.name)
    return records.SecretList(
        project=project, secrets=tuple(_secret_view(name, versions) for name, versions in grouped)
    )


async def set_secret(call: JsonCall) -> records.StoredSecret:
    """`POST /trainshed/v1/secrets`: store a new version of a secret. Programs that start later receive this
    version, unless their job selects another one. Raises FailedPrecondition if the encryption key is missing,
    and Unavailable."""
    services, (sent, faults) = call.services, call.read_body(records.SecretValue)
    project = read_project(call, sent.project, faults)
    name, value = sent.name, sent.value
    if fault := name_fault(name):
        faults.add("name", fault)
    if fault := value_fault(value):
        faults.add("value", fault)
    faults.refuse()
    sealer = services.sealer
    try:
        # If the key is missing but secrets exist, do not create a new key, because it could not decrypt these
        # secrets.
        if not sealer.has_key and await services.secrets.has_any():
            raise FailedPrecondition(sealer.missing_key_message())
        stored = await services.secrets.add(
            project,
            name,
            services.now(),
            lambda version: sealer.seal(value, SecretId(project, name, version)),
        )
    except KeyUnusable as failure:
        raise FailedPrecondition(str(failure)) from None
    except OSError as failure:
        raise Unavailable(
            f"The secret was not stored, because its encryption key cannot be written "
            f"({failure.strerror}). Free space on the service's disk, and send the request again."
        ) from None
    return records.StoredSecret(
        project=project, name=name, version=stored.version, created=text_micros(stored.created)
    )


async def delete_secret(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/secrets/{name}[?project=P][&version=N]`: delete one version or all versions of a
    secret. Running programs keep the values that they have received. Jobs that refer to a deleted version can
    no longer start. Raises NotFound."""
    faults = Faults()
    project = read_project(call, call.parameter("project"), faults)
    version = call.number("version", None)
    if version == 0:
        faults.add("version", "Versions start at 1. Omit the version to delete all versions.")
    faults.refuse()
    await call.services.secrets.delete(project, call.target, version)
    return Nothing()


def _secret_view(name: str, versions: Iterable[SecretVersion]) -> records.Secret:
    version_list = tuple(versions)
    return records.Secret(
        name=name,
        created=text_micros(version_list[0].created),
        versions=tuple(
            records.SecretVersion(version=version.version, created=text_micros(version.created))
            for version in version_list
        ),
    )
