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
        due = [outgoing for outgoing in waiting if outgoing.due <= self._now()]
        if not due:
            later = [outgoing.due - self._now() for outgoing in waiting]
            return min(_LONGEST_WAIT, *(gap / 1e9 for gap in later)) if later else _LONGEST_WAIT
        # A target that hangs delays its own notifications alone.
        due.sort(key=lambda outgoing: outgoing.notification.target)
        groups = [
            list(outgoing)
            for _, outgoing in groupby(due, lambda outgoing: outgoing.notification.target)
        ]
        await asyncio.gather(*map(self._try_all, groups))
        return 0

    async def _try_all(self, group: Sequence[Outgoing]) -> None:
        """Send the notifications of one target. After a failure the rest is not tried, because it would fail
        as well, and each try may take long."""
        cause = ""
        for outgoing in group:
            if cause:
                await self._failed(outgoing, cause)
            else:
                cause = await self._try(outgoing)

    async def _try(self, outgoing: Outgoing) -> str:
        """Send one notification. Return why that failed, "" = it did not."""
        notification = outgoing.notification
        what = f"{notification.target} was told that the job {_WORDS[notification.occasion]}"
        try:
            await self._sender.send(
                notification.target, f"{notification.job_uid}-{outgoing.id}", notification.content
            )
        except NotSent as failure:
            cause = str(failure)
        except Exception as failure:
            # Broad on purpose: one notification that makes its sender fail must not hold up all others.
            about(log, notification.job_uid).exception("telling %s failed", notification.target)
            cause = repr(failure)
        else:
            self._meters.notifications[(notification.target, "sent")] += 1
            await self._tell(outgoing, "notified", f"{what}.")
            await self._outbox.remove(outgoing.id)
            return ""
        await self._failed(outgoing, cause)
        return cause

    async def _failed(self, outgoing: Outgoing, cause: str) -> None:
        notification, tries = outgoing.notification, outgoing.tries + 1
        word = _WORDS[notification.occasion]
        what = f"{notification.target} could not be told that the job {word}: {cause}."
        due = next_try(notification.created, tries, self._now())
        about(log, notification.job_uid).warning("%s", what)
        if due is None:
            self._meters.notifications[(notification.target, "given_up")] += 1
            await self._tell(outgoing, "notify_failed", f"{what} Given up after {tries} tries.")
            await self._outbox.remove(outgoing.id)
            return
        self._meters.notifications[(notification.target, "failed")] += 1
        await self._outbox.put_off(outgoing.id, due)
        if tries == 1:
            await self._tell(outgoing, "notify_delayed", f"{what} It is tried again for a day.")

    async def _tell(self, outgoing: Outgoing, kind: str, message: str) -> None:
        notification = outgoing.notification
        details = {"target": notification.target, "occasion": notification.occasion.value}
        await self._intake.tell(
            notification.job_uid, (TimelineEntry(self._now(), kind, message, details),)
        )
