"""Shells in running replicas, and in what failed replicas left: tickets."""

from trainshed.api.calls.call import refuse_accounts
from trainshed.api.calls.links import Ticket
from trainshed.api.calls.services import Shells
from trainshed.api.calls.timestamps import text_micros
from trainshed.api.resources.jobs import find_job
from trainshed.api.shell.opening import live_replica, shells_of
from trainshed.api.shell.ports import OPEN
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.drills import read_replica
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.terminals import HIGHEST, Autopsy, is_port, pages_of
from trainshed.wire.trainshed_v1 import jobs as records


async def open_(call: JsonCall) -> records.ShellTicket:
    """`POST /trainshed/v1/jobs/{job}:shell`: return a ticket for a shell in a running replica, with `port`
    for a connection to that in it, or with `autopsy` for a shell in what a failed one left.

    Raises FailedPrecondition if shells are turned off or the replica does not run, NotFound if nothing of it
    is kept.
    """
    services, shells = call.services, shells_of(call.services)
    job, _ = await find_job(services.reader, call.target)
    wanted, faults = call.sent(records.ReplicaChoice)
    name, autopsy = wanted.port.strip(), wanted.autopsy
    port = name if not name or is_port(name) else pages_of(job.labels).get(name, "")
    if name and not port:
        offered = ", ".join(pages_of(job.labels)) or "none"
        faults.add("port", f"It must be a number up to {HIGHEST} or a page of the job: {offered}.")
    replica, attempt = read_replica(wanted.replica, job, faults), wanted.attempt
    if autopsy and port:
        faults.add("port", "Nothing listens in what a failed replica left.")
    faults.refuse()
    if autopsy:
        # The program got what lies there with the rights of the account.
        refuse_accounts(call.principal, (job.spec.service_account,))
        kept = _kept(shells, job, replica if wanted.replica.strip() else None, attempt)
        attempt, replica = kept.attempt, kept.replica
    else:
        attempt = job.attempt
        live_replica(job, replica, shells.autopsies(job.uid), call.principal)
    ticket = Ticket(
        *(job.uid, replica, call.principal.email, call.principal, attempt if autopsy else 0),
        *(port, name),
    )
    links = services.links
    token, until = services.tickets.issue(ticket)
    uri = f"{links.shell(job.uid, replica)}&token={token}"
    if port:
        host = links.host_of(job.uid, name) if replica == ReplicaId(0, 0) else ""
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


def _kept(shells: Shells, job: Job, replica: ReplicaId | None, attempt: int) -> Autopsy:
    """Return the first fitting autopsy of the newest attempt. Raises NotFound, which names those that
    exist."""
    kept = shells.autopsies(job.uid)
    fitting = [
        autopsy
        for autopsy in kept
        if replica in (None, autopsy.replica) and attempt in (0, autopsy.attempt)
    ]
    if fitting:
        latest = max(autopsy.attempt for autopsy in fitting)
        return next(autopsy for autopsy in fitting if autopsy.attempt == latest)
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
