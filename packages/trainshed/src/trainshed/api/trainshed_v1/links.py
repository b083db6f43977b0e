"""Creates tickets and links that open pages without a token (`calls.links`).

Tickets are for shells in running replicas and in the kept files (autopsies) of failed replicas. Links are for
TensorBoard, which shows the event files of jobs.
"""

from trainshed.access.permissions import PERMISSIONS, authorize
from trainshed.access.principals import Principal
from trainshed.api.calls.errors import NotServed, install_command
from trainshed.api.calls.impersonation import require_act_as
from trainshed.api.calls.links import MAX_JOBS, OPEN_VIEW, Ticket
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import find_job, find_work
from trainshed.api.shell.opening import enabled_shells, running_replica
from trainshed.api.shell.ports import OPEN_PATH
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.drills import read_replica
from trainshed.core.errors import FailedPrecondition, NotFound, PermissionDenied
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.terminals import HIGHEST, Autopsy, Terminals, is_port, pages_of
from trainshed.core.units import text_micros
from trainshed.core.works import Work
from trainshed.wire.trainshed_v1 import jobs as records
from trainshed.wire.trainshed_v1.jobs import ViewLink, ViewRequest


async def open_shell(call: JsonCall) -> records.ShellTicket:
    """`POST /trainshed/v1/jobs/{job}:shell`: return a ticket. It is for a shell in a running replica; with
    `port`, for a connection to that port of the replica; with `autopsy`, for a shell in the files of a failed
    replica. Raises FailedPrecondition if shells are disabled or the replica is not running, and NotFound if
    these files do not exist."""
    services, shells = call.services, enabled_shells(call.services)
    job, _ = await find_job(services.reader, call.target)
    choice, faults = call.read_body(records.ReplicaChoice)
    name, autopsy = choice.port.strip(), choice.autopsy
    port = name if is_port(name) else pages_of(job.labels).get(name)
    if name and port is None:
        offered = ", ".join(pages_of(job.labels)) or "none"
        faults.add("port", f"The port must be a number up to {HIGHEST} or a page of the job: {offered}.")
    replica, attempt = read_replica(choice.replica, job, faults), choice.attempt
    if autopsy and port:
        faults.add("port", "A failed replica has no open ports.")
    faults.refuse()
    if autopsy:
        # An autopsy (the kept files of a failed replica) can contain data that only the job's service
        # account may read.
        require_act_as(call.principal, (job.spec.service_account,))
        existing = _find_autopsy(shells, job, replica if choice.replica.strip() else None, attempt)
        attempt, replica = existing.attempt, existing.replica
    else:
        attempt = job.attempt
        running_replica(job, replica, shells.autopsies(job.uid), call.principal)
    links, caller, autopsy_attempt = services.links, call.principal, attempt if autopsy else None
    ticket = Ticket(job.uid, replica, caller.email, caller, autopsy_attempt, port, name)
    token, until = services.tickets.issue(ticket)
    uri = f"{links.shell(job.uid, replica)}&token={token}"
    if port:
        host = links.page_host(job.uid, name) if replica == ReplicaId(0, 0) else None
        uri = f"{host}{OPEN_PATH}?ticket={token}" if host else ""
    return records.ShellTicket(
        token=token,
        expire_time=text_micros(until),
        path="/shell/connect",
        uri=uri,
        job=str(job.name),
        replica=str(replica),
        task=log_task_name(job.name.api, replica),
        attempt=attempt,
    )


def _find_autopsy(shells: Terminals, job: Job, replica: ReplicaId | None, attempt: int) -> Autopsy:
    """Return the first matching autopsy (kept files of a failed replica), of the newest attempt that has one.
    Raises NotFound, whose message lists the existing autopsies."""
    existing = shells.autopsies(job.uid)
    matching = [
        autopsy
        for autopsy in existing
        if replica in (None, autopsy.replica) and attempt in (0, autopsy.attempt)
    ]
    if matching:
        return max(matching, key=lambda autopsy: autopsy.attempt)
    if not existing:
        raise NotFound(
            f"{job.name} has no autopsy (kept files of a failed replica). Either no replica has failed, or "
            "the autopsy has expired (setting `autopsy_ttl`), or its cluster node no longer exists."
        )
    available = ", ".join(
        f"{log_task_name(job.name.api, autopsy.replica)} of attempt {autopsy.attempt}" for autopsy in existing
    )
    raise NotFound(f"{job.name} has no autopsy of this replica and attempt. Use one of: {available}.")


async def view(call: JsonCall) -> ViewLink:
    """`POST /trainshed/v1/jobs/{job}:tensorboard`: return a link to a TensorBoard view of one job or of
    several jobs. Raises FailedPrecondition if a job has no directory for event files, and NotServed."""
    tracking, shown = call.services.tracking, call.principal.credential
    if tracking is None:
        raise NotServed(
            "TensorBoard is not available, because its addition is not installed. On the service's "
            f"machine, run {install_command('tracking')} and restart the service."
        )
    sent, faults = call.read_body(ViewRequest)
    others = sent.others
    if len(others) >= MAX_JOBS:
        faults.add("others", f"At most {MAX_JOBS} jobs can be compared.")
    works = [(await find_work(call.services.reader, call.target))[0]]
    own_projects = call.principal.rights.where(PERMISSIONS[OPEN_VIEW])
    for index, target in enumerate(others[: MAX_JOBS - 1]):
        try:
            work, _ = await find_work(call.services.reader, target, own_projects)
            authorize(call.principal, OPEN_VIEW, (work.name.project_id,))
            works.append(work)
        except (NotFound, PermissionDenied, FailedPrecondition):
            # The error is the same in all cases, because the response must not reveal whether the job exists
            # in another project.
            text = f"The job {target[:200]!r} does not exist, or you may not read it."
            faults.add(f"others[{index}]", text)
    faults.refuse()
    assert shown is not None, "programs have no permission for views"
    return await tracking.view(works, shown)


async def link_if_any(services: Services, principal: Principal, work: Work) -> str | None:
    """Return the link to TensorBoard, or None if there are no event files or `principal` may not see them."""
    tracking, shown = services.tracking, principal.credential
    may = principal.may(PERMISSIONS[OPEN_VIEW], work.name.project_id)
    if tracking is None or shown is None or not may:
        return None
    return await tracking.link_if_any(work, shown)
