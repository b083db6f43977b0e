"""The public messages about the end of a job, and the typed facts that accompany them
(spec/failures#messages, facts/lifecycle#errors, facts/lifecycle#payload)."""

import contextlib
import enum
import json
from typing import Final
from urllib.parse import quote

from trainshed.core.failure.evidence import Evidence
from trainshed.core.failure.reasons import reason
from trainshed.core.job import JobError
from trainshed.core.names import JobName, JobUid, project_number

CANCELLED = 1
INVALID_ARGUMENT = 3
FAILED_PRECONDITION = 9
INTERNAL = 13

_MAX_BODY_CHARS: Final = 2000
"""Maximum number of characters of a program's last lines in a message."""
_MORE: Final = "To find out more about why your job exited please check the logs: "
_PUBLIC: Final = "https://console.cloud.google.com"
INTERNAL_ERROR_MESSAGE = "Internal error occurred for the current attempt"


class Message(enum.StrEnum):
    """Selects the public message of a failure rule."""

    NONE = "none"
    USER_CODE = "user_code"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    LOST = "lost"
    PACKAGE = "package"
    DATA = "data"
    REJECTED = "rejected"
    STOCK_OUT = "stock_out"
    BUDGET = "budget"
    INTERNAL = "internal"
    CANCELLED = "cancelled"


def public_message(code: int, message: Message, evidence: Evidence, own: str | None) -> JobError:
    """Return the job's public error. `own`: an operator's text that replaces the text of `message`, or
    None."""
    return JobError(
        code,
        _text(message, evidence) if own is None else _fill(own, evidence),
        cause=evidence.cause.value,
        replica=str(evidence.replica) if evidence.replica else None,
        status=evidence.status,
        tail=evidence.exit.tail if evidence.exit else "",
        reason=_reason(evidence),
        advice=evidence.advice,
    )


def _reason(evidence: Evidence) -> str | None:
    """Return the reason of the failure in one sentence, or None if the text of the public message already
    states the reason."""
    ended = evidence.exit
    if evidence.text or ended is None or ended.oom or ended.out_of_disk:
        return evidence.text
    if ended.stalled:
        return "It stalled: it made no progress."
    lines, status = _tail(evidence).split("\n"), evidence.status or 0
    return reason(lines, status=status, number=ended.signal, child_oom=ended.child_oom)


_TEXTS: Final = {
    **dict.fromkeys((Message.NONE, Message.DATA, Message.CANCELLED), "{reason}"),
    Message.REJECTED: "The job cannot be started on this service: {reason}",
    Message.OUT_OF_MEMORY: "The replica {replica} ran out of memory and exited with a non-zero status of "
    "{status}.",
    Message.OUT_OF_DISK: "The replica {replica} was stopped because its files exceeded the size of its "
    "disk. Delete files that you do not need, or request a larger disk "
    "(bootDiskSizeGb).",
    Message.LOST: "The replica {replica} was lost: {reason}.",
    Message.STOCK_OUT: "Resources are insufficient in region: {region}. Try a different region or use a "
    "different accelerator.",
    Message.BUDGET: ("The job was stopped because {reason}, and it does not allow retries (disableRetries)."),
    Message.INTERNAL: f"{INTERNAL_ERROR_MESSAGE}: {{reason}}",
}
"""The text of each public message. Facts replace the names in braces. Operators' own texts have the same
form."""
FACTS: Final = ("replica", "status", "region", "reason")
"""The facts that a message text may contain in braces, such as `{replica}`."""


def _text(message: Message, evidence: Evidence) -> str:
    if message is Message.USER_CODE or (message is Message.LOST and evidence.exit is not None):
        tail = _tail(evidence)
        body = tail if len(tail) <= _MAX_BODY_CHARS else f"…{tail[-_MAX_BODY_CHARS:]}"
        return _user_code(evidence, evidence.status or 0, body)
    if message in (Message.OUT_OF_MEMORY, Message.LOST) and evidence.advice:
        return f"{_fill(_TEXTS[message], evidence)}\n{evidence.advice}"
    if message is Message.PACKAGE and evidence.is_package:
        # The public services install packages in the replica, so the failed installation sets the replica's
        # status.
        return _user_code(evidence, 1, evidence.text)
    if message is Message.PACKAGE:
        return "\n".join(filter(None, (evidence.text, f"{_MORE}{logs_link(evidence.name)}")))
    return _fill(_TEXTS[message], evidence).removesuffix(": ")


def _fill(own: str, evidence: Evidence) -> str:
    status = "unknown" if evidence.status is None else str(evidence.status)
    facts = (evidence.public_name, status, evidence.region, evidence.text or "")
    for name, fact in zip(FACTS, facts, strict=True):
        own = own.replace(f"{{{name}}}", fact)
    return own


def _tail(evidence: Evidence) -> str:
    lines = evidence.exit.tail.strip().split("\n") if evidence.exit else ()
    return "\n".join(map(_format_line, lines))


def _format_line(line: str) -> str:
    """Return a line in the log's form: for a JSON object with a message, only the message."""
    if line.startswith("{") and line.endswith("}"):
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line).get("message")
            return message if isinstance(message, str) else line
    return line


def _user_code(evidence: Evidence, status: int, body: str | None) -> str:
    return "\n".join(
        (
            f"The replica {evidence.public_name} exited with a non-zero status of {status}. "
            "Termination reason: Error. ",
            *((body, "") if body else ()),
            *((evidence.advice, "") if evidence.advice else ()),
            f"{_MORE}{logs_link(evidence.name)}",
        )
    )


def add_link(message: str, uid: JobUid, pages: str) -> str:
    """Return the message with the current address in its link to the job's page, because the stored address
    may be outdated. `uid`: the uid of the failed job. `pages`: the current address of the console's job
    pages. A message without a link stays unchanged."""
    head, more, link = message.rpartition(_MORE)
    if not more or " " in link or "\n" in link:
        return message
    # Keep a job number that the link already contains. A pipeline may publish the error of its job, and the
    # link then leads to that job.
    number = link.rpartition("/jobs/")[2]
    return f"{head}{more}{pages}/jobs/{number if number.isdecimal() else uid}"


def logs_link(name: JobName) -> str:
    """Return the link to a job's log for public messages (facts/lifecycle#payload)."""
    query = f'resource.type="ml_job"\nresource.labels.job_id="{name.job_id}"'
    return (
        f"{_PUBLIC}/logs/viewer?project={project_number(name.project_id)}"
        f"&resource={quote(f'ml_job/job_id/{name.job_id}', safe='')}"
        f"&advancedFilter={quote(query, safe='')}"
    )
