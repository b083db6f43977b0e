"""Makes links to TensorBoard for what jobs wrote."""

from collections.abc import Sequence

from trainshed.access.authorization import authorize
from trainshed.access.permissions import PERMISSIONS
from trainshed.access.principals import Principal
from trainshed.api.calls.links import MOST_JOBS, view_of
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import find_work
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.viewers.surface import OPEN, directories_of
from trainshed.core.errors import FailedPrecondition, NotFound, PermissionDenied
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1.jobs import ViewLink, ViewRequest


async def link(call: JsonCall) -> ViewLink:
    """`POST /trainshed/v1/jobs/{job}:tensorboard`: return the link to TensorBoard for a job, or for several
    together. Raises FailedPrecondition if they were given no directory for event files."""
    sent, faults = call.sent(ViewRequest)
    others = sent.others
    if len(others) >= MOST_JOBS:
        faults.add("others", f"At most {MOST_JOBS} jobs can be looked at together.")
    works = [(await find_work(call.services.reader, call.target))[0]]
    mine = call.principal.rights.where(PERMISSIONS[OPEN])
    for index, target in enumerate(others[: MOST_JOBS - 1]):
        try:
            work, _ = await find_work(call.services.reader, target, mine)
            authorize(call.principal, OPEN, (work.name.project_id,))
            works.append(work)
        except (NotFound, PermissionDenied, FailedPrecondition):
            # The same for all, because whether another project has such a job must not be told.
            text = f"There is no job {target[:200]!r} that you may look at."
            faults.add(f"others[{index}]", text)
    faults.refuse()
    services, shown = call.services, call.principal.shown
    uids = [work.uid for work in works]
    directories = await directories_of(services.reader, uids)
    if not directories:
        raise FailedPrecondition(_nowhere(works))
    view = view_of(uids)
    assert shown is not None, "programs may not ask"
    uri = services.links.to_view(view, shown)
    return ViewLink(
        uri=uri,
        view=view,
        key=uri.rpartition("key=")[2],
        directories=tuple(directory.uri for directory in directories),
        has_files=await services.viewers.has_files(directories),
    )


async def link_if_any(services: Services, principal: Principal, work: Work) -> str:
    """Return the link if `principal` may have it and there is anything to show; else ""."""
    may = principal.may(PERMISSIONS[OPEN], work.name.project_id)
    if principal.shown is None or not may:
        return ""
    try:
        directories = await directories_of(services.reader, (work.uid,))
        if not await services.viewers.has_files(directories):
            return ""
    except (NotFound, FailedPrecondition):
        return ""
    return services.links.to_view(view_of((work.uid,)), principal.shown)


def _nowhere(works: Sequence[Work]) -> str:
    names = ", ".join(str(work.name) for work in works)
    return (
        f"{names}: no directory for event files is known. Give the job a base output directory "
        "(baseOutputDirectory; --job-dir of an ml job) and write to $AIP_TENSORBOARD_LOG_DIR."
    )
