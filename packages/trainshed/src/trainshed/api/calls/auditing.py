"""Has the calls of people recorded that change something, whatever transport they come by."""

from collections.abc import Awaitable
from typing import TypeVar

from trainshed.access.permissions import is_recorded
from trainshed.access.principals import Bearer, Principal
from trainshed.api.calls.services import Services
from trainshed.store.audit import AuditRecord, RecordedCall, recording

T = TypeVar("T")


async def audited(
    answer: Awaitable[T],
    services: Services,
    principal: Principal,
    method: str,
    *,
    project: str = "",
    resource: str = "",
) -> T:
    """Return the answer, with the call recorded with its first write, or after it if it has written nothing.
    `project` and `resource`: what it is about, as far as the request says so. What programs of jobs do is
    told by the timelines of their jobs."""
    if principal.program is not None or not is_recorded(method):
        return await answer
    by = principal.shown.by if isinstance(principal.shown, Bearer) else ""
    acting_as = principal.email if by else ""
    record = AuditRecord(by or principal.email, method, resource, acting_as)
    with recording(RecordedCall(services.now(), record, project)):
        answered = await answer
        await services.access.record()
    return answered
