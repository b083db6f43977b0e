"""What reducers, and the workers that use them, say of it (SPEC §7): `{reduction: {incarnation, restarts, sampleTime, over,
metrics, totals, perSecond, mode, notes}}`.

`metrics`: what the replica reported last, `{}` as long as it has not: numbers by name, or lists of numbers by rank, such as
`received_bytes`, `sent_bytes`, and of reducers `chunks_in_flight`, `resets`, `wait_seconds`; they count from the start of the incarnation.
`totals`: those that only grow, over all incarnations of the attempt, and `restarts`, how many followed the first one.
`perSecond`: how fast the bytes grew lately. `sampleTime`: of what moment all that is, "" = of none; `over`: no more will
come. `notes`: what it told the timeline, `{at, name, severity, text}`. `mode`: which way sums go, by the last of its notes that
says so, `{since, severity, text, isNative, wasReduced, lostReducers, lostSince}`, null where none does: `wasReduced`, they
went to reducers before; `lostReducers`, so many were lost since it was said.
"""

from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_micros
from trainshed.core import reduction
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.timeline import REDUCTION_KINDS
from trainshed.core.names import JobUid, ReplicaId
from trainshed.store.logs.reduction import ReplicaReduction
from trainshed.wire.trainshed_v1 import usage as records

_REDUCED, _NATIVE, _LOST = "mode", "native", "lost "
"""Names of notes, the last one's beginning, as `trainshed_reduction` gives them."""


async def reduction_views(
    services: Services, job: Job, attempt: int
) -> dict[ReplicaId, records.Reduction]:
    """Of each replica that has a part in it; {} for a job without reducers, at no cost."""
    taking_part = [each for each in job.spec.replicas() if reduction.takes_part(job.spec, each)]
    if not taking_part:
        return {}
    found = {each.replica: each for each in await services.logs.reduction(job.uid, attempt)}
    notes = await _notes(services, job.uid, attempt)
    return {each: _view(found.get(each), notes.get(str(each), [])) for each in taking_part}


async def _notes(
    services: Services, uid: JobUid, attempt: int
) -> dict[str, list[records.ReductionNote]]:
    found: dict[str, list[records.ReductionNote]] = {}
    for entry in await services.reader.timeline(uid):
        if entry.kind in REDUCTION_KINDS and entry.details["attempt"] == attempt:
            for replica in entry.details.get("replicas") or (entry.details["replica"],):
                found.setdefault(replica, []).append(_note(entry))
    return found


def _note(entry: TimelineEntry) -> records.ReductionNote:
    return records.ReductionNote(
        at=text_micros(entry.at),
        name=entry.details["note"],
        severity=entry.details["severity"],
        text=entry.details["text"],
    )


def _view(found: ReplicaReduction | None, notes: list[records.ReductionNote]) -> records.Reduction:
    if found is None:
        return records.Reduction(mode=_mode(notes), notes=tuple(notes))
    last = found.samples[-1]
    return records.Reduction(
        incarnation=found.incarnation,
        restarts=found.restarts,
        sample_time=text_micros(last.at),
        over=found.over,
        metrics=dict(last.metrics),
        totals=found.totals(),
        per_second={name: round(rate, 1) for name, rate in found.rates().items()},
        mode=_mode(notes),
        notes=tuple(notes),
    )


def _mode(notes: list[records.ReductionNote]) -> records.ReductionMode | None:
    ways = [place for place, note in enumerate(notes) if note.name in (_REDUCED, _NATIVE)]
    if not ways:
        return None
    said = notes[ways[-1]]
    lost = {n.name: n.at for n in notes[ways[-1] :] if n.name.startswith(_LOST)}
    return records.ReductionMode(
        since=said.at,
        severity=said.severity,
        text=said.text,
        is_native=said.name == _NATIVE,
        was_reduced=any(notes[place].name == _REDUCED for place in ways[:-1]),
        lost_reducers=len(lost),
        lost_since=max(lost.values(), default=""),
    )
