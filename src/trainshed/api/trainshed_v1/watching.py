"""Live progress of a job, tuning job or pipeline as NDJSON: its description at each change."""

from collections.abc import AsyncGenerator

from trainshed.api.resources.jobs import find_work
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.describing import Memory, described, look
from trainshed.api.trainshed_v1.streams import SIGN_OF_LIFE, Pace, line
from trainshed.core.errors import NotFound
from trainshed.core.names import JobUid


async def watch(call: JsonCall) -> AsyncGenerator[bytes]:
    """`GET /trainshed/v1/jobs/{job}/watch`: the description now and after each change, until it is over. That of a tuning
    job has its trials beside the public resource, not in it as well."""
    work, _ = await find_work(call.services.reader, call.target)
    return _descriptions(call, work.uid)


async def _descriptions(call: JsonCall, uid: JobUid) -> AsyncGenerator[bytes]:
    services, notices = call.services, call.services.notices
    pace, memory = Pace(notices), Memory()
    sent: object = None
    listened = frozenset({uid})
    while True:
        await pace.begin()
        counts = {each: notices.count(each) for each in listened}
        try:
            seen = await look(services, uid)
        except NotFound:
            return
        # Why a job waits changes with other jobs, too: that is looked at whenever there is a reason to look.
        if seen.mark != sent:
            sent = seen.mark
            told = line(await described(services, call.principal, seen, memory, whole=False))
            pace.looked()
            pace.spoke()
            yield told
        if seen.work.state.is_final:
            return
        if pace.is_silent():
            yield SIGN_OF_LIFE
        listened = seen.news
        # Of one that was not listened for there may have been news already: look again.
        if listened <= counts.keys():
            await pace.news({each: counts[each] for each in listened})
