"""Links to pages that open without a token: shells in replicas of jobs, and what jobs wrote in TensorBoard.

A link opens for whoever has it, as long as they for whom it was made may open the same. Its key stands behind
the `#`, so that no server is sent it with the page. The page exchanges it: for a ticket to a shell
(`Tickets`), or for a mark of a view in TensorBoard, a secret part of the view's path. Unlike a cookie, that
is sent to this host and port alone.

Pages of jobs have host names of their own, and a mark in a cookie. Such a cookie reaches other ports of that
name, so the name has a part that programs cannot know.

A ticket is held in memory for a minute, and good once: whoever may open the shell fetches it and uses it at
once. In an address it stands only where a browser opens a job's page, which makes it void.
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

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.principals import Principal, Shown
from trainshed.access.strangers import GUESS
from trainshed.core.errors import PermissionDenied
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api, JobUid, ReplicaId, log_task_name

OPEN_VIEW: Final = "trainshed.v1.Jobs.Tensorboard"
"""The method that a link to a view stands for."""
MOST_JOBS: Final = 20
"""Most jobs of one view."""
LIFETIME: Final = 24 * 3600 * 10**9
"""Nanoseconds that a mark is good for."""
_NONCE: Final = 16
"""Bytes that differ for each that is shown, and are always the same for one."""
_WORD: Final = 15
"""Bytes of a word; a part of a host's name has at most 63 characters."""
_PAGE_HOST: Final = re.compile(r"([a-z0-9]{1,20})-([1-9][0-9]{0,18})-([a-z2-7]{24})\.")


def holder(
    known: Callable[[Shown], Principal | None],
    shown: Shown | None,
    method: str,
    projects: Iterable[str],
) -> Principal:
    """Return for whom a link was made. `known`: who has shown something, as they are now; `shown`: what the
    link says, None = it says nothing; `method`: what the link stands for. Raises PermissionDenied."""
    principal = known(shown) if shown is not None else None
    permission = PERMISSIONS[method]
    if principal is None or not all(principal.may(permission, project) for project in projects):
        raise PermissionDenied(
            "This link is not valid: it is incomplete, belongs to another service, or its user has lost "
            "access. Get your own link: trainshed jobs describe JOB"
        )
    return principal


@contextmanager
def guesses(scope: MutableMapping[str, Any]) -> Generator[None]:
    """Mark a request whose link opens nothing as a guess (`access.strangers`)."""
    try:
        yield
    except PermissionDenied:
        scope[GUESS] = True
        raise


class Links:
    """Makes and reads the keys of links, and the marks of browsers that have opened one: what somebody has
    shown, signed for one thing, which a text such as that of `shell_of` or `page_of` names.

    `key`: the service's own secret, the same after a restart. `address`: where browsers reach the service.
    `now`: nanoseconds since the epoch. `pages`: the host below whose name pages of jobs have theirs, with a
    port (`localhost:8080`); None = there is none.
    """

    def __init__(
        self, key: bytes, address: str, now: Callable[[], int], pages: str | None = None
    ) -> None:
        self._key = key
        #: Where browsers reach the service, without a slash at its end.
        self.address = address.rstrip("/")
        self._now = now
        self._pages = pages

    def issue(self, what: str, shown: Shown) -> str:
        """Return a key that stands for who has shown this."""
        content = msgspec.json.encode(shown)
        nonce = hmac.digest(self._key, content, hashlib.sha256)[:_NONCE]
        holder = _text(nonce + self._veiled(nonce, content))
        return f"{holder}.{self._sign(what, holder)}"

    def read(self, what: str, issued: str) -> Shown | None:
        """Return what they had shown for whom it was issued; None if it was not, or for something else."""
        holder, _, signature = issued.partition(".")
        sent = signature.encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(self._sign(what, holder).encode(), sent):
            return None
        padding = "=" * (-len(holder) % 4)
        raw = base64.urlsafe_b64decode(holder + padding)
        return msgspec.json.decode(self._veiled(raw[:_NONCE], raw[_NONCE:]), type=Shown)

    def mark(self, what: str, shown: Shown) -> str:
        """Return what a browser shows that has opened something, good for a day."""
        until = str(self._now() + LIFETIME)
        return f"{until}.{self.issue(f'mark {what} {until}', shown)}"

    def lets(self, what: str, mark: str) -> Shown | None:
        """Return what they had shown who have a mark; None if it is not good for this now."""
        until, _, issued = mark.partition(".")
        if not until.isdecimal() or len(until) > 19 or int(until) <= self._now():
            return None
        return self.read(f"mark {what} {until}", issued)

    def of_replicas(
        self, uid: JobUid, api: Api, replicas: Iterable[ReplicaId], shown: Shown
    ) -> dict[str, str]:
        """Return the links to shells in a job's replicas, by the names that the API has for them. `shown`: by
        whoever gets them."""
        keys = {replica: self.issue(shell_of(uid, replica), shown) for replica in replicas}
        return {
            log_task_name(api, replica): f"{self.shell(uid, replica)}&key={key}"
            for replica, key in keys.items()
        }

    def of_job(self, job: Job, shown: Shown) -> dict[str, str]:
        """Return the links of the job's replicas that run now."""
        if job.state is not JobState.RUNNING:
            return {}
        running = (r.id for r in job.replicas if r.state is ReplicaState.RUNNING)
        return self.of_replicas(job.uid, job.name.api, running, shown)

    def shell(self, uid: JobUid, replica: ReplicaId) -> str:
        """Return the address of a replica's shell, to be followed by a key or a ticket's token."""
        return f"{self.address}/shell/#job={uid}&replica={replica}"

    def to_page(self, uid: JobUid, name: str) -> str:
        """Return the console's address that opens a page of a job's, for who is signed in."""
        return f"{self.address}/jobs/{uid}/ports/{name}"

    def host_of(self, uid: JobUid, name: str) -> str | None:
        """Return the address of a page's host; None = pages have none here."""
        scheme = self.address.partition("://")[0]
        host = f"{name}-{uid}-{self._word(uid, name)}.{self._pages}"
        return f"{scheme}://{host}" if self._pages else None

    def page_at(self, host: str) -> tuple[JobUid, str] | None:
        """Return the job and the name of the page that a Host header means; None = it means none."""
        made = _PAGE_HOST.match(host.lower())
        if made is None:
            return None
        uid, name = JobUid(int(made[2])), made[1]
        return (uid, name) if hmac.compare_digest(made[3], self._word(uid, name)) else None

    def _word(self, uid: JobUid, name: str) -> str:
        """Return the part of a page's host that only this service can make."""
        digest = hmac.digest(self._key, page_of(uid, name).encode(), hashlib.sha256)
        return base64.b32encode(digest[:_WORD]).decode().lower()

    def _veiled(self, nonce: bytes, content: bytes) -> bytes:
        """Hide what was shown, or uncover it: by the digest of a token its owner's buckets are open
        (`buckets.callers`)."""
        pad = hashlib.shake_256(self._key + nonce).digest(len(content))
        return bytes(byte ^ cover for byte, cover in zip(content, pad, strict=True))

    def _sign(self, what: str, holder: str) -> str:
        text = f"veiled {what} {holder}".encode("utf-8", "surrogatepass")
        return _text(hmac.digest(self._key, text, hashlib.sha256))


def shell_of(uid: JobUid, replica: ReplicaId) -> str:
    """Return what the key of a replica's link is for."""
    return f"shell {uid} {replica}"


def page_of(uid: JobUid, name: str) -> str:
    """Return what the mark of a job's page is for."""
    return f"page {uid} {name}"


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


TICKET_LIFETIME: Final = 60 * 10**9
"""Nanoseconds that a ticket is good for."""
_MOST: Final = 1000
"""Most tickets that wait to be used; beyond that the oldest one of whoever has the most is void."""


class Ticket(Struct, frozen=True):
    """The right to open one shell."""

    job_uid: JobUid
    replica: ReplicaId
    #: Who asked for it, for the job's timeline.
    who: str
    #: Whose rights it needs.
    principal: Principal
    #: The attempt whose autopsy is meant; None = the replica that runs.
    autopsy: int | None = None
    #: What it leads to in place of a shell (`TerminalRequest.port`); None = a shell.
    port: str | None = None
    #: By which name the port was asked for.
    name: str = ""


class Tickets:
    """Issues tickets and redeems each once. `now`: nanoseconds since the epoch."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._waiting: dict[bytes, tuple[Ticket, int]] = {}

    def issue(self, ticket: Ticket) -> tuple[str, int]:
        """Return a token for a ticket, and until when it is good (ns)."""
        now = self._now()
        for old in [key for key, (_, until) in self._waiting.items() if until <= now]:
            del self._waiting[old]
        while len(self._waiting) >= _MOST:
            whose = {key: waiting.principal.email for key, (waiting, _) in self._waiting.items()}
            most, _ = Counter(whose.values()).most_common(1)[0]
            del self._waiting[next(key for key, email in whose.items() if email == most)]
        token = secrets.token_urlsafe(32)
        self._waiting[_digest(token)] = (ticket, now + TICKET_LIFETIME)
        return token, now + TICKET_LIFETIME

    def redeem(self, token: str) -> Ticket | None:
        """Return the ticket of a token, which is void afterwards; None if it is not good."""
        waiting = self._waiting.pop(_digest(token), None)
        return waiting[0] if waiting is not None and waiting[1] > self._now() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
