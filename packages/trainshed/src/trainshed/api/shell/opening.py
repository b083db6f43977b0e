"""Opens the shell of a ticket: finds the replica, asks the engine, and records it in the timeline."""

from msgspec.structs import replace

from trainshed.access.principals import Principal
from trainshed.api.calls.impersonation import require_act_as
from trainshed.api.calls.links import Ticket
from trainshed.api.calls.services import Services
from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.terminals import Autopsy, Terminal, TerminalRefused, TerminalRequest, Terminals
from trainshed.core.units import Nanos

_SECOND = 10**9


def where(job: Job, ticket: Ticket) -> str:
    """Return what a shell is in, by the name in the job's own API."""
    task = log_task_name(job.name.api, ticket.replica)
    return f"what {task} left" if ticket.autopsy else task


def title_of(job: Job, ticket: Ticket) -> str:
    """Return what users are shown of a shell."""
    return f"{where(job, ticket)}, {job.display_name or job.name.job_id}"


def shells_of(services: Services) -> Terminals:
    """Return the shells. Raises FailedPrecondition if the operator has turned them off."""
    if not services.allows_shells:
        raise FailedPrecondition(
            "The operator of this service has disabled shells (setting `shell`)."
        )
    return services.shells


def live_replica(
    job: Job, replica: ReplicaId, kept: tuple[Autopsy, ...], principal: Principal
) -> Replica:
    """Return a replica of a job, which runs, for somebody who may do what its program may. Raises
    PermissionDenied, and FailedPrecondition, which says what can be done instead."""
    require_act_as(principal, (job.spec.service_account,))
    task = log_task_name(job.name.api, replica)
    current = next((candidate for candidate in job.replicas if candidate.id == replica), None)
    if current is not None and current.state is ReplicaState.RUNNING and not job.state.is_final:
        return current
    if job.state.is_final:
        text = f"{job.name} has finished ({job.state}), and no program of it runs."
    else:
        state = current.state if current is not None else job.state
        text = f"{task} of {job.name} does not run now ({state}); there is a shell while it does."
    if any(autopsy.replica == replica for autopsy in kept):
        text += f" Its files after the failure are kept: trainshed jobs autopsy {job.name.job_id} {task}"
    raise FailedPrecondition(text)


async def open_shell(
    services: Services, shells: Terminals, ticket: Ticket, wish: TerminalRequest
) -> tuple[Job, Terminal]:
    """Open the shell of a ticket, in its job. It is recorded in the timeline before anything can be typed.
    Raises NotFound, FailedPrecondition, Unavailable."""
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    try:
        if ticket.autopsy is not None:
            # A bucket that its program saw may be another project's by now.
            wish = replace(wish, buckets=services.buckets.shown(job.name.project_id))
            terminal = await shells.open_autopsy(job.uid, ticket.autopsy, ticket.replica, wish)
        else:
            replica = live_replica(job, ticket.replica, shells.autopsies(job.uid), ticket.principal)
            terminal = await shells.open_terminal(
                job.uid, job.attempt, ticket.replica, replica.incarnation, wish
            )
    except TerminalRefused as refused:
        text = f"There is no shell in {where(job, ticket)}: {refused}."
        raise FailedPrecondition(text) from None
    except Unavailable as failure:
        text = f"There is no shell in {where(job, ticket)} now: {failure}; try again."
        raise Unavailable(text) from None
    text = f"{ticket.who} opened a shell in {where(job, ticket)}."
    try:
        await _tell(services, job, ticket, text)
    except BaseException:
        terminal.close()
        raise
    return job, terminal


async def tell_of_end(services: Services, job: Job, ticket: Ticket, opened: Nanos) -> None:
    """Record in the timeline that a shell was closed."""
    lasted = max(0, services.now() - opened) // _SECOND
    text = f"The shell of {ticket.who} in {where(job, ticket)} was closed after {lasted} s."
    await _tell(services, job, ticket, text)


async def open_port(services: Services, ticket: Ticket) -> Terminal:
    """Connect to the port of a ticket. Raises NotFound, FailedPrecondition, Unavailable (nothing listens
    there yet)."""
    shells = shells_of(services)
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    replica = live_replica(job, ticket.replica, (), ticket.principal)
    wish = TerminalRequest(is_terminal=False, port=ticket.port)
    try:
        return await shells.open_terminal(
            job.uid, job.attempt, ticket.replica, replica.incarnation, wish
        )
    except (TerminalRefused, Unavailable) as refused:
        raise Unavailable(
            f"{where(job, ticket)} is not reached at {ticket.port}: {refused}."
        ) from None


async def tell_of_port(services: Services, ticket: Ticket) -> None:
    """Record in the timeline that somebody uses a port. Raises NotFound."""
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    port = f"port {ticket.name}" if ticket.name.isdecimal() else f"the page {ticket.name}"
    text = f"{ticket.who} opened {port} of {where(job, ticket)}."
    await _tell(services, job, ticket, text)


async def _tell(services: Services, job: Job, ticket: Ticket, text: str) -> None:
    details = {"replica": str(ticket.replica), "by": ticket.who}
    entry = TimelineEntry(services.now(), "shell", text, details)
    await services.intake.tell((job.uid,), entry)
    services.notices.publish(job.uid)
