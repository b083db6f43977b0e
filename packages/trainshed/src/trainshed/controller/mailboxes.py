"""Stores the events of each job until they are applied. Each job's mailbox has a task of its own, so that
changes of one job never run concurrently."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct

from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.eventloop.background import keep
from trainshed.store.port import StaleCommit
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_STALE_LIMIT = 20
"""Maximum number of successive commits that find a changed job. A larger number shows that another service is
the leader."""
_MAX_BATCH = 50
"""Maximum number of events of one job that are applied at once. Each event reads all replicas of the job,
while other tasks wait for the loop."""
_RETRY_INTERVAL = 1.0
"""Seconds before events that could not be applied are tried again."""


class Mailbox(Struct):
    """Events of one job that are not applied yet."""

    events: list[Event] = []
    #: Whether the stored job may have changed and must be loaded again.
    reload: bool = False


class Mailboxes:
    """The mailboxes of all jobs.

    `apply`: applies the events of one job. It raises StaleCommit if the events must be applied again to a
    reloaded job.
    """

    def __init__(self, apply: Callable[[JobUid, Mailbox], Awaitable[None]]) -> None:
        self._apply = apply
        self._mailboxes: defaultdict[JobUid, Mailbox] = defaultdict(Mailbox)
        self._busy: dict[JobUid, asyncio.Task[None]] = {}
        self._held: set[JobUid] = set()
        self._closing = False

    def wake(self, uid: JobUid) -> None:
        """Load a job and process it, because it is new or another writer has changed it."""
        self._mailboxes[uid].reload = True
        self._ensure_busy(uid)

    def process(self, uid: JobUid) -> None:
        """Process a job without loading it. The controller already has its stored state."""
        self._mailboxes.setdefault(uid, Mailbox())
        self._ensure_busy(uid)

    def add(self, uid: JobUid, event: Event) -> None:
        """Add an event of a job."""
        self._mailboxes[uid].events.append(event)
        self._ensure_busy(uid)

    def hold(self, uid: JobUid) -> None:
        """Collect the events of a job that is being stored. `release` applies them. `drop` discards them."""
        self._held.add(uid)

    def release(self, uid: JobUid) -> None:
        """Apply the collected events of a job that is now stored."""
        self._held.discard(uid)
        if uid in self._mailboxes:
            self._ensure_busy(uid)

    def drop(self, uid: JobUid) -> None:
        """Discard the collected events of a job that was not stored."""
        self._held.discard(uid)
        self._mailboxes.pop(uid, None)

    def close(self) -> tuple[asyncio.Task[None], ...]:
        """Start no new tasks, and return the tasks that still run."""
        self._closing = True
        return tuple(self._busy.values())

    def _ensure_busy(self, uid: JobUid) -> None:
        if uid not in self._busy and uid not in self._held and not self._closing:
            self._busy[uid] = keep(partial(self._drain, uid), f"job {uid}: processing its events")

    async def _drain(self, uid: JobUid) -> None:
        """Apply all events of one job, until its mailbox is empty."""
        stale = refused = 0
        while uid in self._mailboxes and not self._closing:
            mailbox = self._remove_batch(uid)
            try:
                await self._apply(uid, mailbox)
                stale = refused = 0
            except StaleCommit:
                # A request wrote in the meantime: load the job again and apply the same events.
                stale += 1
                self._put_back(uid, mailbox)
                if stale > _STALE_LIMIT:
                    about(log, uid).error(
                        "another process changed the state; check whether a second service has taken over"
                    )
                    await asyncio.sleep(_RETRY_INTERVAL)
            except Unavailable as failure:
                if not refused:  # Log this only once, because the log may be on the full disk.
                    about(log, uid).warning("%s; retrying every second", failure)
                refused += 1
                self._put_back(uid, mailbox)
                await asyncio.sleep(_RETRY_INTERVAL)
            except Exception:
                # All exceptions are caught, because received events count as acknowledged, and an error in
                # one step must not lose them.
                about(log, uid).exception("events not stored; retrying in a second")
                self._put_back(uid, mailbox)
                await asyncio.sleep(_RETRY_INTERVAL)
        del self._busy[uid]

    def _remove_batch(self, uid: JobUid) -> Mailbox:
        """Remove at most `_MAX_BATCH` events from the mailbox, and return them."""
        mailbox = self._mailboxes.pop(uid)
        if len(mailbox.events) > _MAX_BATCH:
            self._mailboxes[uid].events = mailbox.events[_MAX_BATCH:]
            mailbox.events = mailbox.events[:_MAX_BATCH]
        return mailbox

    def _put_back(self, uid: JobUid, mailbox: Mailbox) -> None:
        self._mailboxes[uid].events[:0] = mailbox.events
        self._mailboxes[uid].reload = True


_ROUNDING = 1e-3
"""Seconds that are added to each alarm, because timers of event loops may fire up to half a millisecond
early."""


def seconds_until(at: Nanos, now: Nanos) -> float:
    """Return the seconds for a timer that must not fire before the time `at`."""
    return max(at - now, 0) / 1e9 + _ROUNDING


class Alarms:
    """The alarms of all jobs on the running event loop, with one timer for each deadline.

    All deadlines are relative to an event. The loop's monotonic clock measures them from the moment at which
    this service receives them (docs/adr/0165). `now`: nanoseconds since the epoch. `ring`: called at each
    deadline.
    """

    def __init__(self, now: Callable[[], int], ring: Callable[[JobUid, Deadline], None]) -> None:
        self._now = now
        self._ring = ring
        self._timers: dict[JobUid, dict[Deadline, asyncio.TimerHandle]] = {}

    def set(self, uid: JobUid, deadlines: tuple[Deadline, ...]) -> None:
        """Replace the job's alarms. Existing alarms with the same deadline stay unchanged."""
        loop, now = asyncio.get_running_loop(), self._now()
        before = self._timers.pop(uid, {})
        timers = {
            deadline: before.pop(deadline, None)
            or loop.call_later(seconds_until(deadline.at, now), self._rings, uid, deadline)
            for deadline in deadlines
        }
        if timers:
            self._timers[uid] = timers
        for timer in before.values():
            timer.cancel()

    def close(self) -> None:
        for uid in tuple(self._timers):
            self.set(uid, ())

    def _rings(self, uid: JobUid, deadline: Deadline) -> None:
        # Remove the timer before the deadline is processed. If the same deadline is set again, `set` then
        # starts a new timer.
        del self._timers[uid][deadline]
        self._ring(uid, deadline)
