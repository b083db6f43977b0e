"""Opens the shell or the port for which a ticket was issued. Finds the replica, connects through the engine,
and adds an entry to the job's timeline."""

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


def location_of(job: Job, ticket: Ticket) -> str:
    """Return a description of where a shell runs, with the task's name in the job's API."""
    task = log_task_name(job.name.api, ticket.replica)
    return f"the files of {task}" if ticket.autopsy else task


def shell_title(job: Job, ticket: Ticket) -> str:
    """Return the title of a shell's window."""
    return f"{location_of(job, ticket)}, {job.display_name or job.name.job_id}"


def enabled_shells(services: Services) -> Terminals:
    """Return the engine's interface for shells. Raises FailedPrecondition if the operator has disabled
    shells."""
    if not services.allows_shells:
        raise FailedPrecondition("The operator of this service has disabled shells (setting `shell`).")
    return services.shells


def running_replica(
    job: Job, replica: ReplicaId, autopsies: tuple[Autopsy, ...], principal: Principal
) -> Replica:
    """Return a running replica of a job. The caller must have the rights of the job's programs. Raises
    PermissionDenied. Raises FailedPrecondition, with alternatives, if the replica is not running."""
    require_act_as(principal, (job.spec.service_account,))
    task = log_task_name(job.name.api, replica)
    current = next((known for known in job.replicas if known.id == replica), None)
    if current is not None and current.state is ReplicaState.RUNNING and not job.state.is_final:
        return current
    if job.state.is_final:
        text = f"{job.name} has already finished ({job.state}), so its programs no longer run."
    else:
        state = current.state if current is not None else job.state
        text = f"{task} of {job.name} is not running ({state}). Try again when it runs."
    if any(autopsy.replica == replica for autopsy in autopsies):
        text += f" Read its files after the failure: trainshed jobs autopsy {job.name.job_id} {task}"
    raise FailedPrecondition(text)


async def open_shell(
    services: Services, shells: Terminals, ticket: Ticket, request: TerminalRequest
) -> tuple[Job, Terminal]:
    """Open the shell of a ticket. Return its job and terminal. The timeline entry is stored before the user
    can type. Raises NotFound, FailedPrecondition and Unavailable."""
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    try:
        if ticket.autopsy is not None:
            # Show only buckets that the project's programs can see now. A bucket that the job could see may
            # belong to another project by now.
            request = replace(request, buckets=services.buckets.visible_buckets(job.name.project_id))
            terminal = await shells.open_autopsy(job.uid, ticket.autopsy, ticket.replica, request)
        else:
            replica = running_replica(job, ticket.replica, shells.autopsies(job.uid), ticket.principal)
            terminal = await shells.open_terminal(
                job.uid, job.attempt, ticket.replica, replica.incarnation, request
            )
    except TerminalRefused as refused:
        text = f"A shell in {location_of(job, ticket)} cannot be opened: {refused}."
        raise FailedPrecondition(text) from None
    except Unavailable as failure:
        text = f"A shell in {location_of(job, ticket)} cannot be opened now: {failure}. Try again."
        raise Unavailable(text) from None
    text = f"{ticket.who} opened a shell in {location_of(job, ticket)}."
    try:
        await _record(services, job, ticket, text)
    except BaseException:
        terminal.close()
        raise
    return job, terminal


async def record_end(services: Services, job: Job, ticket: Ticket, opened: Nanos) -> None:
    """Add an entry about the end of a shell to the job's timeline. `opened`: the time (ns) at which the shell
    was opened."""
    duration = max(0, services.now() - opened) // _SECOND
    text = f"The shell of {ticket.who} in {location_of(job, ticket)} was closed after {duration} s."
    await _record(services, job, ticket, text)


async def open_port(services: Services, ticket: Ticket) -> Terminal:
    """Connect to the port of a ticket. Raises NotFound and FailedPrecondition. Raises Unavailable if no
    program listens on the port yet."""
    shells = enabled_shells(services)
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    replica = running_replica(job, ticket.replica, (), ticket.principal)
    request = TerminalRequest(is_terminal=False, port=ticket.port)
    try:
        return await shells.open_terminal(job.uid, job.attempt, ticket.replica, replica.incarnation, request)
    except (TerminalRefused, Unavailable) as refused:
        raise Unavailable(
            f"The port or socket {ticket.port} of {location_of(job, ticket)} cannot be reached: {refused}. "
            "Try again later."
        ) from None


async def record_port_use(services: Services, ticket: Ticket) -> None:
    """Add an entry about the use of a port to the job's timeline. Raises NotFound."""
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    port = f"port {ticket.name}" if ticket.name.isdecimal() else f"the page {ticket.name}"
    text = f"{ticket.who} opened {port} of {location_of(job, ticket)}."
    await _record(services, job, ticket, text)


async def _record(services: Services, job: Job, ticket: Ticket, text: str) -> None:
    details = {"replica": str(ticket.replica), "by": ticket.who}
    entry = TimelineEntry(services.now(), "shell", text, details)
    await services.intake.add_timeline_entry((job.uid,), entry)
    services.notices.publish(job.uid)
