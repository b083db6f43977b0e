"""An attempt's environments while they are built and when they are there: what the timeline tells of them.

How it goes wrong is told by the failure table (`machine`).
"""

from trainshed.core.lifecycle.events import PreparationAdvanced, RuntimePrepared, TimelineEntry
from trainshed.core.lifecycle.states import AttemptState, AttemptTrigger
from trainshed.core.lifecycle.turn import Turn


def take(turn: Turn, event: RuntimePrepared | PreparationAdvanced) -> None:
    """Go on with what is prepared; of what is being prepared only tell."""
    if event.attempt != turn.job.attempt:
        return
    match event:
        case RuntimePrepared():
            if turn.attempt_goes(AttemptTrigger.PREPARED):
                turn.tell(_launching(event, turn.now))
        case PreparationAdvanced():
            if turn.job.phase is AttemptState.PREPARING:
                turn.tell(_building(event, turn.now))


def _building(event: PreparationAdvanced, now: int) -> TimelineEntry:
    message = f"After {_rounded(event.took)}: {event.message}"
    return TimelineEntry(now, "building", message, {"attempt": event.attempt, "took": event.took})


def _launching(event: RuntimePrepared, now: int) -> TimelineEntry:
    after = f" after {_rounded(event.took)}" if event.took else ""
    details = {"took": event.took} if event.took else {}
    return TimelineEntry(
        now, "launching", f"The runtime is ready{after}; starting all replicas.", details
    )


def _rounded(nanoseconds: int) -> str:
    """A time that was measured: to the tenth of a second, a long one to the second."""
    seconds = nanoseconds / 10**9
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
