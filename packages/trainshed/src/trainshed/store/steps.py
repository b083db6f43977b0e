"""The next step of a work that runs through other jobs (a tuning job or a pipeline), as its reconciler
computes it."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from trainshed.core.lifecycle.events import CancelCause, CancelRequested, Event
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed.store.port import Commit, LiveJob


class Next(Struct, frozen=True):
    """The result of reconciling a tuning job or pipeline with its jobs."""

    job: Work
    #: The commit to store, or None without changes.
    commit: Commit | None = None
    #: Jobs to cancel after the commit is stored.
    cancel: tuple[tuple[JobUid, CancelCause], ...] = ()
    #: Times of the next reconciliations.
    deadlines: tuple[Deadline, ...] = ()


Reconciler = Callable[[LiveJob[Work], Sequence[Event]], Awaitable[Next]]
"""Computes the next step of one tuning job or pipeline. It may read and compute for a long time, but writes
nothing."""


def intents(live: LiveJob[Work], events: Sequence[Event]) -> tuple[CancelRequested, ...]:
    """Return the cancels that a tuning job or pipeline has to apply. Other intents (stored requests) are
    drills, which are faults that users order, and only jobs have them."""
    wanted = (*(intent.event for intent in live.intents), *events)
    return tuple(cancel for cancel in wanted if isinstance(cancel, CancelRequested))


def last_intent(live: LiveJob[Work]) -> int:
    """Return the number of the last stored intent of a tuning job or pipeline, or 0 without intents. The next
    commit applies all intents up to this number."""
    return live.intents[-1].seq if live.intents else 0
