"""Identifies the caller of a request by its listener, its token, or the key in its URL.

There are three listeners:

- A Unix socket for the relays of replicas. A relay identifies its program before the first byte of HTTP, so
  that the program cannot change its identity later.
- A Unix socket for the gateway in the API process. The gateway authenticates the caller and sends the
  identity in a header.
- The TCP port. It requires a token, or a key in the URL. The gateway has the same requirement.

The module stores no tokens. The service's token authority verifies them.
"""

import asyncio
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from trainshed.access.account_tokens import check_program, is_google_access_token, is_json_web_token
from trainshed.access.authentication_limits import SOURCE, SOURCE_HEADER
from trainshed.access.book import AccessFile
from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.access.policy import Grant, rights_of
from trainshed.access.principals import Bearer, Principal
from trainshed.access.tokens import TokenAuthority, token_in
from trainshed.buckets.callers import (
    UNKNOWN,
    Caller,
    UnreadableCaller,
    key_of_digest,
    reach_of,
    read_preamble,
)
from trainshed.buckets.errors import Forbidden, Unauthenticated, Unavailable
from trainshed.buckets.notices import Notices
from trainshed.buckets.signatures import Signature, verify
from trainshed.core.errors import Unauthenticated as UnknownToken
from trainshed.core.errors import Unavailable as NotNow
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.forwarding import NoResponse, exchange
from trainshed.httpd.hosts import Hosts
from trainshed.httpd.protocol import ConnectionGroups, GuardedProtocol, guarded_protocol
from trainshed.replica.system.unix_sockets import reachable
from trainshed.wire.trainshed_v1.access import Identity

LISTENER = "trainshed.listener"
CALLER = "trainshed.caller"
"""Keys of a connection's state: its listener and its caller. The application reads the state from the scope
of each request."""
_MAX_PREAMBLE = 4096
_RECHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of a long request's permission."""


class Listener(StrEnum):
    """The kind of listening socket on which a request arrived."""

    #: The Unix socket of the API process, which identifies the caller in a header.
    GATEWAY = "gateway"
    #: The Unix socket of the replicas' relays.
    REPLICA = "replica"
    #: The TCP port, which is open to all clients.
    PORT = "port"


def protocol(
    kinds: Mapping[object, Listener], groups: ConnectionGroups, notices: Notices
) -> type[GuardedProtocol]:
    """Return the server's protocol class. `kinds`: the listener by its socket's address. Default: PORT.
    `groups`: counts connections. `notices`: stores the notices that shims report."""

    class IdentifiedProtocol(guarded_protocol(groups)):
        """HTTP on a connection whose listener is known. A relay's connection starts with a preamble."""

        _waiting: bytearray | None = None
        #: The program and the notice that the connection reports. None on a connection for requests.
        _notice: tuple[JobClaims, str] | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
            super().connection_made(transport)
            listener = kinds.get(transport.get_extra_info("sockname"), Listener.PORT)
            self.app_state = {**self.app_state, LISTENER: listener}
            if listener is Listener.REPLICA:
                self._waiting = bytearray()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._notice is not None:
                notices.remove(*self._notice)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._notice is not None:
                return
            if self._waiting is None:
                super().data_received(data)
                return
            self._waiting += data
            line, end, rest = bytes(self._waiting).partition(b"\n")
            if not end and len(line) <= _MAX_PREAMBLE:
                return
            try:
                if len(line) > _MAX_PREAMBLE:
                    raise UnreadableCaller(
                        f"the first line of its connection has more than {_MAX_PREAMBLE} bytes"
                    )
                preamble = read_preamble(line)
            except UnreadableCaller as error:
                text = (
                    "This replica does not identify its program: an older version of the service started it. "
                    f"Start its job again. ({error})"
                )
                self.send_400_response(text.encode("ascii", "backslashreplace").decode())
                return
            self._waiting = None
            if preamble.notice and preamble.caller.program is not None:
                self._notice = preamble.caller.program, preamble.notice
                self._counter.mark_active(self)
                notices.add(*self._notice)
                return
            self.scheme = preamble.scheme
            self.app_state = {**self.app_state, CALLER: preamble.caller}
            if rest:
                super().data_received(rest)

    return IdentifiedProtocol


def listener_of(state: Mapping[str, Any]) -> Listener:
    return state.get(LISTENER, Listener.PORT)


class PermissionRecheck:
    """Checks the permission of a long request again, at most once per second while data moves. A revocation
    therefore also ends running requests. After a signed token has expired, running requests continue without
    further checks, as on the public service. Clients refresh their tokens between requests."""

    def __init__(self, check: Callable[[], Awaitable[None]], authorization: str | None) -> None:
        """`check`: raises BucketsError if the caller has lost the permission. `authorization`: the header, if
        it contains the credentials."""
        self._check = check
        self._authorization = authorization or ""
        self._due = time.monotonic() + _RECHECK_INTERVAL

    async def __call__(self) -> None:
        if time.monotonic() >= self._due and time.time() < _expiry_time(self._authorization):
            await self._check()
            self._due = time.monotonic() + _RECHECK_INTERVAL


def _expiry_time(authorization: str) -> float:
    """Return the unverified expiry time of a signed token (seconds since the epoch), or infinity for other
    tokens. It is `exp` of a JSON Web Token, or the last part of a program's token (`access.job_tokens`)."""
    try:
        payload = urlsafe_b64decode(authorization.split(".")[1] + "==")
        claims: dict[str, Any] | list[Any] = msgspec.json.decode(payload)
        return float(claims["exp"] if isinstance(claims, dict) else claims[-1])
    except (ValueError, LookupError, TypeError):
        return math.inf


class Authenticator:
    """Finds the caller of a request."""

    def __init__(
        self, authority: Callable[[], TokenAuthority], authenticate: Callable[[str], Awaitable[Principal]]
    ) -> None:
        """`authority`: returns the current tokens. `authenticate`: returns the principal of an
        `Authorization` header; raises core's errors."""
        self._authority = authority
        self._authenticate = authenticate
        self._digests: list[str] = []
        self._keys: Mapping[str, str] = {}

    async def caller(self, authorization: str | None, key: str | None) -> Caller:
        """Return the caller, or UNKNOWN for a request without credentials. Raises Unauthenticated for an
        unknown token or key, and Unavailable if the credentials cannot be checked now."""
        cause = "The key in this address is not known to this service."
        if authorization and authorization[:6].lower() == "basic ":
            # Ignore HTTP Basic credentials. Browsers add the console's credentials automatically, and storage
            # requests must not use them (confused deputy).
            authorization = None
        if key and (principal := self._holder(key)) is not None:
            return caller_of(principal)
        if authorization:
            try:
                return caller_of(await self._authenticate(authorization))
            except UnknownToken as error:
                cause = str(error)
            except NotNow as error:
                raise Unavailable(str(error)) from None
        if key or authorization:
            raise Unauthenticated(f"{cause} `trainshed env` prints the current addresses and token.")
        return UNKNOWN

    def verify(self, signature: Signature) -> Bearer:
        """Return the account of a signed URL. Raises ExpiredToken, or SignatureDoesNotMatch if the URL was
        modified or the account no longer has the key."""
        return verify(signature, self._authority().book.keys.values(), time.time())

    def signer(self, bearer: Bearer) -> Caller:
        """Return the caller for a signed URL's account with its current rights. Raises Forbidden if the
        account or key was deleted."""
        try:
            return caller_of(self._authority().principal_of(bearer))
        except UnknownToken as error:
            raise Forbidden(str(error)) from None

    def check(self, program: JobClaims) -> None:
        """Raise Unauthenticated if a program's account is disabled or was deleted. Raises Unavailable."""
        try:
            check_program(program, self._authority().book)
        except UnknownToken as error:
            raise Unauthenticated(str(error)) from None

    def _holder(self, key: str) -> Principal | None:
        authority = self._authority()
        digests = authority.digests()
        if digests != self._digests:
            self._digests = digests
            self._keys = {key_of_digest(bytes.fromhex(digest)): digest for digest in digests}
        digest = self._keys.get(key)
        return authority.principal_of_digest(digest) if digest else None


def caller_of(principal: Principal) -> Caller:
    if principal.program is not None:
        return Caller(principal.email, program=principal.program)
    rights = principal.rights
    reach = {project: reach_of(rights.within(project)) for project in ("", *rights.projects)}
    return Caller(principal.email, reach)


class TokenFile:
    """The service's access file, for a process that never writes it. Each change is read."""

    def __init__(
        self,
        path: Path,
        jobs: JobTokens,
        now: Callable[[], int],
        hosts: Hosts,
        liveness: "Liveness | None" = None,
    ) -> None:
        """`jobs`: verifies the tokens of programs, which are not in the file. `liveness`: verifies ID tokens,
        and checks that programs still run. If `liveness` is None, tokens of programs are valid until they
        expire."""
        self._path = path
        self._liveness = liveness
        self._jobs = jobs
        self._now = now
        self._hosts = hosts
        self._version = (-1, -1)
        self._authority: TokenAuthority | None = None

    def read(self) -> TokenAuthority:
        """Return the current tokens. Raises Unavailable if the file cannot be read."""
        try:
            status = self._path.stat()
            version = status.st_ino, status.st_mtime_ns
            if self._authority is None or version != self._version:
                file = msgspec.json.decode(self._path.read_bytes(), type=AccessFile)
                self._authority = TokenAuthority(file.book(), file.owner, self._now, self._jobs)
                self._authority.hosts = self._hosts
                self._version = version
        except (OSError, ValueError) as error:
            raise Unavailable(f"The service's tokens cannot be read: {error}. Try again.") from error
        return self._authority

    async def authenticate(self, authorization: str) -> Principal:
        """Return the principal of an `Authorization` header. Raises UnknownToken, Unauthenticated, and
        Unavailable if the token cannot be checked now."""
        try:
            principal = self.read().authenticate(authorization)
        except UnknownToken:
            token = token_in(authorization)
            if self._liveness is None or not (is_json_web_token(token) or is_google_access_token(token)):
                raise
        else:
            if self._liveness is not None and principal.program is not None:
                await self._liveness.holder(authorization)
            return principal
        # Ask the API process, because the header may contain an ID token of an external issuer. Only the API
        # process can verify such a token.
        holder = await self._liveness.holder(authorization)
        grants = (
            Grant("" if grant.project == "-" else grant.project, grant.role, grant.member)
            for grant in holder.grants
        )
        return Principal(holder.email, rights_of(grants))


_ANSWER_TIMEOUT: Final = 10.0
"""Timeout in seconds for a response of the API process. It is long, because a starting service accepts
connections before it can respond."""
_MAX_ANSWER_BYTES: Final = 1 << 24
_ENDED: Final = "The access token belongs to a program that has ended. Use a token of your own."
_NO_ANSWER: Final = "The service is restarting and cannot verify this token. Try again soon."


class Liveness:
    """Verifies tokens with the service's API process: whether the program of a token still runs, and the
    identity of an ID token.

    A program's token is signed, not stored, and valid for an hour. Only the API process knows whether the job
    has ended in the meantime. Every request with a token is checked. Results are not cached, because they
    could be out of date.
    """

    def __init__(self, service: Path) -> None:
        """`service`: the Unix socket of the API process for programs."""
        self._service = service

    async def holder(self, authorization: str) -> Identity:
        """Return the identity of a token. Raises Unauthenticated with the service's message if the service
        rejects the token, and Unavailable if the service does not respond."""
        question = (
            f"GET /trainshed/v1/whoami HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token_in(authorization)}\r\n{SOURCE_HEADER}: {SOURCE.get()}\r\n"
            "Connection: close\r\n\r\n"
        )
        try:
            with reachable(str(self._service)) as short:
                line = StreamLine(*await asyncio.open_unix_connection(short))
            status, body = await exchange(
                line, question.encode("latin-1"), _ANSWER_TIMEOUT, _MAX_ANSWER_BYTES
            )
        except (OSError, NoResponse) as failure:
            raise Unavailable(_NO_ANSWER) from failure
        if status == 401:
            raise Unauthenticated(_message(body, _ENDED))
        if status != 200:
            raise Unavailable(_message(body, _NO_ANSWER))
        return msgspec.json.decode(body, type=Identity)


def _message(body: bytes, otherwise: str) -> str:
    """Return the message of an API error, or `otherwise` if the body has none."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return otherwise
