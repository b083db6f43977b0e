"""Tokens, roles and the audit log (docs/team.md), and the secrets of projects, whose values no method returns
(spec/operations#secrets). Without `project`, methods of secrets use the service's own project.
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
_LONGEST: Final = 3650
"""Maximum lifetime of a token in days, unless it is valid until it is revoked."""
_LONGEST_NOTE: Final = 200
_MOST_TOKENS: Final = 20
"""Maximum number of tokens of one user. It reveals scripts that create a token on each run."""
_OWN_NOTE: Final = "for the command line"
_PAGE: Final = 500
_READ: Final = PERMISSIONS["trainshed.v1.Access.Policy"]
_REVOKE: Final = PERMISSIONS["trainshed.v1.Tokens.Revoke"]


async def who_am_i(call: JsonCall) -> records.Identity:
    """`GET /trainshed/v1/whoami`: return the caller's identity and roles."""
    principal = call.principal
    if principal.program is not None:
        return records.Identity(email=principal.email)
    if principal.email == OWNER_EMAIL:
        own = (
            records.Grant(project=_ALL_PROJECTS, role="roles/owner", member=f"user:{OWNER_EMAIL}"),
        )
        return records.Identity(email=principal.email, grants=own)
    book = call.services.access.book
    token = call.services.access.origin_of(principal)
    groups, issuer = (token.groups, token.issuer) if token is not None else ((), None)
    grants = sorted(book.policy.grants_of(principal.email, groups))
    return records.Identity(
        email=principal.email, grants=tuple(map(_grant_view, grants)), issuer=issuer or ""
    )


async def list_tokens(call: JsonCall) -> records.TokenList:
    """`GET /trainshed/v1/tokens[?email=E]`: list the tokens that the caller may revoke, without
    their secret values."""
    email = normalize_email(call.parameter("email"))
    tokens = _revocable(call, call.services.access.book)
    chosen = [token for token in tokens if email in ("", token.email)]
    chosen.sort(key=lambda token: (token.created, token.digest))
    return records.TokenList(tokens=tuple([_token_view(call, token) for token in chosen]))


async def create_token(call: JsonCall) -> records.IssuedToken:
    """`POST /trainshed/v1/tokens`: create a token and return it once. With `role`, its user also gets that
    role, in the same transaction."""
    new, faults = call.sent(records.NewToken)
    email, days, note, role = normalize_email(new.email), new.days, new.note, new.role
    if fault := member_fault(member_of(email)):
        faults.add("email", fault)
    if email == OWNER_EMAIL:
        faults.add("email", "The owner's token is in the file owner.token of the data directory.")
    if not 0 <= days <= _LONGEST:
        faults.add("days", f"They must be at least 0 and at most {_LONGEST}.")
    if len(note) > _LONGEST_NOTE or not note.isprintable():
        faults.add("note", f"It must be one line of at most {_LONGEST_NOTE} characters.")
    if role and (fault := role_fault(role)):
        faults.add("role", fault)
    # Without a role, the project has no effect.
    project = _project(call, new.project, faults) if role else new.project
    faults.refuse()
    token, now = new_token(), call.services.now()
    stored = Token(digest_of(token), email, now, int(now + days * _DAY) if days else None, note)
    grant = Grant(project, role, member_of(email)) if role else None

    def add(book: AccessBook) -> AccessBook:
        own = (known for known in book.tokens.values() if known.email == email)
        book = book.without_tokens(
            [known.digest for known in own if known.expires and known.expires <= now]
        )
        if sum(known.email == email for known in book.tokens.values()) >= _MOST_TOKENS:
            raise FailedPrecondition(
                f"{email} already has the maximum of {_MOST_TOKENS} tokens. Revoke one (trainshed tokens "
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
    return _issued(call, stored, token)


async def create_own_token(call: JsonCall) -> records.IssuedToken:
    """`POST /trainshed/v1/tokens:own`: create a token for the command line of a user who signed in with an
    issuer. It has the same rights and expires with the sign-in. With too many, the oldest is revoked. Raises
    FailedPrecondition for other callers."""
    signed_in = call.services.access.origin_of(call.principal)
    if not isinstance(signed_in, Token) or not signed_in.issuer or signed_in.note == _OWN_NOTE:
        raise FailedPrecondition(
            "Only users who signed in with an issuer receive a token here. You already have one: use it "
            "with `trainshed login URL --token TOKEN`."
        )
    token = new_token()
    stored = replace(
        signed_in, digest=digest_of(token), created=call.services.now(), note=_OWN_NOTE
    )

    def add(book: AccessBook) -> AccessBook:
        if signed_in.digest not in book.tokens:
            raise FailedPrecondition("This sign-in has ended. Sign in again.")
        of_person = [known for known in book.tokens.values() if known.email == stored.email]
        own = [known for known in of_person if known.issuer and known.note == _OWN_NOTE]
        own.sort(key=lambda known: -known.created)
        oldest = own[_MOST_TOKENS - 1 :]
        return book.without_tokens(known.digest for known in oldest).with_token(stored)

    await call.services.access.change(add, "", stored.email, {"token": stored.id})
    return _issued(call, stored, token)


def _issued(call: JsonCall, stored: Token, token: str) -> records.IssuedToken:
    return records.IssuedToken(**asdict(_token_view(call, stored)), token=token)


async def revoke_token(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/tokens/{token}`: revoke a token by its id, or all of a person by an e-mail
    address. In force when this returns. Raises NotFound."""
    target = call.target
    # ID tokens are not stored. Programs have other tokens than their account.
    is_own = call.principal.program is None and normalize_email(target) == call.principal.email
    may = is_own or _REVOKE in call.principal.rights.everywhere
    is_somebody = call.services.access.has_issuers and not member_fault(member_of(target))
    unseen = {normalize_email(target)} if may and is_somebody else set[str]()

    def remove(book: AccessBook) -> AccessBook:
        names = {target, normalize_email(target)}
        gone = [t for t in _revocable(call, book) if names & {t.id, t.email}]
        if not gone and not unseen:
            raise NotFound(
                f"You cannot revoke a token {target[:200]!r}. Use an ID or an e-mail address from "
                "`trainshed tokens list`."
            )
        detail["tokens"] = [token.id for token in gone]
        detail["of"] = sorted({token.email for token in gone})
        left = book.without_tokens(token.digest for token in gone)
        # When a command line signs out, all other tokens stay valid.
        out = {token.email for token in gone if token.note != _OWN_NOTE} | unseen
        return left.with_signed_out(out, call.services.now())

    detail: dict[str, object] = {}
    await call.services.access.change(remove, "", target, detail)
    return Nothing()


def _revocable(call: JsonCall, book: AccessBook) -> list[Token]:
    """Return all tokens, or the caller's own; none to programs, which have others than their account."""
    principal, tokens = call.principal, book.tokens.values()
    if _REVOKE in principal.rights.everywhere:
        return list(tokens)
    is_person = principal.program is None
    return [token for token in tokens if is_person and token.email == principal.email]


async def policy(call: JsonCall) -> records.GrantList:
    """`GET /trainshed/v1/access[?project=P]`: list who has which role in a project, and in all; `-` = in all
    projects and in each."""
    project = _queried(call)
    grants = call.services.access.book.policy.grants
    chosen = [grant for grant in grants if not project or grant.project == project]
    if project and _READ in call.principal.rights.everywhere:
        chosen += [grant for grant in grants if not grant.project]
    return records.GrantList(grants=tuple([_grant_view(grant) for grant in sorted(chosen)]))


async def change(call: JsonCall) -> records.Grant:
    """`POST /trainshed/v1/access:change`: give a member a role, or take it away. Raises NotFound for a role
    that the member does not have."""
    wanted, faults = call.sent(records.GrantChange)
    role, member, is_removed = wanted.role, wanted.member, wanted.remove
    if fault := role_fault(role):
        faults.add("role", fault)
    if fault := member_fault(member):
        faults.add("member", fault)
    project = _project(call, wanted.project, faults)
    faults.refuse()
    grant = Grant(project, role, member)
    member = grant.member

    def to(book: AccessBook) -> AccessBook:
        grants = book.policy.of_project(project)
        if is_removed and grant not in grants:
            raise NotFound(
                f"{member} does not have the role {role} in {project or 'all projects'}. List all roles "
                "with `trainshed grants list`."
            )
        return book.with_grants(project, grants - {grant} if is_removed else {*grants, grant})

    detail: dict[str, object] = {"removed" if is_removed else "added": [f"{role} {member}"]}
    where = f"projects/{project}" if project else ""
    await call.services.access.change(to, project, where, detail)
    return _grant_view(grant)


async def audit(call: JsonCall) -> records.AuditPage:
    """`GET /trainshed/v1/audit[?project=P&pageToken=T]`: return what was changed, newest first; `-` = in all
    projects, and of the service itself."""
    project = _queried(call)
    before = call.number("pageToken", None)
    rows = await call.services.access.audited(project or None, before, _PAGE + 1)
    if not rows:
        reject_numbers((project,))
    page = rows[:_PAGE]
    return records.AuditPage(
        entries=tuple([_entry(row) for row in page]),
        next_page_token=str(page[-1].seq) if len(rows) > _PAGE else "",
    )


def _project(call: JsonCall, project: str, faults: Faults) -> str:
    """Return a project's id, for "" the service's own; "" for `-`, which means all."""
    return "" if project == _ALL_PROJECTS else read_project(call, project, faults)


def _queried(call: JsonCall) -> str:
    """Return the same of the project that the query names. Raises InvalidRequest."""
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
    return records.Grant(
        project=grant.project or _ALL_PROJECTS, role=grant.role, member=grant.member
    )


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
    """`POST /trainshed/v1/secrets`: store a new version, which programs get from now on unless a job names
    another one. Raises FailedPrecondition (the key is missing), Unavailable."""
    services, (sent, faults) = call.services, call.sent(records.SecretValue)
    project = read_project(call, sent.project, faults)
    name, value = sent.name, sent.value
    if fault := name_fault(name):
        faults.add("name", fault)
    if fault := value_fault(value):
        faults.add("value", fault)
    faults.refuse()
    sealer = services.sealer
    try:
        # A new key could not decrypt the stored secrets.
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
            f"The key of the secrets cannot be stored ({failure.strerror}), so nothing was stored. Free "
            "some space, and send the request again."
        ) from None
    return records.StoredSecret(
        project=project, name=name, version=stored.version, created=text_micros(stored.created)
    )


async def delete_secret(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/secrets/{name}[?project=P][&version=N]`: delete a version, or all of them. Raises
    NotFound. Running programs keep what they were given; jobs that name it can no longer start."""
    faults = Faults()
    project = read_project(call, call.parameter("project"), faults)
    version = call.number("version", None)
    if version == 0:
        faults.add("version", "Versions begin at 1. Omit the version to delete all versions.")
    faults.refuse()
    await call.services.secrets.delete(project, call.target, version)
    return Nothing()


def _secret_view(name: str, versions: Iterable[SecretVersion]) -> records.Secret:
    every = tuple(versions)
    return records.Secret(
        name=name,
        created=text_micros(every[0].created),
        versions=tuple(
            records.SecretVersion(version=version.version, created=text_micros(version.created))
            for version in every
        ),
    )
