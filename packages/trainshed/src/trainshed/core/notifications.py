"""Whom to notify that a job has ended or stalls or that a budget is used up, what is sent, and when it is
tried again. Pure (ADR 78).

Jobs name targets by a label, never an address: the service calls only addresses that its operator has set.
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from trainshed.core.catalog.quotas import HARD
from trainshed.core.failure.messages import linked
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos, whole_second
from trainshed.core.usage import Budget
from trainshed.core.works import Work

LABEL: Final = "trainshed-notify"
"""Label of a job: names of targets, with `_` between them."""
_SECOND: Final = 10**9
_PAUSES: Final = tuple(seconds * _SECOND for seconds in (10, 30, 120, 600, 1800, 3600))
"""Nanoseconds between two tries; the last one is repeated."""
GIVEN_UP_AFTER: Final = 24 * 3600 * _SECOND
"""Nanoseconds after which a notification that could not be sent is given up."""
_MAX_ERROR_CHARS: Final = 2_000
"""The most characters of a job's error in a notification."""


class Occasion(enum.StrEnum):
    """Why a notification is sent."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALLED = "stalled"
    #: A budget has reached one of the target's percentages.
    BUDGET = "budget"


OF_JOBS: Final = (Occasion.SUCCEEDED, Occasion.FAILED, Occasion.CANCELLED, Occasion.STALLED)


class Target(Struct, frozen=True):
    """A receiver of notifications."""

    name: str
    #: The occasions on which it is notified.
    on: frozenset[Occasion]
    #: It is notified of every job; otherwise only of those whose label names it.
    every_job: bool = False
    #: The percentages of budgets at which it is notified, ascending.
    budgets: tuple[int, ...] = ()


class Notification(Struct, frozen=True):
    """One notification for one target."""

    #: None = it is not of a job.
    job_uid: JobUid | None
    target: str
    occasion: Occasion
    #: Nanoseconds since the epoch.
    created: Nanos
    #: JSON in its sent form.
    content: str


def targets_of(labels: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of the targets that a job's label lists."""
    return tuple(filter(None, dict(labels).get(LABEL, "").split("_")))


def notifications(
    work: Work, entries: Sequence[TimelineEntry], targets: Iterable[Target], now: Nanos, page: str
) -> tuple[Notification, ...]:
    """Return the notifications of a step. `work`: the work after the step; `entries`: the step's
    own. A job of a tuning job or pipeline has none, since its parent is reported. `page`: the
    address of the service, below which jobs have their pages."""
    if work.parent is not None:
        return ()
    stalled = any(entry.details.get("stalled") is True for entry in entries)
    occasions = [Occasion.STALLED] if stalled else []
    if work.state.is_final:
        # No commit follows the step that ends a job, so its end is reported once.
        occasions.append(Occasion(work.state.value.lower()))
    if not occasions:
        return ()
    wanted = targets_of(work.labels)
    return tuple(
        Notification(work.uid, target.name, occasion, now, content(work, occasion, now, page))
        for occasion in occasions
        for target in targets
        if occasion in target.on and (target.every_job or target.name in wanted)
    )


class BudgetNotice(Struct, frozen=True):
    """A notification of a budget, which a target gets once."""

    #: When the budget's month began (ns).
    month: Nanos
    #: Its subject: the budget with its limit, and the percentage.
    subject: str
    notification: Notification


def budget_notices(
    budgets: Iterable[Budget], month: Nanos, targets: Iterable[Target], now: Nanos
) -> tuple[BudgetNotice, ...]:
    """Return who is to hear of budgets that have reached a mark: of each the highest percentage. A hard
    budget that is used up is heard of by all that hear of budgets."""
    notices: list[BudgetNotice] = []
    for budget in budgets:
        for target in targets:
            key = budget.key
            marks = (100,) if key.metric.endswith(HARD) and target.budgets else target.budgets
            percent = max((mark for mark in marks if mark <= budget.reached), default=0)
            if not percent:
                continue
            subject = f"{key.project_id} {key.metric} {key.person} {budget.limit:g} {percent}"
            data = {
                "project": key.project_id,
                "user": key.person,
                "metric": key.metric,
                "limit": budget.limit,
                "used": round(budget.used, 2),
                "percent": percent,
            }
            text = _event("budget.reached", now, data)
            sent = Notification(None, target.name, Occasion.BUDGET, now, text)
            notices.append(BudgetNotice(month, subject, sent))
    return tuple(notices)


def content(work: Work, occasion: Occasion, now: Nanos, page: str) -> str:
    """Return what is sent of a job."""
    message = linked(work.error.message, work.uid, page) if work.error else ""
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
        "page": f"{page}/jobs/{work.uid}",
        "error": {"code": work.error.code, "message": message[:_MAX_ERROR_CHARS]}
        if work.error
        else None,
    }
    return _event(f"job.{occasion}", now, data)


def _event(kind: str, now: Nanos, data: Mapping[str, Any]) -> str:
    """Return what is sent: an object with `type`, `timestamp` and `data`, as Standard Webhooks has it."""
    event = {"type": kind, "timestamp": _moment(now), "data": data}
    return json.dumps(event, ensure_ascii=False)


def mail_of(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the subject and the text of a mail, from what `content` has made."""
    data = event["data"]
    if event["type"] == "budget.reached":
        return _budget_mail(data)
    occasion = str(event["type"]).removeprefix("job.")
    title = " ".join(str(data["displayName"] or data["name"]).split())
    lines = [
        f"{data['name']} {occasion}.",
        f"State:   {data['state']}",
        f"Created: {data['createTime']}",
        f"Started: {data['startTime']}" if data["startTime"] else "",
        f"Ended:   {data['endTime']}" if data["endTime"] else "",
        f"\n{data['error']['message']}\n" if data["error"] else "",
        f"Page:    {data['page']}",
        f"Log:     trainshed jobs logs {data['uid']}",
    ]
    return f"{title} {occasion}", "\n".join(filter(None, lines)) + "\n"


def _budget_mail(data: Mapping[str, Any]) -> tuple[str, str]:
    whose = f"{data['user']} in {data['project']}" if data["user"] else f"project {data['project']}"
    hard = str(data["metric"]).endswith(HARD)
    then = (
        "Running jobs release their places and wait with the others"
        if hard
        else "No new jobs start"
        if data["percent"] >= 100
        else "Jobs start as before until the budget is used up"
    )
    return f"{whose}: {data['percent']} % of {data['metric']}", (
        f"{whose} has used {data['used']:g} of {data['limit']:g} {data['metric']}.\n{then}.\n"
        f"Usage:  trainshed usage --project {data['project']} --by user\n"
    )


def next_try(created: Nanos, tries: int, now: Nanos) -> int | None:
    """Return when a notification is tried again (ns since the epoch) after `tries` failed tries; None = it is
    given up."""
    due = now + _PAUSES[min(tries, len(_PAUSES)) - 1]
    return due if due - created <= GIVEN_UP_AFTER else None


def _moment(at: Nanos) -> str:
    return f"{whole_second(at // _SECOND)}Z" if at else ""
