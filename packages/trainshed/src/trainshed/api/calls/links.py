"""Links to pages that open without a token: shells in replicas, and TensorBoard views of jobs.

Every user with a link can open the page, if the owner of the link currently has the permission. The key of
the link follows the `#`, so browsers do not send the key with the request for the page. Instead, the page
sends the key and receives one of these:

- for a shell: a ticket (`Tickets`)
- for a TensorBoard view: a mark, which is a secret part of the view's path. A browser sends a cookie to all
  ports of a host, but a path only to this host and port.

Pages of jobs have their own host names. Their marks are in cookies. Because a browser sends a cookie to other
ports of the host as well, the host name contains a part that programs cannot guess.

A ticket stays in memory for a minute and can be used once. An address contains a ticket only while a browser
opens a page of a job. The page consumes the ticket.
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
"""The method whose permission the owner of a link to a view needs."""
MAX_JOBS: Final = 20
"""Maximum number of jobs in one TensorBoard view."""
LIFETIME: Final = 24 * 3600 * 10**9
"""Lifetime in nanoseconds of a mark, which is the secret of a browser that has opened a page or a TensorBoard
view."""
_NONCE_SIZE: Final = 16
"""Size in bytes of a nonce. Nonces are equal for equal credentials, and differ for different credentials."""
_HOST_SECRET_SIZE: Final = 15
"""Size in bytes of the secret in a host name. A label of a host name can have at most 63 characters."""
_PAGE_HOST: Final = re.compile(r"([a-z0-9]{1,20})-([1-9][0-9]{0,18})-([a-z2-7]{24})\.")


def link_owner(
    known: Callable[[Credential], Principal | None],
    shown: Credential | None,
    method: str,
    projects: Iterable[str],
) -> Principal:
    """Return the owner of a link.

    `known`: returns the current principal of credentials. `shown`: the credentials in the link; None = the
    link is not valid. `method`: the owner must have the permission for this method in all of `projects`.
    Raises PermissionDenied.
    """
    principal = known(shown) if shown is not None else None
    permission = PERMISSIONS[method]
    if principal is None or not all(principal.may(permission, project) for project in projects):
        raise PermissionDenied(
            "This link is not valid: it is incomplete, belongs to another service, or its owner has lost "
            "access. Get a link of your own: trainshed jobs describe JOB"
        )
    return principal


@contextmanager
def count_guesses(scope: MutableMapping[str, Any]) -> Generator[None]:
    """If the link of a request is not valid, mark the request as an attempt to guess a link.
    `access.authentication_limits` limits such attempts."""
    try:
        yield
    except PermissionDenied:
        scope[GUESS] = True
        raise


class Links:
    """Creates and reads the keys of links, and the marks of browsers that have opened a link.

    Keys and marks contain the owner's credentials and are signed for one target. `shell_of` and `page_of`
    return targets.

    `key`: the service's secret, which restarts do not change. `address`: the address of the service for
    browsers. `now`: returns nanoseconds since the epoch. `pages`: the parent host name of all pages of jobs,
    with a port (`localhost:8080`); None = pages of jobs have no host names.
    """

    def __init__(self, key: bytes, address: str, now: Callable[[], int], pages: str | None = None) -> None:
        self._key = key
        #: The address of the service for browsers, without a trailing slash.
        self.address = address.rstrip("/")
        self._now = now
        self._pages = pages

    def issue(self, target: str, shown: Credential) -> str:
        """Return a key for a link to a target. The key contains the credentials `shown`."""
        content = msgspec.json.encode(shown)
        nonce = hmac.digest(self._key, content, hashlib.sha256)[:_NONCE_SIZE]
        holder = _text(nonce + self._encrypt(nonce, content))
        return f"{holder}.{self._sign(target, holder)}"

    def read(self, target: str, key_text: str) -> Credential | None:
        """Return the credentials in a key, or None if the key is not valid for this target."""
        holder, _, signature = key_text.partition(".")
        sent = signature.encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(self._sign(target, holder).encode(), sent):
            return None
        padding = "=" * (-len(holder) % 4)
        raw = base64.urlsafe_b64decode(holder + padding)
        return msgspec.json.decode(self._encrypt(raw[:_NONCE_SIZE], raw[_NONCE_SIZE:]), type=Credential)

    def issue_mark(self, target: str, shown: Credential) -> str:
        """Return a mark for a browser that has opened a target. The mark is valid for a day."""
        until = str(self._now() + LIFETIME)
        return f"{until}.{self.issue(f'mark {target} {until}', shown)}"

    def read_mark(self, target: str, mark: str) -> Credential | None:
        """Return the credentials in a mark, or None if the mark has expired or is not valid for this
        target."""
        until, _, key_text = mark.partition(".")
        if not until.isdecimal() or len(until) > 19 or int(until) <= self._now():
            return None
        return self.read(f"mark {target} {until}", key_text)

    def shell_links(
        self, uid: JobUid, api: Api, replicas: Iterable[ReplicaId], shown: Credential
    ) -> dict[str, str]:
        """Return links to shells in a job's replicas, by the API's names of the replicas. `shown`: the
        credentials of the links' owner."""
        keys = {replica: self.issue(shell_of(uid, replica), shown) for replica in replicas}
        return {
            log_task_name(api, replica): f"{self.shell(uid, replica)}&key={key}"
            for replica, key in keys.items()
        }

    def job_links(self, job: Job, shown: Credential) -> dict[str, str]:
        """Return links to shells in a job's running replicas, by the API's names of the replicas."""
        if job.state is not JobState.RUNNING:
            return {}
        running = (r.id for r in job.replicas if r.state is ReplicaState.RUNNING)
        return self.shell_links(job.uid, job.name.api, running, shown)

    def shell(self, uid: JobUid, replica: ReplicaId) -> str:
        """Return the address of a replica's shell. The caller appends a key or the token of a ticket."""
        return f"{self.address}/shell/#job={uid}&replica={replica}"

    def console_page(self, uid: JobUid, name: str) -> str:
        """Return the address in the console that opens a page of a job. The user must be signed in."""
        return f"{self.address}/jobs/{uid}/ports/{name}"

    def page_host(self, uid: JobUid, name: str) -> str | None:
        """Return the address of the host of a job's page, or None if pages of jobs have no host names."""
        scheme = self.address.partition("://")[0]
        host = f"{name}-{uid}-{self._host_secret(uid, name)}.{self._pages}"
        return f"{scheme}://{host}" if self._pages else None

    def page_of_host(self, host: str) -> tuple[JobUid, str] | None:
        """Return the job and the page name for a Host header, or None if the host does not belong to a
        page."""
        made = _PAGE_HOST.match(host.lower())
        if made is None:
            return None
        uid, name = JobUid(int(made[2])), made[1]
        return (uid, name) if hmac.compare_digest(made[3], self._host_secret(uid, name)) else None

    def _host_secret(self, uid: JobUid, name: str) -> str:
        """Return the secret part of a page's host name, which only this service can compute."""
        digest = hmac.digest(self._key, page_of(uid, name).encode(), hashlib.sha256)
        return base64.b32encode(digest[:_HOST_SECRET_SIZE]).decode().lower()

    def _encrypt(self, nonce: bytes, content: bytes) -> bytes:
        """Encrypt or decrypt credentials. They may contain the digest of a token, which must stay secret
        because it grants access to the owner's buckets (`buckets.callers`)."""
        pad = hashlib.shake_256(self._key + nonce).digest(len(content))
        return bytes(byte ^ cover for byte, cover in zip(content, pad, strict=True))

    def _sign(self, target: str, holder: str) -> str:
        text = f"veiled {target} {holder}".encode("utf-8", "surrogatepass")
        return _text(hmac.digest(self._key, text, hashlib.sha256))


def shell_of(uid: JobUid, replica: ReplicaId) -> str:
    """Return the target of a link to a replica's shell."""
    return f"shell {uid} {replica}"


def page_of(uid: JobUid, name: str) -> str:
    """Return the target of the cookie for a job's page."""
    return f"page {uid} {name}"


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


TICKET_LIFETIME: Final = 60 * 10**9
"""Lifetime of a ticket in nanoseconds."""
_MAX_TICKETS: Final = 1000
"""Maximum number of unused tickets. Beyond it, the oldest ticket of the user with the most tickets is
deleted."""


class Ticket(Struct, frozen=True):
    """The right to open one shell, or to connect to one port."""

    job_uid: JobUid
    replica: ReplicaId
    #: Text for the user on the job's timeline: an e-mail address, or the creator of the link that an unknown
    #: user has opened.
    who: str
    #: The owner of the ticket, who must have the permission.
    principal: Principal
    #: The attempt of the failed replica whose kept files (autopsy) the shell shows; None = a shell in the
    #: running replica.
    autopsy: int | None = None
    #: The port to connect to (`TerminalRequest.port`); None = open a shell.
    port: str | None = None
    #: The port as the user has requested it: its number, or the name of a page of the job.
    name: str = ""


class Tickets:
    """Issues tickets. Each ticket can be redeemed once. `now`: returns nanoseconds since the epoch."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._waiting: dict[bytes, tuple[Ticket, int]] = {}

    def issue(self, ticket: Ticket) -> tuple[str, int]:
        """Return the token and the expiry time (ns) of a new ticket."""
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
        """Return the ticket of a token, and invalidate the token. Return None if the token is not valid."""
        waiting = self._waiting.pop(_digest(token), None)
        return waiting[0] if waiting is not None and waiting[1] > self._now() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
