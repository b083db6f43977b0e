"""Sends the notifications that commits have put into the outbox. Each one is tried again with growing pauses
for a day, and the result is put on the job's timeline (ADR 78). Jobs do not wait for it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, Protocol

from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.notifications import Notification, Occasion, Target, next_try, notifications
from trainshed.eventloop.background import Crew, joined
from trainshed.notifying.targets import NotSent
from trainshed.store.port import Commit, Intake
from trainshed.store.resources import Notifications, Outgoing
from trainshed.telemetry.lines import about
from trainshed.telemetry.meters import Meters

log = logging.getLogger(__name__)

_BATCH: Final = 50
"""Notifications that are looked at together."""
_LONGEST_WAIT: Final = 600.0
"""Seconds; a later try is looked for again after this, so that a changed clock is noticed."""
_DISK_PAUSE: Final = 5.0
"""Seconds of pause if the store could not be written to."""
_WORDS: Final = {
    Occasion.SUCCEEDED: "has succeeded",
    Occasion.FAILED: "has failed",
    Occasion.CANCELLED: "was cancelled",
    Occasion.STALLED: "has stalled",
}


class Sender(Protocol):
    """Delivers notifications to targets."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets that can be notified."""
        ...

    async def send(self, target: str, id_: str, content: str) -> None:
        """Try once to deliver. Raises NotSent. `id_`: the same at each try."""
        ...


class OutboxWorker:
    """Sends the notifications of the outbox to targets.

    `page`: the address below which jobs have pages, "" = there is none. `now`: ns since the epoch.
    """

    def __init__(
        self,
        sender: Sender,
        outbox: Notifications,
        intake: Intake,
        now: Callable[[], int],
        meters: Meters,
        *,
        page: str = "",
    ) -> None:
        self._sender = sender
        self._outbox = outbox
        self._intake = intake
        self._now = now
        self._meters = meters
        self._page = page
        self._targets = sender.targets
        self._news = asyncio.Event()
        self._crew = Crew()

    def of(self, commit: Commit) -> tuple[Notification, ...]:
        """Return the notifications that a step asks for."""
        if not self._targets:
            return ()
        return notifications(commit.job, commit.timeline, self._targets, self._now(), self._page)

    def wake(self) -> None:
        """Have the outbox looked at, since something was put into it."""
        self._news.set()

    def start(self) -> None:
        """Begin to send, including what an earlier service left."""
        self._crew.keep(self._run, "sending notifications")

    async def close(self) -> None:
        """Send nothing more; what is not delivered stays stored."""
        await self._crew.close()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                wait = await self._send_due()
            except Unavailable:
                # The disk may be full. What was sent, but not removed from the outbox, is sent again.
                wait = _DISK_PAUSE
            if wait:
                task = joined(self._news.wait())
                await asyncio.wait((task,), timeout=wait)
                task.cancel()

    async def _send_due(self) -> float:
        """Try what is due. Return the seconds until there is more to do, 0 = at once."""
        waiting = await self._outbox.waiting(_BATCH)
        due = [each for each in waiting if each.due <= self._now()]
        if not due:
            later = [each.due - self._now() for each in waiting]
            return min(_LONGEST_WAIT, *(gap / 1e9 for gap in later)) if later else _LONGEST_WAIT
        # A target that hangs delays its own notifications alone.
        due.sort(key=lambda each: each.notification.target)
        groups = [list(each) for _, each in groupby(due, lambda each: each.notification.target)]
        await asyncio.gather(*map(self._try_all, groups))
        return 0

    async def _try_all(self, group: Sequence[Outgoing]) -> None:
        """Send the notifications of one target. After a failure the rest is not tried, because it would fail
        as well, and each try may take long."""
        cause = ""
        for each in group:
            if cause:
                await self._failed(each, cause)
            else:
                cause = await self._try(each)

    async def _try(self, each: Outgoing) -> str:
        """Send one notification. Return why that failed, "" = it did not."""
        told = each.notification
        what = f"{told.target} was told that the job {_WORDS[told.occasion]}"
        try:
            await self._sender.send(told.target, f"{told.job_uid}-{each.id}", told.content)
        except NotSent as failure:
            cause = str(failure)
        except Exception as failure:
            # Broad on purpose: one notification that makes its sender fail must not hold up all others.
            about(log, told.job_uid).exception("telling %s failed", told.target)
            cause = repr(failure)
        else:
            self._meters.notifications[(told.target, "sent")] += 1
            await self._tell(each, "notified", f"{what}.")
            await self._outbox.remove(each.id)
            return ""
        await self._failed(each, cause)
        return cause

    async def _failed(self, each: Outgoing, cause: str) -> None:
        told, tries = each.notification, each.tries + 1
        what = f"{told.target} could not be told that the job {_WORDS[told.occasion]}: {cause}."
        due = next_try(told.created, tries, self._now())
        about(log, told.job_uid).warning("%s", what)
        if due is None:
            self._meters.notifications[(told.target, "given_up")] += 1
            await self._tell(each, "notify_failed", f"{what} Given up after {tries} tries.")
            await self._outbox.remove(each.id)
            return
        self._meters.notifications[(told.target, "failed")] += 1
        await self._outbox.put_off(each.id, due)
        if tries == 1:
            await self._tell(each, "notify_delayed", f"{what} It is tried again for a day.")

    async def _tell(self, each: Outgoing, kind: str, message: str) -> None:
        told = each.notification
        details = {"target": told.target, "occasion": told.occasion.value}
        await self._intake.tell(told.job_uid, (TimelineEntry(self._now(), kind, message, details),))
