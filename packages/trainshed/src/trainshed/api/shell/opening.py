"""Opens the shell of a ticket: finds the replica, asks the engine, and records it in the timeline."""

from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.principals import Principal
from trainshed.api.calls.call import refuse_accounts
from trainshed.api.calls.links import Ticket
from trainshed.api.calls.services import Services
from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.terminals import Autopsy, Terminal, TerminalRefused, TerminalRequest, Terminals

_SECOND = 10**9


class OpenShell(Struct, frozen=True):
    """An open shell, with what its job's timeline needs. `title`: what users are shown."""

    services: Services
    terminal: Terminal
    job: Job
    ticket: Ticket
    opened: int

    @property
    def title(self) -> str:
        return f"{where(self.job, self.ticket)}, {self.job.display_name or self.job.name.job_id}"

    async def close(self) -> None:
        """Hang up, and record it in the timeline."""
        self.terminal.close()
        now = self.services.now()
        lasted = max(0, now - self.opened) // _SECOND
        text = (
            f"The shell of {self.ticket.who} in {where(self.job, self.ticket)} "
            f"was closed after {lasted} s."
        )
        await _tell(self.services, self.job, self.ticket, TimelineEntry(now, "shell", text))


def where(job: Job, ticket: Ticket) -> str:
    """Return what a shell is in, by the name in the job's own API."""
    task = log_task_name(job.name.api, ticket.replica)
    return f"what {task} left" if ticket.autopsy else task


def shells_of(services: Services) -> Terminals:
    """Return the shells. Raises FailedPrecondition if the operator has turned them off."""
    if not services.allows_shells:
        raise FailedPrecondition(
            "This service opens no shells: its operator has turned them off (setting `shell`)."
        )
    return services.shells


def live_replica(
    job: Job, replica: ReplicaId, kept: tuple[Autopsy, ...], principal: Principal
) -> Replica:
    """Return a replica of a job, which runs, for somebody who may do what its program may. Raises
    PermissionDenied, and FailedPrecondition, which says what can be done instead."""
    refuse_accounts(principal, (job.spec.service_account,))
    task = log_task_name(job.name.api, replica)
    current = next((candidate for candidate in job.replicas if candidate.id == replica), None)
    if current is not None and current.state is ReplicaState.RUNNING and not job.state.is_final:
        return current
    if job.state.is_final:
        text = f"{job.name} is over ({job.state}), and nothing of it runs any more."
    else:
        state = current.state if current is not None else job.state
        text = f"{task} of {job.name} does not run now ({state}); there is a shell while it does."
    if any(autopsy.replica == replica for autopsy in kept):
        text += (
            f" What it left when it failed is kept: trainshed jobs autopsy {job.name.job_id} {task}"
        )
    raise FailedPrecondition(text)


async def open_shell(
    services: Services, shells: Terminals, ticket: Ticket, wish: TerminalRequest
) -> OpenShell:
    """Open the shell of a ticket. It is recorded in the timeline before anything can be typed. Raises
    NotFound, FailedPrecondition, Unavailable."""
    job, _ = await services.reader.job_by_uid(ticket.job_uid)
    assert isinstance(job, Job), "tickets are for jobs with replicas"
    try:
        if ticket.autopsy:
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
    now = services.now()
    text = f"{ticket.who} opened a shell in {where(job, ticket)}."
    try:
        await _tell(services, job, ticket, TimelineEntry(now, "shell", text))
    except BaseException:
        terminal.close()
        raise
    return OpenShell(services, terminal, job, ticket, now)


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
    await _tell(services, job, ticket, TimelineEntry(services.now(), "shell", text))


async def _tell(services: Services, job: Job, ticket: Ticket, entry: TimelineEntry) -> None:
    details = {"replica": str(ticket.replica), "by": ticket.who}
    await services.intake.tell((job.uid,), replace(entry, details=details))
    services.notices.publish(job.uid)
