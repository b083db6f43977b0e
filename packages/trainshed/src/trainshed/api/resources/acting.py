"""Who acts in a call: what is stored of a principal with what it makes and cancels, and what a program of a
job may cancel."""

from trainshed.access.principals import Principal
from trainshed.core.errors import NotFound, PermissionDenied, Unauthenticated
from trainshed.core.lifecycle.records import ActingJob, Actor, person_of
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed.store.sqlite.reader import Reader


async def actor_of(reader: Reader, principal: Principal) -> Actor:
    """Return what is stored of a principal. Raises Unauthenticated for a program whose job was deleted."""
    if principal.program is None:
        return Actor(principal.email)
    uid = JobUid(principal.program.job_uid)
    try:
        job, _ = await reader.job_by_uid(uid)
    except NotFound:
        raise Unauthenticated(
            f"The access token is that of the job {uid}, which is not there: use a token of your own."
        ) from None
    creator = job.creator
    acting = creator.job if creator is not None else None
    root = acting.root if acting else uid
    return Actor(principal.email, ActingJob(uid, job.name, root, person_of(creator)))


async def refuse_cancel(reader: Reader, actor: Actor, work: Work) -> None:
    """Raise PermissionDenied for a program unless the work is its own job, or one that it has made, itself or
    through a job that it made. People may cancel everything."""
    if actor.job is None:
        return
    ancestor: Work | None = work
    while ancestor is not None:
        if ancestor.uid == actor.job.uid:
            return
        ancestor = await _maker(reader, ancestor)
    made_by = work.creator if work.creator is not None else "somebody else"
    raise PermissionDenied(
        f"{actor.email} may cancel its own job, {actor.job.name}, and what that has made; {work.name} was "
        f"made by {made_by}: leave it to whoever made it, or to a person with a token of this project"
    )


async def _maker(reader: Reader, work: Work) -> Work | None:
    """Return the job whose program made a work or its parent; None if a person did, or it was deleted."""
    if work.creator is None or work.creator.job is None:
        return None
    try:
        maker, _ = await reader.job_by_uid(work.creator.job.uid)
    except NotFound:
        return None
    return maker
