"""What came in for each job and is not applied yet, drained by a task of its own for each job, so that no two
changes of one job run together."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct, field

from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import keep
from trainshed.store.port import StaleCommit
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_STALE_LIMIT = 20
"""Commits in a row that may find the job changed; more mean that another service has taken the lead."""
_GATHER = 0.05
"""Seconds for which events are gathered of which more are sure to come, and not longer than until the last of
them. A gang's start, or its end, is then a commit or two, and the processors are its programs'."""
_MOST = 50
"""Events of one job that are taken in at once: each looks at all of its replicas, and others wait for the
loop."""
_PAUSE = 1.0
"""Seconds before what could not be stored is tried again."""
_TOLD_EVERY = 60
"""Tries in a row that fail alike, of which one is told: the log may lie on the disk that is full."""
_OF_A_GANG = (ReplicaStarted, ReplicaExited, ReplicaLost)
"""What comes from each of its replicas."""


class Mailbox(Struct):
    """What came in for one job and is not applied yet."""

    events: list[Event] = []
    #: The stored job may have changed: it is loaded again.
    reload: bool = False
    #: Replicas from which an event is waited for, of those kinds that come from all of a gang.
    awaited: set[ReplicaId] = set()
    #: Set when all of them have told theirs, or something else has come in.
    is_complete: asyncio.Event = field(default_factory=asyncio.Event)


class Mailboxes:
    """`apply`: takes in what came for a job; StaleCommit means that it is to be applied to the job as it is
    then. `expected`: the replicas of which events like these, which come from all of a gang, come in soon, or
    have come in; none = they are of other kinds."""

    def __init__(
        self,
        apply: Callable[[JobUid, Mailbox], Awaitable[None]],
        expected: Callable[[JobUid, Mailbox], set[ReplicaId]],
    ) -> None:
        self._apply = apply
        self._expected = expected
        self._mailboxes: defaultdict[JobUid, Mailbox] = defaultdict(Mailbox)
        self._busy: dict[JobUid, asyncio.Task[None]] = {}
        self._held: set[JobUid] = set()
        self._closing = False

    def wake(self, uid: JobUid) -> None:
        """The stored job was changed by somebody else, or is new."""
        mailbox = self._mailboxes[uid]
        mailbox.reload = True
        mailbox.is_complete.set()
        self._ensure_busy(uid)

    def look(self, uid: JobUid) -> None:
        """What the controller has of a job is as it is stored, and was not looked at yet."""
        self._mailboxes.setdefault(uid, Mailbox())
        self._ensure_busy(uid)

    def add(self, uid: JobUid, event: Event) -> None:
        """Something happened to a job."""
        mailbox = self._mailboxes[uid]
        mailbox.events.append(event)
        if isinstance(event, _OF_A_GANG):
            mailbox.awaited.discard(event.replica)
        if not mailbox.awaited or not isinstance(event, _OF_A_GANG):
            mailbox.is_complete.set()
        self._ensure_busy(uid)

    def hold(self, uid: JobUid) -> None:
        """Keep what comes in for a job that is just being stored, until `release` or `drop`."""
        self._held.add(uid)

    def release(self, uid: JobUid) -> None:
        """It is stored: take in what has come meanwhile."""
        self._held.discard(uid)
        if uid in self._mailboxes:
            self._ensure_busy(uid)

    def drop(self, uid: JobUid) -> None:
        """It was not stored: there is nobody whom anything can have happened to."""
        self._held.discard(uid)
        self._mailboxes.pop(uid, None)

    def close(self) -> tuple[asyncio.Task[None], ...]:
        """Begin nothing more; returns what still works."""
        self._closing = True
        return tuple(self._busy.values())

    def _ensure_busy(self, uid: JobUid) -> None:
        if uid not in self._busy and uid not in self._held and not self._closing:
            self._busy[uid] = keep(partial(self._drain, uid), f"job {uid}: taking in its events")

    async def _drain(self, uid: JobUid) -> None:
        """Apply all that came in for one job, until nothing is left."""
        stale = refused = 0
        while uid in self._mailboxes and not self._closing:
            await self._gather(uid)
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

    async def _gather(self, uid: JobUid) -> None:
        mailbox = self._mailboxes[uid]
        told = {event.replica for event in mailbox.events if isinstance(event, _OF_A_GANG)}
        mailbox.awaited = self._expected(uid, mailbox) - told
        if mailbox.awaited:
            mailbox.is_complete.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER):
                    await mailbox.is_complete.wait()
        mailbox.awaited = set()

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
