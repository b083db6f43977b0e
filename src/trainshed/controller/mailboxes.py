"""What wakes a job: events in its mailbox, and the alarm of its earliest deadline.

Each job's mailbox is drained by a task of its own, so that no two changes of one job run together. Alarms are
derived from the stored job, so nothing here has to survive a restart.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import keep
from trainshed.store.port import StaleCommit
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

LONGEST_DELAY = 24 * 3600.0
"""Seconds; a later deadline is looked at again then, so that a changed clock is noticed."""
_STALE_LIMIT = 20
"""Commits in a row that may find the job changed; more mean that another service has taken the lead."""
_GATHER = 0.01
"""Seconds in which events are gathered of which more are sure to come, so that they cost few commits."""
_MOST = 50
"""Events of one job that are taken in at once: each looks at all of its replicas, and others wait for the
loop."""
_PAUSE = 1.0
"""Seconds before what could not be stored is tried again."""
_TOLD_EVERY = 60
"""Tries in a row that fail alike, of which one is told: the log may lie on the disk that is full."""


@dataclass(slots=True)
class Mailbox:
    """What came in for one job and is not applied yet."""

    events: list[Event] = field(default_factory=list[Event])
    #: The stored job may have changed: it is loaded again.
    reload: bool = False


class Mailboxes:
    """`apply`: takes in what came for a job; StaleCommit means that it is to be applied to the job as it is
    then. `more_to_come`: whether these events are soon followed by others of their kind."""

    def __init__(
        self,
        apply: Callable[[JobUid, Mailbox], Awaitable[None]],
        more_to_come: Callable[[JobUid, Mailbox], bool],
    ) -> None:
        self._apply = apply
        self._more_to_come = more_to_come
        self._mailboxes: defaultdict[JobUid, Mailbox] = defaultdict(Mailbox)
        self._busy: dict[JobUid, asyncio.Task[None]] = {}
        self._closing = False

    def wake(self, uid: JobUid) -> None:
        """The stored job was changed by somebody else, or is new."""
        self._mailboxes[uid].reload = True
        self._ensure_busy(uid)

    def add(self, uid: JobUid, event: Event) -> None:
        """Something happened to a job."""
        self._mailboxes[uid].events.append(event)
        self._ensure_busy(uid)

    def close(self) -> tuple[asyncio.Task[None], ...]:
        """Begin nothing more; returns what still works."""
        self._closing = True
        return tuple(self._busy.values())

    def _ensure_busy(self, uid: JobUid) -> None:
        if uid not in self._busy and not self._closing:
            self._busy[uid] = keep(partial(self._drain, uid), f"job {uid}: taking in its events")

    async def _drain(self, uid: JobUid) -> None:
        """Apply all that came in for one job, until nothing is left."""
        stale = refused = 0
        while uid in self._mailboxes and not self._closing:
            if self._more_to_come(uid, self._mailboxes[uid]):
                await asyncio.sleep(_GATHER)
            mailbox = self._take(uid)
            try:
                await self._apply(uid, mailbox)
                stale = refused = 0
            except StaleCommit:
                # A request wrote in between: look at the job again and apply the same events to it.
                stale += 1
                self._put_back(uid, mailbox)
                if stale > _STALE_LIMIT:
                    about(log, uid).error("changes under this service; has another one taken over?")
                    await asyncio.sleep(_PAUSE)
            except (EngineUnavailable, Unavailable) as failure:
                if refused % _TOLD_EVERY == 0:
                    about(log, uid).warning("%s; it is tried once more each second", failure)
                refused += 1
                self._put_back(uid, mailbox)
                await asyncio.sleep(_PAUSE)
            except Exception:
                # As broad as this: events are acknowledged once they are here, and must not be lost for a bug
                # in one step.
                about(log, uid).exception("events not stored; once more in a second")
                self._put_back(uid, mailbox)
                await asyncio.sleep(_PAUSE)
        del self._busy[uid]

    def _take(self, uid: JobUid) -> Mailbox:
        """What came in, or as much of it as is taken in at once; the rest stays."""
        mailbox = self._mailboxes.pop(uid)
        if len(mailbox.events) > _MOST:
            self._mailboxes[uid].events = mailbox.events[_MOST:]
            mailbox.events = mailbox.events[:_MOST]
        return mailbox

    def _put_back(self, uid: JobUid, mailbox: Mailbox) -> None:
        self._mailboxes[uid].events[:0] = mailbox.events
        self._mailboxes[uid].reload = True


class Alarms:
    """One pending wake-up per job, on the running event loop."""

    def __init__(self, now: Callable[[], int], ring: Callable[[JobUid, Deadline], None]) -> None:
        self._now = now
        self._ring = ring
        self._pending: dict[JobUid, tuple[Deadline, asyncio.TimerHandle]] = {}

    def set(self, uid: JobUid, deadlines: tuple[Deadline, ...]) -> None:
        """Replace the job's alarm by its earliest deadline; none clears it."""
        earliest = min(deadlines, key=lambda deadline: deadline.at, default=None)
        pending = self._pending.get(uid)
        if pending is not None:
            if pending[0] == earliest:
                return
            pending[1].cancel()
            del self._pending[uid]
        if earliest is not None:
            self._arm(uid, earliest)

    def close(self) -> None:
        for _, handle in self._pending.values():
            handle.cancel()
        self._pending.clear()

    def _arm(self, uid: JobUid, deadline: Deadline) -> None:
        delay = min(max(deadline.at - self._now(), 0) / 1e9, LONGEST_DELAY)
        handle = asyncio.get_running_loop().call_later(delay, self._check, uid, deadline)
        self._pending[uid] = (deadline, handle)

    def _check(self, uid: JobUid, deadline: Deadline) -> None:
        del self._pending[uid]
        if self._now() < deadline.at:
            self._arm(uid, deadline)
        else:
            self._ring(uid, deadline)
