"""The audit as log entries: those of the log `cloudaudit.googleapis.com/activity`, as gcloud reads them.

They are listed for a filter that names the log, and with no others: who reads a job's log may not read it.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from trainshed.access.authorization import authorize
from trainshed.api.calls.call import Call
from trainshed.api.logging_v2.entry import AuditEntry
from trainshed.api.logging_v2.merge import Span
from trainshed.store.audit import AuditRow

_LIST: Final = "trainshed.v1.Audit.List"
_PAGE: Final = 1_000
AT_MOST: Final = 20_000
"""Records that one request looks at, the newest of its projects."""


def entry_of(row: AuditRow) -> AuditEntry:
    """Return the entry of a stored record."""
    record = row.record
    by = {"principalEmail": record.acting_as or record.who}
    payload: dict[str, Any] = {
        "serviceName": _service(record.method),
        "methodName": record.method,
        "resourceName": record.resource,
        "authenticationInfo": by,
        "requestMetadata": {"callerIp": record.source},
        "metadata": dict(record.detail),
    }
    if record.acting_as:
        first = {"firstPartyPrincipal": {"principalEmail": record.who}}
        payload["authenticationInfo"] = {**by, "serviceAccountDelegationInfo": [first]}
    text = f"{record.who} {record.method} {record.resource}"
    return AuditEntry(row.project, row.at, f"{row.seq:020d}", text, payload)


async def audit_entries(
    call: Call, project: str, span: Span, most: int
) -> AsyncIterator[AuditEntry]:
    """Yield the records in `span` of a project, the newest `most`. Raises PermissionDenied."""
    authorize(call.principal, _LIST, (project,))
    start, end = span.narrowed()
    rows: list[AuditRow] = []
    before: int | None = None
    while len(rows) < most:
        page = await call.services.access.audited(project, before, _PAGE)
        rows += [row for row in page if start <= row.at < end]
        if len(page) < _PAGE or page[-1].at < start:
            break
        before = page[-1].seq
    entries = await asyncio.to_thread(
        lambda: sorted(map(entry_of, rows[:most]), key=lambda entry: entry.position)
    )
    for entry in reversed(entries) if span.descending else entries:
        if span.holds(entry):
            yield entry


def _service(method: str) -> str:
    """Return the API of a method: `google.cloud.ml.v1.JobService.CreateJob` is of `ml.googleapis.com`."""
    words = method.split(".")
    return f"{words[-4]}.googleapis.com" if words[0] == "google" else words[0]
