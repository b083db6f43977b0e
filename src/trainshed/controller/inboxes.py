"""What came in for each job, worked off one job at a time by itself: no two changes of one job run together."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import Event
from trainshed.core.names import JobUid
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import keep
from trainshed.store.port import StaleCommit

log = logging.getLogger(__name__)

_STALE_LIMIT = 20
"""Commits in a row that may find the job changed; more mean that another service has taken the lead."""
_GATHER = 0.01
"""Seconds in which events are gathered of which more are sure to come, so that they cost few commits."""
_MOST = 50
"""Events of one job that are taken in at once: each looks at all of its replicas, and others wait for the loop."""
_PAUSE = 1.0
"""Seconds before what could not be stored is tried again."""
_TOLD_EVERY = 60
"""Tries in a row that fail alike, of which one is told: the log may lie on the disk that is full."""


@dataclass(slots=True)
class Inbox:
    """`look_again`: the stored job may be another one than is known."""

    events: list[Event] = field(default_factory=list[Event])
    look_again: bool = False


class Inboxes:
    """`apply`: takes in what came for a job; StaleCommit means that it is to be applied to the job as it is then.
    `more_to_come`: whether these events are soon followed by others of their kind."""

    def __init__(
        self,
        apply: Callable[[JobUid, Inbox], Awaitable[None]],
        more_to_come: Callable[[JobUid, Inbox], bool],
    ) -> None:
        self._apply = apply
        self._more_to_come = more_to_come
        self._inboxes: defaultdict[JobUid, Inbox] = defaultdict(Inbox)
        self._busy: dict[JobUid, asyncio.Task[None]] = {}
        self._closing = False

    def look(self, uid: JobUid) -> None:
        """The stored job was changed by somebody else, or is new."""
        self._inboxes[uid].look_again = True
        self._ensure_busy(uid)

    def add(self, uid: JobUid, event: Event) -> None:
        """Something happened to a job."""
        self._inboxes[uid].events.append(event)
        self._ensure_busy(uid)

    def close(self) -> tuple[asyncio.Task[None], ...]:
        """Begin nothing more; returns what still works."""
        self._closing = True
        return tuple(self._busy.values())

    def _ensure_busy(self, uid: JobUid) -> None:
        if uid not in self._busy and not self._closing:
            self._busy[uid] = keep(partial(self._work_off, uid), f"job {uid}: taking in its events")

    async def _work_off(self, uid: JobUid) -> None:
        """Apply all that came in for one job, until nothing is left."""
        stale = refused = 0
        while uid in self._inboxes and not self._closing:
            if self._more_to_come(uid, self._inboxes[uid]):
                await asyncio.sleep(_GATHER)
            inbox = self._take(uid)
            try:
                await self._apply(uid, inbox)
                stale = refused = 0
            except StaleCommit:
                # A request wrote in between: look at the job again and apply the same events to it.
                stale += 1
                self._put_back(uid, inbox)
                if stale > _STALE_LIMIT:
                    log.error("job %d changes under this service; has another one taken over?", uid)
                    await asyncio.sleep(_PAUSE)
            except (EngineUnavailable, Unavailable) as failure:
                if refused % _TOLD_EVERY == 0:
                    log.warning("job %d: %s; it is tried once more each second", uid, failure)
                refused += 1
                self._put_back(uid, inbox)
                await asyncio.sleep(_PAUSE)
            except Exception:
                log.exception("job %d: its events could not be stored; once more in a second", uid)
                self._put_back(uid, inbox)
                await asyncio.sleep(_PAUSE)
        del self._busy[uid]

    def _take(self, uid: JobUid) -> Inbox:
        """What came in, or as much of it as is taken in at once; the rest stays."""
        inbox = self._inboxes.pop(uid)
        if len(inbox.events) > _MOST:
            self._inboxes[uid].events = inbox.events[_MOST:]
            inbox.events = inbox.events[:_MOST]
        return inbox

    def _put_back(self, uid: JobUid, inbox: Inbox) -> None:
        self._inboxes[uid].events[:0] = inbox.events
        self._inboxes[uid].look_again = True
