"""What an engine finds on disk when it starts: every gang that was given slots, and how each replica stands."""

from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import findings
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import Slot


@dataclass(frozen=True, slots=True)
class FoundGang:
    """`states`: of each replica that was ever started, its latest incarnation and how that stands (None: it is
    changing just now, look again)."""

    job_uid: JobUid
    attempt: int
    slots: tuple[Slot, ...]
    states: dict[ReplicaId, tuple[int, findings.Finding | None]]


def survey(layout: Layout) -> list[FoundGang]:
    """Read every slot. Blocks."""
    found: list[FoundGang] = []
    for job_uid, attempt in layout.attempts():
        slots = layout.read(job_uid, attempt)
        directory = layout.attempt(job_uid, attempt)
        states: dict[ReplicaId, tuple[int, findings.Finding | None]] = {}
        for slot in slots:
            place = directory / str(slot.replica)
            if incarnation := findings.latest(place):
                finding = findings.look(place, incarnation)
                settled = not isinstance(finding, findings.Changing)
                states[slot.replica] = (incarnation, finding if settled else None)
        found.append(FoundGang(job_uid, attempt, slots, states))
    return found
