"""What the surfaces do alike with a job that a request names: read its name, cancel it, tell its place in the queue."""

from trainshed.api.services import RoomView, Services
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName


def read_job_name(text: str, *, field: str = "name") -> JobName:
    """The job name of either API that `field` holds. Raises InvalidRequest for anything else."""
    try:
        return JobName.parse(text)
    except ValueError as error:
        raise InvalidRequest((Violation(field, str(error)),)) from None


async def cancel_for_user(services: Services, name: JobName) -> None:
    """Store the wish and tell the controller; once more is fine. Raises NotFound, FailedPrecondition."""
    wish = CancelRequested(CancelCause.USER, services.now())
    services.wake(await services.intake.request_cancel(name, wish))


def queue_position(room: RoomView, job: Job) -> int:
    """The place of a QUEUED job among those that wait, 1 = next; 0 for every other job (facts §1.1)."""
    return room.position(job.uid) if job.state is JobState.QUEUED else 0
