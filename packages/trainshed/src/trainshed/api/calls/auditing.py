"""Has the calls of people recorded that change something, whatever transport they come by."""

import contextlib
from collections.abc import AsyncGenerator

from trainshed.access.permissions import is_recorded
from trainshed.access.principals import Bearer, Principal
from trainshed.api.calls.services import Services
from trainshed.store.audit import Recorded, recording


@contextlib.asynccontextmanager
async def audited(
    services: Services,
    principal: Principal,
    method: str,
    project: str = "",
    resource: str = "",
) -> AsyncGenerator[None]:
    """Record the call that is answered in the block, with its first write, or after it if it has written
    nothing. `project` and `resource`: what it is about, as far as the request says so. What programs of jobs
    do is told by the timelines of their jobs."""
    if principal.program is not None or not is_recorded(method):
        yield
        return
    by = principal.shown.by if isinstance(principal.shown, Bearer) else ""
    call = Recorded(
        services.now(),
        by or principal.email,
        method,
        project,
        resource,
        acting_as=principal.email if by else "",
    )
    with recording(call):
        yield
        await services.access.record()
