"""Drills that a job orders as it is created: those of the plan that its label `trainshed-drill` names (SPEC §8). So
that any client that can set a label can order drills."""

from dataclasses import replace
from typing import Final

from trainshed.api.services import Services
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.drills import PLAN_LABEL
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import public_replica_name
from trainshed.core.tuning.records import TuningJob
from trainshed.store.port import Reader

_FIELD: Final = f"labels.{PLAN_LABEL}"


async def with_planned_drills(services: Services, job: Job) -> Job:
    """The new job, which is not stored yet, with the plan's drills as ordered at its creation.

    Raises InvalidRequest if the plan is not there, or has a drill for a replica that the job has not.
    """
    name = dict(job.labels).get(PLAN_LABEL)
    if not name:
        return job
    project = job.name.project_id
    try:
        plan = await services.reader.drill_plan(project, name)
    except NotFound:
        text = await _unknown(services.reader, project, name)
        raise InvalidRequest((Violation(_FIELD, text),)) from None
    there = job.spec.replicas()
    missing = [drill for drill in plan.drills if drill.replica not in there]
    if missing:
        api = job.name.api
        wanted = ", ".join(dict.fromkeys(public_replica_name(api, d.replica) for d in missing))
        text = (
            f"The drill plan {name!r} is for {wanted}, which this job does not have; give the job"
            " those replicas, or name another plan."
        )
        raise InvalidRequest((Violation(_FIELD, text),))
    drills = tuple(
        replace(drill, number=number, ordered=job.created)
        for number, drill in enumerate(plan.drills, start=1)
    )
    return replace(job, drills=drills)


def refuse_plan(job: TuningJob) -> None:
    """Drills that somebody believes to be ordered must be. Raises InvalidRequest if the label names a plan: a tuning job has
    no replicas of its own."""
    if name := dict(job.labels).get(PLAN_LABEL):
        text = (
            f"A tuning job cannot order the drill plan {name!r}: it has no replicas of its own. Take the label away, and"
            " order drills for the job of a trial with `trainshed drill`."
        )
        raise InvalidRequest((Violation(_FIELD, text),))


async def _unknown(reader: Reader, project: str, name: str) -> str:
    plans = ", ".join(plan.name for plan in await reader.drill_plans(project))
    there = f"it has: {plans}" if plans else "it has none yet"
    return (
        f"The project {project} has no drill plan {name!r}; {there}. Store one with"
        " `trainshed drill-plans put FILE`, or take the label away."
    )
