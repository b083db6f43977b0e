"""Who made or cancelled something: a person, or a program of a job. Stored with what they made."""

from msgspec import Struct

from trainshed.core.names import JobName, JobUid

OUTLIVES_LABEL = "trainshed-outlives"
"""Label of what a program of a job makes: "on" = it goes on when that job is over."""


class ActingJob(Struct, frozen=True):
    """The job whose program made or cancelled something."""

    uid: JobUid
    name: JobName
    #: The job that begins the line in which each job made the next; the job itself if a person made it.
    root: JobUid
    #: The address of whoever made that first job.
    person: str = ""


class Actor(Struct, frozen=True):
    """Who made or cancelled something."""

    #: The address of the principal.
    email: str
    #: The job whose program it was; None = it was a person.
    job: ActingJob | None = None

    @property
    def person(self) -> str:
        """The address of the person or service account who answers for it: quotas and usage count by it."""
        return self.job.person if self.job is not None else self.email

    def __str__(self) -> str:
        return f"the job {self.job.name}" if self.job is not None else self.email


def person_of(creator: Actor | None) -> str:
    """Return the address of whoever answers for what somebody made; "" if it is not known who did."""
    return creator.person if creator is not None else ""
