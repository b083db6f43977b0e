"""Decides which targets receive a notification about an ended job, a stalled job or a used budget. Also
creates the contents and schedules retries. Pure (ADR 78).

Jobs select targets by a label, never by an address. The service sends notifications only to addresses that
its operator has set.
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from trainshed.core.catalog.quotas import HARD
from trainshed.core.failure.messages import add_link
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos, whole_second
from trainshed.core.usage import Budget
from trainshed.core.works import Work

LABEL: Final = "trainshed-notify"
"""Label of a job: names of targets, separated by `_`."""
_SECOND: Final = 10**9
_PAUSES: Final = tuple(seconds * _SECOND for seconds in (10, 30, 120, 600, 1800, 3600))
"""Nanoseconds between two attempts to send a notification. The last value repeats."""
GIVEN_UP_AFTER: Final = 24 * 3600 * _SECOND
"""Nanoseconds after which the service stops trying to send a notification."""
_MAX_ERROR_CHARS: Final = 2_000
"""Maximum number of characters of a job's error in a notification."""


class Occasion(enum.StrEnum):
    """The event that causes a notification."""

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
    #: The occasions for which the target receives notifications.
    on: frozenset[Occasion]
    #: Whether the target receives notifications about all jobs, or only about jobs with its name in their
    #: label.
    every_job: bool = False
    #: The percentages of budgets at which the target receives a notification, ascending.
    budgets: tuple[int, ...] = ()


class Notification(Struct, frozen=True):
    """One notification for one target."""

    #: The uid of the notification's job, or None if it is not about a job.
    job_uid: JobUid | None
    target: str
    occasion: Occasion
    #: Creation of the notification, in nanoseconds since the epoch.
    created: Nanos
    #: The JSON body to send.
    content: str


def targets_of(labels: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the names of the targets in the job's label."""
    return tuple(filter(None, dict(labels).get(LABEL, "").split("_")))


def notifications(
    work: Work, entries: Sequence[TimelineEntry], targets: Iterable[Target], now: Nanos, page: str
) -> tuple[Notification, ...]:
    """Return the notifications that follow from a step of a job.

    `work`: the job, tuning job or pipeline after the step. `entries`: the timeline entries of the step.
    `page`: the service's address, which is the prefix of links to jobs. Jobs of a tuning job or pipeline
    cause no notifications, because the tuning job or pipeline itself does.
    """
    if work.parent is not None:
        return ()
    stalled = any(entry.details.get("stalled") is True for entry in entries)
    occasions = [Occasion.STALLED] if stalled else []
    if work.state.is_final:
        # The step that ends a job is its last commit, so the end is reported once.
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
    """A notification about a budget, which a target receives once."""

    #: Start of the budget's month (ns).
    month: Nanos
    #: The subject: the budget with its limit, and the percentage.
    subject: str
    notification: Notification


def budget_notices(
    budgets: Iterable[Budget], month: Nanos, targets: Iterable[Target], now: Nanos
) -> tuple[BudgetNotice, ...]:
    """Return notifications about budgets that have reached a target's percentage. For each budget, only the
    highest percentage is reported. Targets with any percentage receive a notification when a hard budget is
    used up."""
    notices: list[BudgetNotice] = []
    for budget in budgets:
        for target in targets:
            key = budget.key
            marks = (100,) if key.metric.endswith(HARD) and target.budgets else target.budgets
            percent = max((mark for mark in marks if mark <= budget.reached_mark), default=0)
            if not percent:
                continue
            subject = f"{key.project_id} {key.metric} {key.person} {budget.limit:g} {percent}"
            data = {
                "project": key.project_id,
                "user": key.person,
                "metric": key.metric,
                "limit": budget.limit,
                "used": round(budget.usage, 2),
                "percent": percent,
            }
            text = _event("budget.reached", now, data)
            sent = Notification(None, target.name, Occasion.BUDGET, now, text)
            notices.append(BudgetNotice(month, subject, sent))
    return tuple(notices)


def content(work: Work, occasion: Occasion, now: Nanos, page: str) -> str:
    """Return the JSON body of a notification about a job."""
    message = add_link(work.error.message, work.uid, page) if work.error else ""
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
        "error": {"code": work.error.code, "message": message[:_MAX_ERROR_CHARS]} if work.error else None,
    }
    return _event(f"job.{occasion}", now, data)


def _event(kind: str, now: Nanos, data: Mapping[str, Any]) -> str:
    """Return a notification's body: an object with `type`, `timestamp` and `data`, as defined by Standard
    Webhooks."""
    event = {"type": kind, "timestamp": _moment(now), "data": data}
    return json.dumps(event, ensure_ascii=False)


def mail_of(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the subject and the text of an e-mail from the result of `content`."""
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
        "Running jobs release their nodes and wait like the others"
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
    """Return the time of the next attempt to send a notification (ns since the epoch) after `tries` failed
    attempts. Return None if the service stops trying."""
    due = now + _PAUSES[min(tries, len(_PAUSES)) - 1]
    return due if due - created <= GIVEN_UP_AFTER else None


def _moment(at: Nanos) -> str:
    return f"{whole_second(at // _SECOND)}Z" if at else ""
