"""Tickets: the rights to open shells, and connections to ports, each good once.

A ticket is held in memory for a minute: whoever may open the shell fetches it and uses it at once. In an
address it stands only where a browser opens a job's page, which makes it void.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.core.names import JobUid, ReplicaId

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
    #: Whose rights it needs.
    principal: Principal
    #: The attempt whose autopsy is meant; 0 = the replica that runs.
    autopsy: int = 0
    #: What it leads to in place of a shell (`TerminalRequest.port`); "" = a shell.
    port: str = ""
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
            del self._waiting[next(iter(self._waiting))]
        token = secrets.token_urlsafe(32)
        self._waiting[_digest(token)] = (ticket, now + LIFETIME)
        return token, now + LIFETIME

    def redeem(self, token: str) -> Ticket | None:
        """Return the ticket of a token, which is void afterwards; None if it is not good."""
        waiting = self._waiting.pop(_digest(token), None)
        return waiting[0] if waiting is not None and waiting[1] > self._now() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
