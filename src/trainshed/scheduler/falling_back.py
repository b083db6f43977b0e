"""Decides, before each plan, which waiting gangs take another of their choices: one that can never start as
it is, or that has waited for as long as its job says while another of its choices is free."""

from trainshed.core.capacity import QuotaKey
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry
from trainshed.scheduler.explaining import SECOND, why
from trainshed.scheduler.feasibility import assess
from trainshed.scheduler.model import FallBack, GangState, with_choice
from trainshed.scheduler.resources import Placement, find_placements
from trainshed.scheduler.snapshot import Snapshot

MOST = 256
"""Most gangs looked at for one plan, the oldest first: a plan's cost must not grow with all that wait."""


def fall_backs(snapshot: Snapshot, now: Nanos) -> tuple[tuple[FallBack, ...], int]:
    """Return which gangs fall back to what, and when the passing of time alone may make another one do so
    (ns, 0 = never). The snapshot is afterwards as it was."""
    pass_ = _Pass(snapshot, now)
    for entry in snapshot.flexible[:MOST]:
        pass_.look_at(entry)
    snapshot.free.give_back(pass_.taken)
    return tuple(pass_.found), pass_.look_again


class _Pass:
    def __init__(self, snapshot: Snapshot, now: Nanos) -> None:
        self.found: list[FallBack] = []
        self.look_again = 0
        #: Places that gangs get by falling back: no other gang may count on them.
        self.taken: list[Placement] = []
        self._snapshot = snapshot
        self._now = now
        self._used: dict[QuotaKey, int] = {}

    def look_at(self, entry: Entry) -> None:
        missing, _ = assess(self._snapshot, entry.shape.request)
        due = entry.eligible_at + entry.gang.patience
        if missing:
            self._take_another(entry, missing)
        elif due > self._now:
            self.look_again = min(self.look_again or due, due)
        elif self._places(entry) is None:
            self._take_another(entry, "")

    def _take_another(self, entry: Entry, missing: str) -> None:
        """Take the first choice that is free now. If none is, and the gang can never start as it is, take the
        first that ever could."""
        others = [
            self._snapshot.entry(GangState(with_choice(entry.gang, other.choice)))
            for other in entry.gang.alternatives
        ]
        possible = [one for one in others if not assess(self._snapshot, one.shape.request)[0]]
        for other in possible:
            places = self._places(other)
            if places is not None:
                for part in places:
                    self._snapshot.free.take(part.node, part.kind, part.count)
                self.taken += places
                for key, amount in other.meters:
                    self._used[key] = self._used.get(key, 0) + amount
                self._decide(entry, other, missing)
                return
        if missing and possible:
            self._decide(entry, possible[0], missing)

    def _decide(self, entry: Entry, other: Entry, missing: str) -> None:
        reason = missing
        if not reason:
            waiting = why(self._snapshot, entry.gang.uid, self._now)
            seconds = (self._now - entry.eligible_at) // SECOND
            told = f": {waiting.message}" if waiting else ""
            reason = f"has waited {seconds} s{told}"
        self.found.append(FallBack(entry.gang.uid, other.gang.choice, reason))

    def _places(self, entry: Entry) -> list[Placement] | None:
        """Return where it would go now, whosever turn it is; None if it cannot start now."""
        for key, amount in entry.meters:
            meter = self._snapshot.meters[key]
            used = meter.used + self._used.get(key, 0)
            if meter.limit is not None and not meter.allows(amount, meter.limit - used, used):
                return None
        if not self._snapshot.policy.strict:
            return [] if self._snapshot.loads else None
        return find_placements(self._snapshot.free, entry.shape.kinds)
