"""Finds the jobs in the label `trainshed-after` of a new job (spec/lifecycle#dependencies)."""

from collections.abc import Iterable

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import find_work
from trainshed.core.dependencies import AFTER_LABEL, Condition, Dependency, parse_after
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.works import Work


async def find_dependencies(
    services: Services, principal: Principal, project: str, labels: Iterable[tuple[str, str]]
) -> tuple[Dependency, ...]:
    """Return the jobs that must finish before a new job of the project may start. Jobs that have already
    finished as required are omitted.

    Raises InvalidRequest if a job does not exist in the project, if the caller may not read it, or if it has
    already ended without the required success.
    """
    unfinished: dict[JobUid, Dependency] = {}
    faults: list[str] = []
    for target, condition in parse_after(dict(labels).get(AFTER_LABEL, "")):
        work = await _readable_work(services, principal, project, target)
        if work is None:
            faults.append(
                f"The job {target!r} does not exist in the project {project}, or you may not read it. Use "
                "the UID of a job, or the ID of an ml job: trainshed jobs list"
            )
            continue
        dependency = Dependency(work.uid, work.name, condition)
        if not work.state.is_final:
            known = unfinished.get(work.uid)
            # If a job is listed twice, the stricter condition applies.
            if known is None or known.condition is Condition.FINISHED:
                unfinished[work.uid] = dependency
        elif not dependency.is_met(succeeded=work.state is JobState.SUCCEEDED):
            faults.append(
                f"The job {target!r} has already ended without success. Run it again and use the new job, or "
                f"use {target}_finished."
            )
    if faults:
        raise InvalidRequest(tuple(Violation(f"labels.{AFTER_LABEL}", text) for text in faults))
    return tuple(unfinished.values())


def check_unchanged(work: Work, labels: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidRequest if new labels of a job would change its dependencies, which are fixed at its
    creation. Otherwise a user could wrongly believe that the change has an effect."""
    before, after = dict(work.labels).get(AFTER_LABEL), dict(labels).get(AFTER_LABEL)
    if after != before and (after is not None or work.is_held):
        text = "The label can be set only when the job is created. Create another job with this label."
        raise InvalidRequest((Violation(f"labels.{AFTER_LABEL}", text),))


async def _readable_work(services: Services, principal: Principal, project: str, target: str) -> Work | None:
    """Return a job of the project by UID or job ID. Return None if it does not exist, or if the caller may
    not read it."""
    try:
        work, _ = await find_work(services.reader, target, (project,))
    except (NotFound, FailedPrecondition):
        return None
    return work if principal.may(_get_permission(work.name), project) else None


def _get_permission(name: JobName) -> str:
    return "ml.jobs.get" if name.api is Api.ML else f"aiplatform.{name.collection}.get"
