"""Records calls in the audit log."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from trainshed.access.permissions import is_recorded
from trainshed.access.principals import Bearer, Principal
from trainshed.api.calls.services import Services
from trainshed.core import secrets
from trainshed.core.errors import PermissionDenied, Unavailable
from trainshed.core.names import ids_by_number
from trainshed.store.audit import AuditRecord, RecordedCall, current_call, recording
from trainshed.wire.status import StatusCode

T = TypeVar("T")


def record_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """In the audit record of the current call, store the names of the secrets that a new job uses. `texts`:
    (field, text) of each text in the request."""
    refs = (ref for _, text in texts for ref in secrets.references(text))
    if (names := ", ".join(sorted({ref.name for ref in refs}))) and (call := current_call()):
        call.record.detail = {"secrets": names if len(names) <= 120 else f"{names[:117]}..."}


async def audit_call(
    answer: Callable[[], Awaitable[T]],
    services: Services,
    principal: Principal,
    method: str,
    *,
    project: str = "",
    resource: str = "",
) -> T:
    """Return the result of `answer`, which executes a call, and record the call in the audit log.

    The record is stored together with the call's first write. If the call writes nothing or lacks a
    permission, the record is stored after the call. `project`, `resource`: the subject of the request, if
    known. Raises Unauthenticated if the credentials became invalid in the meantime, for example while the
    client sent the body.
    """
    services.access.revalidate(principal)
    if not is_recorded(method):
        return await answer()
    voucher = services.access.origin_of(principal)
    by = voucher.by if isinstance(voucher, Bearer) else None
    acting_as = principal.email if by else None
    job = str(principal.program.job_uid) if principal.program is not None else None
    record = AuditRecord(by or principal.email, method, resource, acting_as, job=job)
    with recording(call := RecordedCall(services.now(), record, project)):
        try:
            response = await answer()
        except PermissionDenied:
            if call.project.isdigit():
                book = services.access.book
                known = (services.settings.project, *book.projects, *book.policy.projects())
                call.project = ids_by_number(known).get(call.project, call.project)
            await services.access.record_refusal()
            raise
        await services.access.record()
    return response


async def record_failed_authentication(services: Services, source: str, detail: Mapping[str, object]) -> None:
    """Record in the audit log that an address has repeatedly sent unknown credentials."""
    method = "trainshed.v1.Tokens.Refused"
    status = StatusCode.UNAUTHENTICATED.number
    record = AuditRecord("", method, source, source=source, detail=detail, status=status)
    with recording(RecordedCall(services.now(), record)), contextlib.suppress(Unavailable):
        await services.access.record()
