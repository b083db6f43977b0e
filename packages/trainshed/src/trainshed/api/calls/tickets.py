"""The rights to open shells: tickets, which are good once, and links, which are good while a job runs.

A ticket is held in memory for a minute: whoever may open the shell fetches it and uses it at once. A link is
given out by a job that was made with `enableWebAccess`: everybody who can read the job has it, and gets
tickets for one replica of that job with it. Neither is ever in an address that is sent to a server, so no log
contains them.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api, JobUid, ReplicaId, log_task_name

LIFETIME: Final = 60 * 10**9
"""Nanoseconds that a ticket is good for."""
_MOST: Final = 1000
"""Most tickets that wait to be used; beyond that the oldest one is void."""


class Ticket(Struct, frozen=True):
    """The right to open one shell."""

    job_uid: JobUid
    replica: ReplicaId
    #: Who asked for it, for the job's timeline.
    who: str
    #: The attempt whose autopsy is meant; 0 = the replica that runs.
    autopsy: int = 0
    #: Whose rights it needs; None = it came by a link.
    principal: Principal | None = None


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
            del self._waiting[next(iter(self._waiting))]
        token = secrets.token_urlsafe(32)
        self._waiting[_digest(token)] = (ticket, now + LIFETIME)
        return token, now + LIFETIME

    def redeem(self, token: str) -> Ticket | None:
        """Return the ticket of a token, which is void afterwards; None if it is not good."""
        waiting = self._waiting.pop(_digest(token), None)
        return waiting[0] if waiting is not None and waiting[1] > self._now() else None


class Links:
    """Makes and checks links to shells. `key`: the service's own secret, the same after a restart. `address`:
    where browsers reach this service."""

    def __init__(self, key: bytes, address: str) -> None:
        self._key = key
        self._address = address.rstrip("/")

    def of_replicas(
        self, uid: JobUid, api: Api, replicas: "tuple[ReplicaId, ...]"
    ) -> dict[str, str]:
        """Return the links of a job's replicas, by the names that the API has for them."""
        return {log_task_name(api, replica): self._link(uid, replica) for replica in replicas}

    def of_job(self, job: Job) -> dict[str, str]:
        """Return the links of the job's replicas that run now."""
        if job.state is not JobState.RUNNING:
            return {}
        running = (r.id for r in job.replicas if r.state is ReplicaState.RUNNING)
        return self.of_replicas(job.uid, job.name.api, tuple(running))

    def opens(self, uid: JobUid, replica: ReplicaId, key: str) -> bool:
        """Whether `key` is that of the replica's link."""
        return hmac.compare_digest(self._sign(uid, replica).encode(), key.encode())

    def page(self, uid: JobUid, replica: ReplicaId, token: str = "") -> str:
        """Return the address of a replica's page; with a ticket's `token` the page opens the shell at
        once."""
        return f"{self._address}/shell/#job={uid}&replica={replica}" + (
            f"&token={token}" if token else ""
        )

    def _link(self, uid: JobUid, replica: ReplicaId) -> str:
        return f"{self.page(uid, replica)}&key={self._sign(uid, replica)}"

    def _sign(self, uid: JobUid, replica: ReplicaId) -> str:
        digest = hmac.digest(self._key, f"shell {uid} {replica}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
