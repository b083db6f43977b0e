"""Who is told that a job has ended or stalls, what is sent, and when it is tried again. Pure (ADR 78).

Jobs name targets by a label, never an address: the service calls only what its operator has written down.
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from trainshed.core.failure.messages import linked
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobUid
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.units import Nanos
from trainshed.core.works import Work

LABEL: Final = "trainshed-notify"
"""Label of a job: names of targets, with `_` between them."""
_SECOND: Final = 10**9
_PAUSES: Final = tuple(seconds * _SECOND for seconds in (10, 30, 120, 600, 1800, 3600))
"""Nanoseconds between two tries; the last one is repeated."""
GIVEN_UP_AFTER: Final = 24 * 3600 * _SECOND
"""Nanoseconds."""
_LONGEST_ERROR: Final = 2_000
"""Characters of a job's error in a notification."""


class Occasion(enum.StrEnum):
    """Why somebody is told."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALLED = "stalled"


class Target(Struct, frozen=True):
    """Somebody who is told."""

    name: str
    #: The occasions on which they are.
    on: frozenset[Occasion]
    #: Whether of every job, or only of those whose label names it.
    every_job: bool = False


class Notification(Struct, frozen=True):
    """What one target is to be told."""

    job_uid: JobUid
    target: str
    occasion: Occasion
    #: ns since the epoch.
    created: Nanos
    #: JSON, as it is sent.
    content: str


def named(labels: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The targets that a job's labels name."""
    return tuple(filter(None, dict(labels).get(LABEL, "").split("_")))


def notifications(
    work: Work,
    entries: Sequence[TimelineEntry],
    targets: Iterable[Target],
    now: Nanos,
    page: str = "",
) -> tuple[Notification, ...]:
    """The notifications that a step asks for. `work`: as it is after the step; `entries`: the step's own.
    None of a job that a tuning job or pipeline made: that one is told of. `page`: the address of pages of
    jobs, "" = there is none."""
    if not isinstance(work, Pipeline) and work.parent is not None:
        return ()
    occasions = _occasions(work, entries)
    if not occasions:
        return ()
    asked = named(work.labels)
    return tuple(
        Notification(work.uid, target.name, occasion, now, content(work, occasion, now, page))
        for occasion in occasions
        for target in targets
        if occasion in target.on and (target.every_job or target.name in asked)
    )


def _occasions(work: Work, entries: Sequence[TimelineEntry]) -> list[Occasion]:
    stalled = any(entry.details.get("stalled") is True for entry in entries)
    found = [Occasion.STALLED] if stalled else []
    # There is no commit after the step that ends a work, so that its end is told of once.
    return [*found, Occasion(work.state.value.lower())] if work.state.is_final else found


def content(work: Work, occasion: Occasion, now: Nanos, page: str) -> str:
    """What is sent: an object with `type`, `timestamp` and `data`, as Standard Webhooks has it."""
    message = linked(work.error.message, work.name, work.uid, page) if work.error else ""
    data: dict[str, Any] = {
        "name": str(work.name),
        "uid": str(work.uid),
        "displayName": work.display_name,
        "project": work.name.project_id,
        "state": work.state.value,
        "createTime": _moment(work.created),
        "startTime": _moment(work.started),
        "endTime": _moment(work.ended),
        "labels": dict(work.labels),
        "page": f"{page}/jobs/{work.uid}" if page else "",
        "error": {"code": work.error.code, "message": message[:_LONGEST_ERROR]}
        if work.error
        else None,
    }
    told = {"type": f"job.{occasion}", "timestamp": _moment(now), "data": data}
    return json.dumps(told, ensure_ascii=False)


def mail_of(told: Mapping[str, Any]) -> tuple[str, str]:
    """Subject and text of a mail, from what `content` has made."""
    data = told["data"]
    occasion = str(told["type"]).removeprefix("job.")
    title = " ".join(str(data["displayName"] or data["name"]).split())
    lines = [
        f"{data['name']} {occasion}.",
        f"State:   {data['state']}",
        f"Created: {data['createTime']}",
        f"Started: {data['startTime']}" if data["startTime"] else "",
        f"Ended:   {data['endTime']}" if data["endTime"] else "",
        f"\n{data['error']['message']}\n" if data["error"] else "",
        f"Page:    {data['page']}" if data["page"] else "",
        f"Log:     trainshed jobs logs {data['uid']}",
    ]
    return f"{title} {occasion}", "\n".join(filter(None, lines)) + "\n"


def next_try(created: Nanos, tries: int, now: Nanos) -> int | None:
    """When a notification is tried again after so many failed tries (ns since the epoch); None = it is given
    up."""
    due = now + _PAUSES[min(tries, len(_PAUSES)) - 1]
    return due if due - created <= GIVEN_UP_AFTER else None


def _moment(at: Nanos) -> str:
    if not at:
        return ""
    return f"{datetime.fromtimestamp(at // _SECOND, UTC):%Y-%m-%dT%H:%M:%S}Z"
