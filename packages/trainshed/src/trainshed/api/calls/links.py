"""Links to pages that open without a token: shells in replicas of jobs, and TensorBoard views of jobs.

A link works for every holder, as long as its owner has the permission. The key of the link follows the `#`,
so browsers do not send it to a server with the page. The page exchanges the key for a ticket to a shell
(`Tickets`), or for the mark of a TensorBoard view, a secret part of the view's path. Unlike a cookie, a
browser sends this path only to this host and port.

Pages of jobs have their own host names, and a mark in a cookie. A browser sends the cookie to other ports of
that host as well, so the host name contains a part that programs cannot guess.

A ticket stays in memory for a minute and is valid once. An address contains a ticket only while a browser
opens a job's page, which consumes the ticket.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.access.authentication_limits import GUESS
from trainshed.access.permissions import PERMISSIONS
from trainshed.access.principals import Credential, Principal
from trainshed.core.errors import PermissionDenied
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api, JobUid, ReplicaId, log_task_name

OPEN_VIEW: Final = "trainshed.v1.Jobs.Tensorboard"
"""The method whose permission a link to a view requires."""
MAX_JOBS: Final = 20
"""Maximum number of jobs in one TensorBoard view."""
LIFETIME: Final = 24 * 3600 * 10**9
"""Nanoseconds for which a mark is valid."""
_NONCE_SIZE: Final = 16
"""Size in bytes of a nonce. It is equal for equal credentials and different for others."""
_HOST_SECRET_SIZE: Final = 15
"""Size in bytes of the secret in a host name. A label of a host name has at most 63 characters."""
_PAGE_HOST: Final = re.compile(r"([a-z0-9]{1,20})-([1-9][0-9]{0,18})-([a-z2-7]{24})\.")


def link_owner(
    known: Callable[[Credential], Principal | None],
    shown: Credential | None,
    method: str,
    projects: Iterable[str],
) -> Principal:
    """Return the owner of a link. `known`: returns the current principal of credentials; `shown`: the
    credentials in the link, None = no credentials; `method`: the method whose permission is required. Raises
    PermissionDenied."""
    principal = known(shown) if shown is not None else None
    permission = PERMISSIONS[method]
    if principal is None or not all(principal.may(permission, project) for project in projects):
        raise PermissionDenied(
            "This link is not valid: it is incomplete, belongs to another service, or its user has lost "
            "access. Get your own link: trainshed jobs describe JOB"
        )
    return principal


@contextmanager
def count_guesses(scope: MutableMapping[str, Any]) -> Generator[None]:
    """Count a request with an invalid link as a guess (`access.authentication_limits`)."""
    try:
        yield
    except PermissionDenied:
        scope[GUESS] = True
        raise


class Links:
    """Creates and reads keys of links, and marks of browsers that have opened a link. Both contain the
    owner's credentials, signed for one target. `shell_of` and `page_of` return the texts of targets. `key`:
    the service's secret, the same after a restart. `address`: the address of the service for browsers. `now`:
    nanoseconds since the epoch. `pages`: the parent host name of the pages of jobs, with a port
    (`localhost:8080`); None = not available."""

    def __init__(
        self, key: bytes, address: str, now: Callable[[], int], pages: str | None = None
    ) -> None:
        self._key = key
        #: The address of the service for browsers, without a slash at its end.
        self.address = address.rstrip("/")
        self._now = now
        self._pages = pages

    def issue(self, target: str, shown: Credential) -> str:
        """Return a key with these credentials for a target."""
        content = msgspec.json.encode(shown)
        nonce = hmac.digest(self._key, content, hashlib.sha256)[:_NONCE_SIZE]
        holder = _text(nonce + self._encrypt(nonce, content))
        return f"{holder}.{self._sign(target, holder)}"

    def read(self, target: str, key_text: str) -> Credential | None:
        """Return the credentials in a key; None if it is not valid for this target."""
        holder, _, signature = key_text.partition(".")
        sent = signature.encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(self._sign(target, holder).encode(), sent):
            return None
        padding = "=" * (-len(holder) % 4)
        raw = base64.urlsafe_b64decode(holder + padding)
        return msgspec.json.decode(
            self._encrypt(raw[:_NONCE_SIZE], raw[_NONCE_SIZE:]), type=Credential
        )

    def issue_mark(self, target: str, shown: Credential) -> str:
        """Return a mark for a browser that has opened a target. It is valid for a day."""
        until = str(self._now() + LIFETIME)
        return f"{until}.{self.issue(f'mark {target} {until}', shown)}"

    def read_mark(self, target: str, mark: str) -> Credential | None:
        """Return the credentials in a mark; None if it is not valid for this target now."""
        until, _, key_text = mark.partition(".")
        if not until.isdecimal() or len(until) > 19 or int(until) <= self._now():
            return None
        return self.read(f"mark {target} {until}", key_text)

    def shell_links(
        self, uid: JobUid, api: Api, replicas: Iterable[ReplicaId], shown: Credential
    ) -> dict[str, str]:
        """Return the links to shells in a job's replicas, by the API's names of the replicas. `shown`: the
        credentials of the owner of the links."""
        keys = {replica: self.issue(shell_of(uid, replica), shown) for replica in replicas}
        return {
            log_task_name(api, replica): f"{self.shell(uid, replica)}&key={key}"
            for replica, key in keys.items()
        }

    def job_links(self, job: Job, shown: Credential) -> dict[str, str]:
        """Return the links of the job's running replicas."""
        if job.state is not JobState.RUNNING:
            return {}
        running = (r.id for r in job.replicas if r.state is ReplicaState.RUNNING)
        return self.shell_links(job.uid, job.name.api, running, shown)

    def shell(self, uid: JobUid, replica: ReplicaId) -> str:
        """Return the address of a replica's shell; append a key or the token of a ticket."""
        return f"{self.address}/shell/#job={uid}&replica={replica}"

    def console_page(self, uid: JobUid, name: str) -> str:
        """Return the console's address that opens a page of a job, for signed-in users."""
        return f"{self.address}/jobs/{uid}/ports/{name}"

    def page_host(self, uid: JobUid, name: str) -> str | None:
        """Return the address of a page's host, or None if pages of jobs have no host names."""
        scheme = self.address.partition("://")[0]
        host = f"{name}-{uid}-{self._host_secret(uid, name)}.{self._pages}"
        return f"{scheme}://{host}" if self._pages else None

    def page_of_host(self, host: str) -> tuple[JobUid, str] | None:
        """Return the job and the page name of a Host header, or None if the host belongs to no page."""
        made = _PAGE_HOST.match(host.lower())
        if made is None:
            return None
        uid, name = JobUid(int(made[2])), made[1]
        return (uid, name) if hmac.compare_digest(made[3], self._host_secret(uid, name)) else None

    def _host_secret(self, uid: JobUid, name: str) -> str:
        """Return the part of a page's host name that only this service can compute."""
        digest = hmac.digest(self._key, page_of(uid, name).encode(), hashlib.sha256)
        return base64.b32encode(digest[:_HOST_SECRET_SIZE]).decode().lower()

    def _encrypt(self, nonce: bytes, content: bytes) -> bytes:
        """Encrypt or decrypt credentials. The digest of a token must stay secret, because it grants access to
        the owner's buckets (`buckets.callers`)."""
        pad = hashlib.shake_256(self._key + nonce).digest(len(content))
        return bytes(byte ^ cover for byte, cover in zip(content, pad, strict=True))

    def _sign(self, target: str, holder: str) -> str:
        text = f"veiled {target} {holder}".encode("utf-8", "surrogatepass")
        return _text(hmac.digest(self._key, text, hashlib.sha256))


def shell_of(uid: JobUid, replica: ReplicaId) -> str:
    """Return the text for which a link to a replica's shell is signed."""
    return f"shell {uid} {replica}"


def page_of(uid: JobUid, name: str) -> str:
    """Return the text for which the cookie of a job's page is signed."""
    return f"page {uid} {name}"


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


TICKET_LIFETIME: Final = 60 * 10**9
"""Nanoseconds for which a ticket is valid."""
_MAX_TICKETS: Final = 1000
"""Maximum number of unused tickets. Beyond it, the oldest ticket of the user with the most tickets is
deleted."""


class Ticket(Struct, frozen=True):
    """The right to open one shell."""

    job_uid: JobUid
    replica: ReplicaId
    #: The network address of the user, for the job's timeline.
    who: str
    #: The owner, whose permission the ticket requires.
    principal: Principal
    #: The attempt of the autopsy; None = the running replica.
    autopsy: int | None = None
    #: The port to open instead of a shell (`TerminalRequest.port`); None = a shell.
    port: str | None = None
    #: The name of the port in the request.
    name: str = ""


class Tickets:
    """Issues tickets and redeems each once. `now`: nanoseconds since the epoch."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._waiting: dict[bytes, tuple[Ticket, int]] = {}

    def issue(self, ticket: Ticket) -> tuple[str, int]:
        """Return the token of a new ticket and its expiry time (ns)."""
        now = self._now()
        for old in [key for key, (_, until) in self._waiting.items() if until <= now]:
            del self._waiting[old]
        while len(self._waiting) >= _MAX_TICKETS:
            whose = {key: waiting.principal.email for key, (waiting, _) in self._waiting.items()}
            most, _ = Counter(whose.values()).most_common(1)[0]
            del self._waiting[next(key for key, email in whose.items() if email == most)]
        token = secrets.token_urlsafe(32)
        self._waiting[_digest(token)] = (ticket, now + TICKET_LIFETIME)
        return token, now + TICKET_LIFETIME

    def redeem(self, token: str) -> Ticket | None:
        """Return the ticket of a token and invalidate the token, or return None if the token is not valid."""
        waiting = self._waiting.pop(_digest(token), None)
        return waiting[0] if waiting is not None and waiting[1] > self._now() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
