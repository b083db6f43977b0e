"""Sends the notifications that commits have put into the outbox.

Each notification is retried with growing pauses for a day, and its result is added to the job's timeline (ADR
78). Jobs do not wait for notifications.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Final

from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.notifications import (
    BudgetNotice,
    Notification,
    Occasion,
    budget_notices,
    next_try,
    notifications,
)
from trainshed.core.units import Nanos
from trainshed.core.usage import Budget
from trainshed.eventloop.background import Crew, joined
from trainshed.notifying.senders import Senders
from trainshed.notifying.targets import NotSent
from trainshed.store.port import Commit
from trainshed.store.records import Outgoing
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.resources import Notifications
from trainshed.telemetry.lines import about
from trainshed.telemetry.meters import Meters

log = logging.getLogger(__name__)

_TARGET_TURN: Final = 10 * 10**9
"""Maximum time in nanoseconds for sending to one target in one pass. After this time, the remaining
notifications to the target wait for the next pass, which includes new notifications to all targets."""
_BATCH: Final = 500
"""Maximum number of notifications to each target in one pass. A target that does not respond delays the pass,
and therefore all other targets, by ten seconds."""
_MAX_PAUSE: Final = 3600 * 10**9
"""Maximum pause between attempts in nanoseconds. A notification with a later due time is sent at once,
because the time was computed while the clock was ahead."""
_MAX_WAIT: Final = 600.0
"""Maximum seconds between two passes, so that a changed clock is detected."""
_DISK_PAUSE: Final = 5.0
"""Seconds to wait after a failed write to the store."""
_WORDS: Final = {
    Occasion.SUCCEEDED: "the job has succeeded",
    Occasion.FAILED: "the job has failed",
    Occasion.CANCELLED: "the job was cancelled",
    Occasion.STALLED: "the job has stalled",
    Occasion.BUDGET: "a budget has reached a percentage",
}


class OutboxWorker:
    """Sends the notifications of the outbox to targets. `page`: the beginning of the addresses of jobs'
    pages. `now`: ns since the epoch."""

    def __init__(
        self,
        sender: Senders,
        outbox: Notifications,
        intake: Intake,
        now: Callable[[], int],
        meters: Meters,
        *,
        page: str,
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

    @property
    def marks(self) -> tuple[int, ...]:
        """The percentages of budgets at which a target receives a notification, ascending."""
        return tuple(sorted(set(chain.from_iterable(t.budgets for t in self._targets))))

    def notify_budgets(self, budgets: Sequence[Budget], month: Nanos) -> None:
        """Notify each target about budgets that have reached one of the target's marks. Skip notifications
        that the target has already received. `month`: the start of the budgets' month."""
        if notices := budget_notices(budgets, month, self._targets, self._now()):
            # No retry is necessary, because the next check of the budgets repeats the notification.
            self._crew.begin(self._put(notices), "storing notifications of budgets")

    def notifications_of(self, commit: Commit) -> tuple[Notification, ...]:
        """Return the notifications that follow from one step of a job, tuning job or pipeline."""
        if not self._targets:
            return ()
        return notifications(commit.job, commit.timeline, self._targets, self._now(), self._page)

    def wake(self) -> None:
        """Start a pass, because the outbox has a new notification."""
        self._news.set()

    def start(self) -> None:
        """Start sending, including notifications from an earlier service."""
        self._crew.keep(self._run, "sending notifications")

    async def close(self) -> None:
        """Stop sending. Undelivered notifications stay stored."""
        await self._crew.close()

    async def _put(self, notices: Sequence[BudgetNotice]) -> None:
        await self._outbox.put_budgets(notices)
        self.wake()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                wait = await self._send_due()
            except Unavailable:
                # The store rejected a write, for example because the disk is full. Try again after a pause.
                wait = _DISK_PAUSE
            if wait:
                task = joined(self._news.wait())
                await asyncio.wait((task,), timeout=wait)
                task.cancel()

    async def _send_due(self) -> float:
        """Send the due notifications. Return the seconds until the next pass, or 0 for an immediate one."""
        waiting = await self._outbox.waiting(_BATCH)
        now = self._now()
        due = [outgoing for outgoing in waiting if not now < outgoing.due <= now + _MAX_PAUSE]
        if not due:
            later = [outgoing.due - now for outgoing in waiting]
            return min(_MAX_WAIT, *(gap / 1e9 for gap in later)) if later else _MAX_WAIT
        # Send to all targets in parallel. A target that does not respond delays only its own notifications in
        # this pass.
        due.sort(key=lambda outgoing: outgoing.notification.target)
        groups = [
            list(outgoing) for _, outgoing in groupby(due, lambda outgoing: outgoing.notification.target)
        ]
        # Wait for all groups. Another pass before their end would send notifications twice.
        ends = await asyncio.gather(*map(self._try_all, groups), return_exceptions=True)
        for failure in filter(None, ends):
            raise failure
        return 0

    async def _try_all(self, group: Sequence[Outgoing]) -> None:
        """Send the notifications of one target. After a failure the remaining ones are skipped, because they
        would probably fail as well, and each attempt may take long."""
        cause, begun = None, self._now()
        for outgoing in group:
            if cause is None and self._now() - begun > _TARGET_TURN:
                return  # The next pass sends the remaining notifications, which are still due.
            due = next_try(outgoing.notification.created, outgoing.tries + 1, self._now())
            # The next attempt is stored first. Otherwise each pass would send the notification again on a
            # full disk.
            await self._outbox.put_off(outgoing.id, due or self._now())
            cause = cause or await self._try(outgoing)
            if cause is not None:
                await self._record_failure(outgoing, cause, is_last=due is None)

    async def _try(self, outgoing: Outgoing) -> str | None:
        """Send one notification. Return the reason for a failure, or None."""
        notification = outgoing.notification
        what = f"{notification.target} was notified that {_WORDS[notification.occasion]}"
        try:
            unreached = await self._sender.send(
                notification.target, f"{notification.job_uid or 'budget'}-{outgoing.id}", notification.content
            )
        except NotSent as failure:
            return str(failure)
        except Exception as failure:
            # All exceptions are caught, because one failing notification must not block all others.
            _log(notification).exception("telling %s failed", notification.target)
            return repr(failure)
        self._meters.notifications[(notification.target, "sent")] += 1
        if unreached is not None:
            what += unreached
            _log(notification).warning("%s", what)
        await self._tell(outgoing, "notified", f"{what}.")
        await self._outbox.remove(outgoing.id)
        return None

    async def _record_failure(self, outgoing: Outgoing, cause: str, *, is_last: bool) -> None:
        notification, tries = outgoing.notification, outgoing.tries + 1
        word = _WORDS[notification.occasion]
        what = f"{notification.target} could not be notified that {word}: {cause}."
        _log(notification).warning("%s", what)
        if is_last:
            self._meters.notifications[(notification.target, "given_up")] += 1
            await self._tell(outgoing, "notify_failed", f"{what} The service stopped after {tries} tries.")
            await self._outbox.remove(outgoing.id)
            return
        self._meters.notifications[(notification.target, "failed")] += 1
        if tries == 1:
            await self._tell(outgoing, "notify_delayed", f"{what} The service retries for a day.")

    async def _tell(self, outgoing: Outgoing, kind: str, message: str) -> None:
        notification = outgoing.notification
        if notification.job_uid is None:
            return
        details = {"target": notification.target, "occasion": notification.occasion.value}
        await self._intake.add_timeline_entry(
            (notification.job_uid,), TimelineEntry(self._now(), kind, message, details)
        )


def _log(notification: Notification) -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    return log if notification.job_uid is None else about(log, notification.job_uid)
