"""What reducers, and the workers that use them, say of it (SPEC §7): `{reduction: {incarnation, sampleTime, over, metrics,
perSecond, notes}}`.

`metrics`: what the replica reported last, `{}` as long as it has not: numbers by name, or lists of numbers by rank, such as
`received_bytes`, `sent_bytes`, and of reducers `chunks_in_flight`, `resets`, `wait_seconds`; they count from the start of the incarnation.
`perSecond`: how fast the bytes grew lately. `sampleTime`: of what moment all that is, "" = of none; `over`: no more will
come. `notes`: what it told the timeline, `{at, name, severity, text}`.
"""

from typing import Any

from trainshed.api.services import Services
from trainshed.api.timestamps import text_micros
from trainshed.core import reduction
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.story import REDUCTION_KINDS
from trainshed.core.names import JobUid, ReplicaId
from trainshed.store.logs.reduction import ReplicaReduction


async def reduction_views(
    services: Services, job: Job, attempt: int
) -> dict[ReplicaId, dict[str, Any]]:
    """Of each replica that has a part in it; {} for a job without reducers, at no cost."""
    taking_part = [each for each in job.spec.replicas() if reduction.takes_part(job.spec, each)]
    if not taking_part:
        return {}
    found = {each.replica: each for each in await services.logs.reduction(job.uid, attempt)}
    notes = await _notes(services, job.uid, attempt)
    return {
        each: {"reduction": _view(found.get(each), notes.get(str(each), []))}
        for each in taking_part
    }


async def _notes(services: Services, uid: JobUid, attempt: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in await services.reader.timeline(uid):
        if entry.kind in REDUCTION_KINDS and entry.details["attempt"] == attempt:
            found.setdefault(entry.details["replica"], []).append(_note(entry))
    return found


def _note(entry: TimelineEntry) -> dict[str, Any]:
    return {
        "at": text_micros(entry.at),
        "name": entry.details["note"],
        "severity": entry.details["severity"],
        "text": entry.details["text"],
    }


def _view(found: ReplicaReduction | None, notes: list[dict[str, Any]]) -> dict[str, Any]:
    if found is None:
        return {
            "incarnation": 0,
            "sampleTime": "",
            "over": False,
            "metrics": {},
            "perSecond": {},
            "notes": notes,
        }
    last = found.samples[-1]
    return {
        "incarnation": found.incarnation,
        "sampleTime": text_micros(last.at),
        "over": found.over,
        "metrics": dict(last.metrics),
        "perSecond": {name: round(rate, 1) for name, rate in found.rates().items()},
        "notes": notes,
    }
