"""Hands out what opens pages without a token (`calls.links`): tickets for shells in running replicas and in
what failed ones left, and links to TensorBoard for what jobs wrote."""

from trainshed.access.permissions import PERMISSIONS, authorize
from trainshed.access.principals import Principal
from trainshed.api.calls.errors import NotServed, install_command
from trainshed.api.calls.impersonation import require_act_as
from trainshed.api.calls.links import MOST_JOBS, OPEN_VIEW, Ticket
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import find_job, find_work
from trainshed.api.shell.opening import live_replica, shells_of
from trainshed.api.shell.ports import OPEN
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
    """`POST /trainshed/v1/jobs/{job}:shell`: return a ticket for a shell in a running replica, with `port`
    for a connection to that in it, or with `autopsy` for a shell in what a failed one left.

    Raises FailedPrecondition if shells are turned off or the replica does not run, NotFound if nothing of it
    is kept.
    """
    services, shells = call.services, shells_of(call.services)
    job, _ = await find_job(services.reader, call.target)
    wanted, faults = call.sent(records.ReplicaChoice)
    name, autopsy = wanted.port.strip(), wanted.autopsy
    port = name if is_port(name) else pages_of(job.labels).get(name)
    if name and port is None:
        offered = ", ".join(pages_of(job.labels)) or "none"
        faults.add("port", f"It must be a number up to {HIGHEST} or a page of the job: {offered}.")
    replica, attempt = read_replica(wanted.replica, job, faults), wanted.attempt
    if autopsy and port:
        faults.add("port", "A failed replica has no open ports.")
    faults.refuse()
    if autopsy:
        # The program got what lies there with the rights of the account.
        require_act_as(call.principal, (job.spec.service_account,))
        kept = _kept(shells, job, replica if wanted.replica.strip() else None, attempt)
        attempt, replica = kept.attempt, kept.replica
    else:
        attempt = job.attempt
        live_replica(job, replica, shells.autopsies(job.uid), call.principal)
    links, caller, kept_of = services.links, call.principal, attempt if autopsy else None
    ticket = Ticket(job.uid, replica, caller.email, caller, kept_of, port, name)
    token, until = services.tickets.issue(ticket)
    uri = f"{links.shell(job.uid, replica)}&token={token}"
    if port:
        host = links.host_of(job.uid, name) if replica == ReplicaId(0, 0) else None
        uri = f"{host}{OPEN}?ticket={token}" if host else ""
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


def _kept(shells: Terminals, job: Job, replica: ReplicaId | None, attempt: int) -> Autopsy:
    """Return the first fitting autopsy of the newest attempt. Raises NotFound, which names those that
    exist."""
    kept = shells.autopsies(job.uid)
    fitting = [
        autopsy
        for autopsy in kept
        if replica in (None, autopsy.replica) and attempt in (0, autopsy.attempt)
    ]
    if fitting:
        return max(fitting, key=lambda autopsy: autopsy.attempt)
    if not kept:
        raise NotFound(
            f"Nothing is kept of {job.name}: no replica of it has failed, its time is over (setting "
            "`autopsy_ttl`), or it ran on the node of a cluster, with which its files are gone."
        )
    there = ", ".join(
        f"{log_task_name(job.name.api, autopsy.replica)} of attempt {autopsy.attempt}"
        for autopsy in kept
    )
    raise NotFound(f"Nothing is kept of that one of {job.name}; there is {there}.")


async def view(call: JsonCall) -> ViewLink:
    """`POST /trainshed/v1/jobs/{job}:tensorboard`: return the link to TensorBoard for a job, or for several
    together. Raises FailedPrecondition if they were told no directory for event files, NotServed."""
    tracking, shown = call.services.tracking, call.principal.credential
    if tracking is None:
        raise NotServed(
            "TensorBoard is not available, because its addition is not installed. On the service's "
            f"machine, run {install_command('tracking')} and restart the service."
        )
    sent, faults = call.sent(ViewRequest)
    others = sent.others
    if len(others) >= MOST_JOBS:
        faults.add("others", f"At most {MOST_JOBS} jobs can be compared.")
    works = [(await find_work(call.services.reader, call.target))[0]]
    mine = call.principal.rights.where(PERMISSIONS[OPEN_VIEW])
    for index, target in enumerate(others[: MOST_JOBS - 1]):
        try:
            work, _ = await find_work(call.services.reader, target, mine)
            authorize(call.principal, OPEN_VIEW, (work.name.project_id,))
            works.append(work)
        except (NotFound, PermissionDenied, FailedPrecondition):
            # The same for all, because whether another project has such a job must not be told.
            text = f"There is no job {target[:200]!r} that you may look at."
            faults.add(f"others[{index}]", text)
    faults.refuse()
    assert shown is not None, "programs may not ask"
    return await tracking.view(works, shown)


async def link_if_any(services: Services, principal: Principal, work: Work) -> str | None:
    """Return the link if `principal` may have it and there is anything to show; else None."""
    tracking, shown = services.tracking, principal.credential
    may = principal.may(PERMISSIONS[OPEN_VIEW], work.name.project_id)
    if tracking is None or shown is None or not may:
        return None
    return await tracking.link_if_any(work, shown)
