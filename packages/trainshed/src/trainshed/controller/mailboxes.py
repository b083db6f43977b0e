"""Holds what came in for each job and is not applied yet. Each job's mailbox is drained by a task of its own,
so that no two changes of one job run together."""

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
"""Commits in a row that may find the job changed; more of them mean that another service has taken the
lead."""
_MAX_BATCH = 50
"""Events of one job that are applied at once: each of them looks at all replicas of the job, and other tasks
wait for the loop."""
_RETRY_INTERVAL = 1.0
"""Seconds before events that could not be applied are tried again."""


class Mailbox(Struct):
    """Events of one job that are not applied yet."""

    events: list[Event] = []
    #: Whether the stored job may have changed and has to be loaded again.
    reload: bool = False


class Mailboxes:
    """The mailboxes of all jobs. `apply`: applies the events of one job. It raises StaleCommit if
    they must be applied again, to a reloaded job."""

    def __init__(self, apply: Callable[[JobUid, Mailbox], Awaitable[None]]) -> None:
        self._apply = apply
        self._mailboxes: defaultdict[JobUid, Mailbox] = defaultdict(Mailbox)
        self._busy: dict[JobUid, asyncio.Task[None]] = {}
        self._held: set[JobUid] = set()
        self._closing = False

    def wake(self, uid: JobUid) -> None:
        """Load a job and process it: it is new, or another writer changed its stored state."""
        self._mailboxes[uid].reload = True
        self._ensure_busy(uid)

    def look(self, uid: JobUid) -> None:
        """Process a job without loading it: the controller has its stored state."""
        self._mailboxes.setdefault(uid, Mailbox())
        self._ensure_busy(uid)

    def add(self, uid: JobUid, event: Event) -> None:
        """Add an event of a job."""
        self._mailboxes[uid].events.append(event)
        self._ensure_busy(uid)

    def hold(self, uid: JobUid) -> None:
        """Keep what comes in for a job that is being stored, until `release` or `drop`."""
        self._held.add(uid)

    def release(self, uid: JobUid) -> None:
        """End the hold of a job that is now stored, and apply the events that arrived in between."""
        self._held.discard(uid)
        if uid in self._mailboxes:
            self._ensure_busy(uid)

    def drop(self, uid: JobUid) -> None:
        """End the hold of a job that was not stored, and drop what came in."""
        self._held.discard(uid)
        self._mailboxes.pop(uid, None)

    def close(self) -> tuple[asyncio.Task[None], ...]:
        """Begin nothing more, and return the tasks that still run."""
        self._closing = True
        return tuple(self._busy.values())

    def _ensure_busy(self, uid: JobUid) -> None:
        if uid not in self._busy and uid not in self._held and not self._closing:
            self._busy[uid] = keep(partial(self._drain, uid), f"job {uid}: processing its events")

    async def _drain(self, uid: JobUid) -> None:
        """Apply everything that came in for one job, until nothing is left."""
        stale = refused = 0
        while uid in self._mailboxes and not self._closing:
            mailbox = self._take(uid)
            try:
                await self._apply(uid, mailbox)
                stale = refused = 0
            except StaleCommit:
                # A request wrote in between: load the job again and apply the same events to it.
                stale += 1
                self._put_back(uid, mailbox)
                if stale > _STALE_LIMIT:
                    about(log, uid).error(
                        "another process changed the state; check whether a second service has taken "
                        "over"
                    )
                    await asyncio.sleep(_RETRY_INTERVAL)
            except Unavailable as failure:
                if not refused:  # Once, since the log may be on the full disk.
                    about(log, uid).warning("%s; retrying every second", failure)
                refused += 1
                self._put_back(uid, mailbox)
                await asyncio.sleep(_RETRY_INTERVAL)
            except Exception:
                # Broad on purpose: events are acknowledged once they are here, and a bug in one step must not
                # lose them.
                about(log, uid).exception("events not stored; retrying in a second")
                self._put_back(uid, mailbox)
                await asyncio.sleep(_RETRY_INTERVAL)
        del self._busy[uid]

    def _take(self, uid: JobUid) -> Mailbox:
        """Take out what came in, at most `_MAX_BATCH` events; the rest stays."""
        mailbox = self._mailboxes.pop(uid)
        if len(mailbox.events) > _MAX_BATCH:
            self._mailboxes[uid].events = mailbox.events[_MAX_BATCH:]
            mailbox.events = mailbox.events[:_MAX_BATCH]
        return mailbox

    def _put_back(self, uid: JobUid, mailbox: Mailbox) -> None:
        self._mailboxes[uid].events[:0] = mailbox.events
        self._mailboxes[uid].reload = True


_ROUNDING = 1e-3
"""Seconds by which an alarm is later: timers of event loops come early by up to half a millisecond."""


def seconds_until(at: Nanos, now: Nanos) -> float:
    """For how long to set a timer so that it is not over before the moment `at`."""
    return max(at - now, 0) / 1e9 + _ROUNDING


class Alarms:
    """The alarms of all jobs on the running event loop, a timer for each deadline. All deadlines
    are distances from an event. They are measured by the loop's monotonic clock, from the moment
    at which this service receives them (docs/adr/0165).

    `now`: nanoseconds since the epoch. `ring`: called at each deadline.
    """

    def __init__(self, now: Callable[[], int], ring: Callable[[JobUid, Deadline], None]) -> None:
        self._now = now
        self._ring = ring
        self._timers: dict[JobUid, dict[Deadline, asyncio.TimerHandle]] = {}

    def set(self, uid: JobUid, deadlines: tuple[Deadline, ...]) -> None:
        """Replace the job's alarms; existing alarms with the same deadline stay unchanged."""
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
        # A deadline that returns is measured again.
        del self._timers[uid][deadline]
        self._ring(uid, deadline)
