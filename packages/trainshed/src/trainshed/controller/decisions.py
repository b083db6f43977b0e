"""Requests decisions from the capacity tracker at the right times, and reports them as events of their
jobs."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from trainshed.controller.budgets import Budgets
from trainshed.controller.capacity import CapacityTracker
from trainshed.controller.mailboxes import seconds_until
from trainshed.controller.reservations import Reservations
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.core.usage import HOUR, month_of
from trainshed.eventloop.background import keep
from trainshed.scheduler.model import Decision, Policy, event_of_decision
from trainshed.store.sqlite.reader import Reader

_MAX_HALF_LIVES: Final = 8
"""Number of half-lives for which usage counts in the fair share."""
_PERIOD: Final = 6 * HOUR
"""Length in nanoseconds of the periods over which past usage is summed up."""

log = logging.getLogger(__name__)


class Decisions:
    """Requests decisions from the capacity tracker, reports them as events of their jobs, and loads the
    tracker's data from the store. One per controller, on its event loop."""

    def __init__(
        self,
        policy: Policy,
        now: Callable[[], int],
        *,
        stored: Callable[[JobUid], Job | None],
        report: Callable[[JobUid, Event], None],
        budgets: Budgets,
        at_once: int,
    ) -> None:
        """`stored`: returns a live job. `report`: receives an event of a job. `at_once`: see
        `CapacityTracker`."""
        #: Receives decisions about holds of persistent resources, and checks changed resources.
        self.reservations: Reservations | None = None
        self.capacity = CapacityTracker(policy, self._decide_at, self._report_from_thread, at_once, budgets)
        self._watching: asyncio.Task[None] | None = None
        self._remembered = _MAX_HALF_LIVES * policy.half_life
        self._now = now
        self._stored = stored
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def read_usage(self, reader: Reader) -> None:
        """Load the usage from before this start, for this month's budgets and for the fair share."""
        now = self._now()
        month, _ = month_of(now)
        self.capacity.budgets.load(await reader.machine_time(None, month, now), now)
        for used, began in await reader.past_use(now - self._remembered, _PERIOD):
            self.capacity.add_past_usage(used, began, min(began + _PERIOD, now))

    async def read_orders(self, reader: Reader) -> None:
        """Load the operators' settings: drained nodes and quotas."""
        self.capacity.set_drains(await reader.drained_nodes())
        self.capacity.set_quotas(dict(await reader.quotas()))
        if self.capacity.budgets.limits and self._watching is None and not self._is_closed:
            watch = partial(self.capacity.budgets.watch, self._now, self._time_passed)
            self._watching = keep(watch, "checking budgets")

    def close(self, error: Exception) -> None:
        """Stop making decisions. Preflight checks are rejected with the error."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
        self.capacity.refuse(error)
        if self._timer is not None:
            self._timer.cancel()

    def decide(self) -> None:
        """Run the scheduler on all changes. Never raises an error, so that callers can continue."""
        if not self._is_closed:
            if self.reservations is not None:
                self.reservations.check()
            for uid, event in self.new_decisions():
                self._report(uid, event)

    def _report_from_thread(self, decisions: Sequence[Decision]) -> None:
        """Report decisions of the scheduler's thread, and process the changes since the start of its plan."""
        if not self._is_closed:
            for uid, event in self._events(decisions):
                self._report(uid, event)
            self.decide()

    def new_decisions(self, current: Job | None = None) -> list[tuple[JobUid, Event]]:
        """Return new decisions as events of their jobs, or no decisions if the scheduler fails. `current`: a
        job that is about to be stored."""
        try:
            return list(self._events(self.capacity.decide(self._now()), current))
        except Exception:
            # All exceptions are caught, because the caller has a job to store or to continue, even if the
            # scheduler fails because of another job.
            log.exception("the scheduler failed; it runs again at the next change")
            return []

    def _events(
        self, decisions: Sequence[Decision], current: Job | None = None
    ) -> Iterator[tuple[JobUid, Event]]:
        for decision in decisions:
            if self.reservations is not None and self.reservations.apply_decision(decision):
                continue
            is_current = current is not None and current.uid == decision.uid
            job = current if is_current else self._stored(decision.uid)
            if (event := event_of_decision(decision, job)) is not None:
                yield decision.uid, event

    def _decide_at(self, at: Nanos) -> None:
        """Set the timer for `at` (ns), when a job may start without other changes."""
        delay, loop = seconds_until(at, self._now()), asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay:
                return  # The existing timer fires earlier, and then all snapshots are planned.
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self.capacity.time_passed()
        self.decide()
