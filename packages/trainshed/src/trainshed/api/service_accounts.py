"""Service accounts and their keys for gcloud and Google's libraries (IAM, `iam` v1), and token exchanges
(`iamcredentials` v1, RFC 7523).

Service accounts receive roles in projects, as users do (`api.projects`).
"""

import asyncio
import base64
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainshed.access import account_tokens
from trainshed.access.account_tokens import GRANT, LIFETIME
from trainshed.access.book import AccessBook, AccountKey, ServiceAccount
from trainshed.access.permissions import authorize
from trainshed.access.policy import member_fault, member_of
from trainshed.access.principals import Bearer
from trainshed.api.calls.call import JsonCall, JsonHandler, JsonMethods
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.services import Authenticate, Services
from trainshed.api.resources.jobs import notify_jobs
from trainshed.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Violation,
)
from trainshed.core.names import normalize_email
from trainshed.core.requests import Faults
from trainshed.core.units import whole_second
from trainshed.httpd.hosts import name_of
from trainshed.store.audit import set_subject

_IAM: Final = "google.iam.admin.v1.IAM"
_ID: Final = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_MAX_KEYS: Final = 10
"""Maximum number of keys of an account. The public service has the same limit."""
_SECONDS: Final = re.compile(r"([1-9][0-9]{0,5})(?:\.0*)?s")
_NO_EXPIRY: Final = "9999-12-31T23:59:59Z"
_ALL_PROJECTS: Final = "-"
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"


_Text = Annotated[str, msgspec.Meta(max_length=256)]


class _AccountTexts(Struct, rename="camel"):
    """The display name and description that a request sets for an account; None = not set."""

    display_name: _Text | None = None
    description: _Text | None = None


async def create(call: JsonCall) -> dict[str, Any]:
    """Create a service account. Raises InvalidRequest and AlreadyExists."""
    project = ProjectName.parse(f"projects/{call.names['project']}", field="name").project_id
    account_id = str(call.body.get("accountId") or "")
    faults = Faults()
    if not _ID.fullmatch(account_id):
        text = (
            f"{account_id!r} is not 6 to 30 characters of a-z, 0-9 and '-'. Start with a letter "
            "and do not end with '-'."
        )
        faults.add("accountId", text)
    email = f"{account_id}@{project}.iam.gserviceaccount.com"
    # Reject projects with capitals, because policies contain members in lower case. The address of an account
    # in a project with capitals could be equal to that of an account in another project, and get its roles.
    if project != project.lower() or member_fault(member_of(f"a@{email.partition('@')[2]}")):
        text = (
            f"{project!r} contains a capital, ':' or '_'. Addresses of accounts cannot contain "
            "these: use another project."
        )
        faults.add("name", text)
    account = _with_texts(call, ServiceAccount(email, project, call.services.now()), faults)

    def add(book: AccessBook) -> AccessBook:
        if email in book.accounts:
            raise AlreadyExists(f"The service account {email} already exists. Use another accountId.")
        return book.with_account(account)

    await call.services.access.change(add, project, _name(project, email))
    return _view(account)


async def list_(call: JsonCall) -> dict[str, Any]:
    """List the service accounts of a project. All of them are on one page."""
    accounts = call.services.access.book.accounts.values()
    own = [account for account in accounts if account.project == call.names["project"]]
    return {"accounts": [_view(account) for account in sorted(own, key=lambda known: known.email)]}


async def get(call: JsonCall) -> dict[str, Any]:
    return _view(_account(call))


async def update(call: JsonCall) -> dict[str, Any]:
    """Change an account's display name and description. Raises InvalidRequest and NotFound."""
    paths = [path for path in str(call.body.get("updateMask") or "").split(",") if path]
    mask = read_update_mask(paths, _AccountTexts.__struct_fields__)
    await _change(call, lambda book, now: book.with_account(_with_texts(call, now, Faults(), mask)))
    return _view(_account(call))


async def set_disabled(disabled: bool, call: JsonCall) -> dict[str, Any]:
    """Disable or enable an account. Its tokens are then rejected or accepted. Raises NotFound."""
    email, new_state = _account(call).email, "disabled" if disabled else "enabled again"
    await _change(call, lambda book, now: book.with_account(replace(now, disabled=disabled)))
    await notify_jobs(call.services, (email,), new_state)
    return {}


async def delete(call: JsonCall) -> dict[str, Any]:
    """Delete an account with its keys, tokens and roles. Raises NotFound."""
    email, now = _account(call).email, call.services.now()
    await _change(call, lambda book, _: book.without_account(email, now))
    await notify_jobs(call.services, (email,), "deleted")
    return {}


async def create_key(call: JsonCall) -> dict[str, Any]:
    """Create a key. Only this response contains the private key, in the form of a credentials file of
    Google's clients. Raises NotFound, InvalidRequest and FailedPrecondition."""
    account = _account(call)
    kind = call.body.get("privateKeyType") or "TYPE_GOOGLE_CREDENTIALS_FILE"
    if kind != "TYPE_GOOGLE_CREDENTIALS_FILE":
        text = "Only TYPE_GOOGLE_CREDENTIALS_FILE (json) is supported. Omit the field."
        raise InvalidRequest((Violation("privateKeyType", text),))
    public, private = await asyncio.to_thread(account_tokens.new_key)
    key_id = sha256(public.encode()).hexdigest()[:40]
    host = name_of(urlsplit(call.root).netloc)
    key = AccountKey(key_id, account.email, public, call.services.now(), host)

    def add(book: AccessBook, account: ServiceAccount) -> AccessBook:
        if sum(known.email == account.email for known in book.keys.values()) >= _MAX_KEYS:
            raise FailedPrecondition(
                f"{account.email} already has the maximum of {_MAX_KEYS} keys. Delete one first (gcloud "
                "iam service-accounts keys delete)."
            )
        return book.with_key(key)

    await _change(call, add, key=key_id)
    file = {
        "type": "service_account",
        "project_id": account.project,
        "private_key_id": key_id,
        "private_key": private,
        "client_email": account.email,
        "client_id": _unique_id(account),
        "auth_uri": f"{call.root}/auth",
        "token_uri": f"{call.root}/token",
        "universe_domain": "googleapis.com",
    }
    content = base64.b64encode(json.dumps(file, indent=2).encode()).decode()
    return {**_key_view(call, key), "privateKeyType": kind, "privateKeyData": content}


async def list_keys(call: JsonCall) -> dict[str, Any]:
    email = _account(call).email
    keys = [key for key in call.services.access.book.keys.values() if key.email == email]
    return {"keys": [_key_view(call, key) for key in sorted(keys, key=lambda key: key.created)]}


async def get_key(call: JsonCall) -> dict[str, Any]:
    return _key_view(call, _key(call))


async def delete_key(call: JsonCall) -> dict[str, Any]:
    """Delete a key. Tokens that were signed with it are no longer accepted. Raises NotFound."""
    await _change(call, lambda book, _: book.without_key(_key(call).id), key=call.names["key"])
    return {}


async def generate_access_token(call: JsonCall) -> dict[str, Any]:
    """Return an access token of an account. The caller must have the permission to impersonate the account.
    Raises NotFound, InvalidRequest and FailedPrecondition."""
    account = _account(call)
    lifetime = _SECONDS.fullmatch(str(call.body.get("lifetime") or f"{LIFETIME}s"))
    seconds = int(lifetime[1]) if lifetime else 0
    if not 0 < seconds <= LIFETIME:
        text = f"The lifetime must be a number of seconds followed by s, at most {LIFETIME}s."
        raise InvalidRequest((Violation("lifetime", text),))
    token = call.services.access.origin_of(call.principal)
    # Reject tokens from an impersonation. Otherwise a new token would remain valid longer than the token for
    # which it was exchanged.
    if call.body.get("delegates") or (isinstance(token, Bearer) and token.borrower):
        text = (
            "Chains of accounts are not supported. Request the token with your own token and a "
            "role on the account."
        )
        raise InvalidRequest((Violation("delegates", text),))
    if account.disabled:
        raise FailedPrecondition(
            f"The service account {account.email} is disabled. Run `gcloud iam service-accounts enable "
            f"{account.email}`."
        )
    groups = call.services.access.book.policy.groups_with_roles(token.groups) if token is not None else ()
    key = token.key if isinstance(token, Bearer) else None
    bearer = Bearer(account.email, key, call.principal.email, by_groups=groups)
    set_subject(account.project, _name(account.project, account.email))
    now = call.services.now() // 10**9
    return {
        "accessToken": call.services.access.mint(bearer, seconds),
        "expireTime": f"{whole_second(now + seconds)}Z",
    }


async def exchange_token(
    services: Services, authenticate: Authenticate, form: bytes
) -> tuple[int, dict[str, Any]]:
    """Return (HTTP status, JSON response) for a form. The form contains an assertion that was signed with an
    account's key, or an ID token of an issuer (RFC 8693)."""
    fields = parse_qs(form.decode("utf-8", "replace"))
    if fields.get("grant_type") == [_TOKEN_EXCHANGE]:
        return await _exchange_id_token(services, authenticate, fields.get("subject_token", [""])[0])
    if fields.get("grant_type") != [GRANT]:
        text = f"This grant_type is not supported. Use {GRANT} or {_TOKEN_EXCHANGE}."
        return 400, {"error": "unsupported_grant_type", "error_description": text}
    assertion = fields.get("assertion", [""])[0]
    try:
        bearer = services.access.read_assertion(assertion)
    except Unauthenticated as error:
        return 400, {"error": "invalid_grant", "error_description": str(error)}
    token = services.access.mint(bearer, LIFETIME)
    return 200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME}


async def _exchange_id_token(
    services: Services, authenticate: Authenticate, id_token: str
) -> tuple[int, dict[str, Any]]:
    """Return the response for an ID token. The access token in the response is the ID token itself, which the
    service accepts."""
    try:
        bearer = (await authenticate(f"Bearer {id_token}")).credential
        if not isinstance(bearer, Bearer) or not bearer.issuer:
            raise Unauthenticated(
                "The subject token is not an ID token. Get an ID token from an issuer in the settings."
            )
    except Unauthenticated as error:
        return 400, {"error": "invalid_request", "error_description": str(error)}
    except Unavailable as error:
        return 503, {"error": "temporarily_unavailable", "error_description": str(error)}
    return 200, {
        "access_token": id_token,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": bearer.expires - services.now() // 10**9,
    }


_ACCOUNTS: Final = "/v1/projects/{project}/serviceAccounts"
_ACCOUNT: Final = f"{_ACCOUNTS}/{{account}}"
_METHODS: Final[JsonMethods] = {
    ("POST", _ACCOUNTS): (f"{_IAM}.CreateServiceAccount", create),
    ("GET", _ACCOUNTS): (f"{_IAM}.ListServiceAccounts", list_),
    ("GET", _ACCOUNT): (f"{_IAM}.GetServiceAccount", get),
    ("PATCH", _ACCOUNT): (f"{_IAM}.PatchServiceAccount", update),
    ("DELETE", _ACCOUNT): (f"{_IAM}.DeleteServiceAccount", delete),
    ("POST", f"{_ACCOUNT}:disable"): (f"{_IAM}.DisableServiceAccount", partial(set_disabled, True)),
    ("POST", f"{_ACCOUNT}:enable"): (f"{_IAM}.EnableServiceAccount", partial(set_disabled, False)),
    ("POST", f"{_ACCOUNT}/keys"): (f"{_IAM}.CreateServiceAccountKey", create_key),
    ("GET", f"{_ACCOUNT}/keys"): (f"{_IAM}.ListServiceAccountKeys", list_keys),
    ("GET", f"{_ACCOUNT}/keys/{{key}}"): (f"{_IAM}.GetServiceAccountKey", get_key),
    ("DELETE", f"{_ACCOUNT}/keys/{{key}}"): (f"{_IAM}.DeleteServiceAccountKey", delete_key),
    ("POST", f"{_ACCOUNT}:generateAccessToken"): (
        "google.iam.credentials.v1.IAMCredentials.GenerateAccessToken",
        generate_access_token,
    ),
}


async def _authorize_and_call(handler: JsonHandler, call: JsonCall) -> dict[str, Any]:
    """Execute a call if its principal has the permission in the account's project. Raises PermissionDenied.

    A request may omit the account's project (`projects/-`). Callers without the permission must not learn
    whether the account exists.
    """
    project = call.names["project"]
    if project == _ALL_PROJECTS:
        name = normalize_email(call.names.get("account", ""))
        accounts = call.services.access.book.accounts.values()
        account = next((known for known in accounts if name in _names(known)), None)
        project = account.project if account is not None else ""
    set_subject(project, call.names.get("account", ""))
    try:
        authorize(call.principal, call.method, (project,))
    except PermissionDenied:
        if call.names["project"] == _ALL_PROJECTS:
            raise PermissionDenied(
                f"{call.principal.email} may not call {call.method} on "
                f"{call.names['account'][:200]!r}, or the service account does not exist. "
                "Check the address, or ask an owner of its project for a role."
            ) from None
        raise
    return await handler(replace(call, names={**call.names, "project": project}))


METHODS: Final[JsonMethods] = {
    place: (name, partial(_authorize_and_call, handler)) for place, (name, handler) in _METHODS.items()
}


async def _change(
    call: JsonCall, update_book: Callable[[AccessBook, ServiceAccount], AccessBook], **detail: object
) -> None:
    """Change the account in the path of a request. `update_book`: returns the new access book for the current
    book and the current account. Raises NotFound."""
    account = _account(call)
    name = _name(account.project, account.email)
    await call.services.access.change(
        lambda book: update_book(book, _account(call)), account.project, name, detail
    )


def _name(project: str, email: str) -> str:
    return f"projects/{project}/serviceAccounts/{email}"


def _names(account: ServiceAccount) -> tuple[str, str]:
    return normalize_email(account.email), _unique_id(account)


def _account(call: JsonCall) -> ServiceAccount:
    """Return the account that the path of a request specifies by address or unique ID. Raises NotFound."""
    name, project = normalize_email(call.names["account"]), call.names["project"]
    for account in call.services.access.book.accounts.values():
        if account.project == project and name in _names(account):
            return account
    where = f" in the project {project}" if project else ""
    create = f"`gcloud iam service-accounts create NAME --project={project or 'PROJECT'}`"
    raise NotFound(f"The service account {name[:200]!r} does not exist{where}. Create it: {create}")


def _key(call: JsonCall) -> AccountKey:
    """Return the account key that the path of a request specifies. Raises NotFound."""
    key = call.services.access.book.keys.get(call.names["key"])
    if key is None or key.email != _account(call).email:
        raise NotFound(
            f"This service account has no key {call.names['key'][:200]!r}. List the account's keys first."
        )
    return key


def _with_texts(
    call: JsonCall, account: ServiceAccount, faults: Faults, mask: Sequence[str] = ()
) -> ServiceAccount:
    """Return the account with the display name and description of a request. If the request has an update
    mask, only texts in the mask are changed, and those that the request omits become empty. Raises
    InvalidRequest with all errors, including `faults`."""
    texts = _AccountTexts()
    try:
        texts = msgspec.convert(call.body.get("serviceAccount") or {}, _AccountTexts)
    except msgspec.ValidationError as error:
        faults.add("serviceAccount", f"{error}.")
    faults.refuse()
    fields = mask or [name for name in texts.__struct_fields__ if getattr(texts, name) is not None]
    return replace(account, **{name: getattr(texts, name) or "" for name in fields})


def _view(account: ServiceAccount) -> dict[str, Any]:
    texts = {"displayName": account.display_name, "description": account.description}
    return {
        "name": _name(account.project, account.email),
        "projectId": account.project,
        "uniqueId": _unique_id(account),
        "email": account.email,
        "oauth2ClientId": _unique_id(account),
        **{name: text for name, text in texts.items() if text},
        **({"disabled": True} if account.disabled else {}),
    }


def _key_view(call: JsonCall, key: AccountKey) -> dict[str, Any]:
    return {
        "name": f"{_name(call.names['project'], key.email)}/keys/{key.id}",
        "keyAlgorithm": "KEY_ALG_RSA_2048",
        "keyOrigin": "GOOGLE_PROVIDED",
        "keyType": "USER_MANAGED",
        "validAfterTime": f"{whole_second(key.created // 10**9)}Z",
        "validBeforeTime": _NO_EXPIRY,
    }


def _unique_id(account: ServiceAccount) -> str:
    """Return the 21-digit ID that the account has in the public API. It changes if the account is deleted and
    created again."""
    digest = sha256(f"{account.email} {account.created}".encode()).digest()
    return f"1{int.from_bytes(digest[:8]) % 10**20:020d}"
