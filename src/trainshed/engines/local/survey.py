"""What an engine finds on disk when it starts: every gang that was given slots, and how each replica
stands."""

from dataclasses import dataclass
from pathlib import Path

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import findings
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import Slot
from trainshed.replica.supervisor import journal


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """The latest incarnation that was started, and how it stands. `answers`: its shim is of a version that
    answers to pings."""

    incarnation: int
    finding: findings.Finding
    answers: bool


@dataclass(frozen=True, slots=True)
class FoundGang:
    """`replicas`: those of which any incarnation was ever started."""

    job_uid: JobUid
    attempt: int
    slots: tuple[Slot, ...]
    replicas: dict[ReplicaId, FoundReplica]


def survey(layout: Layout) -> list[FoundGang]:
    """Read every slot. Blocks."""
    found: list[FoundGang] = []
    for job_uid, attempt in layout.attempts():
        slots = layout.read(job_uid, attempt)
        if not slots:
            layout.discard(job_uid, attempt)  # none were given out, so nothing ever ran there
            continue
        directory = layout.attempt(job_uid, attempt)
        replicas: dict[ReplicaId, FoundReplica] = {}
        for slot in slots:
            place = directory / str(slot.replica)
            entries = journal.Entries(str(place))
            if incarnation := entries.latest:
                finding = _stand(place, entries, incarnation)
                _, shim_since = entries.shim
                replicas[slot.replica] = FoundReplica(incarnation, finding, shim_since > 0)
        found.append(FoundGang(job_uid, attempt, slots, replicas))
    return found


def _stand(place: Path, entries: journal.Entries, incarnation: int) -> findings.Finding:
    try:
        return findings.stand(place, entries, incarnation)
    except OSError:
        return findings.Changing()  # To be looked at again, by somebody who has time to wait.
