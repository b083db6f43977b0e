"""The overview of running, waiting and failed jobs, and of capacity by user. Also the page of the service,
with its status, the engine's capabilities, and the names of secrets."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from trainshed.wire.trainshed_v1.access import SecretList
from trainshed.wire.trainshed_v1.capacity import NodeList
from trainshed.wire.trainshed_v1.jobs import JobSummary, Status
from trainshed_console.pages.capacity import HOLDING, jobs_of, usage_of_week, waiting_jobs
from trainshed_console.pages.jobs import error_line, row
from trainshed_console.rendering import epoch
from trainshed_console.views import Part, View, Visit

_MAX_LISTED: Final = 8
_MAX_JOBS: Final = 500
"""Number of newest jobs that the overview evaluates."""


class Cause(Struct, frozen=True):
    """The jobs that failed by the same rule of the failure table."""

    rule: str
    count: int
    #: The newest job, and the most useful line of its error.
    job: JobSummary
    error: str


async def page(visit: Visit) -> View:
    """`/overview`: running and waiting jobs, failures of the last day, capacity by user, and usage of the
    last 7 days. Operators also see the state of the service."""
    day = visit.now // 10**9 - 86_400
    holding, all_failed, waiting, nodes, status, days = await asyncio.gather(
        jobs_of(visit, state=HOLDING, glance="true", counts="true", limit=str(_MAX_JOBS)),
        jobs_of(visit, state="FAILED", limit=str(_MAX_JOBS)),
        waiting_jobs(visit),
        visit.get_if_allowed(NodeList, "nodes"),
        visit.get(Status, "status"),
        _days(visit),
    )
    running = [job for job in holding.jobs if job.state == "RUNNING"]
    counts = holding.counts or {}
    failed = [job for job in all_failed.jobs if epoch(job.end_time) >= day]
    values: dict[str, object] = {
        "running": [{"job": job, **row(job)} for job in running[:_MAX_LISTED]],
        "running_count": counts.get("RUNNING", 0),
        "waiting": waiting[0][:_MAX_LISTED],
        "waiting_count": counts.get("QUEUED", 0) + counts.get("PREPARING", 0),
        "failed_count": f"{len(failed)}{'+' if len(failed) == _MAX_JOBS else ''}",
        "causes": causes(failed),
        "people": accelerators_by_person(holding.jobs),
        "days": days,
        "accelerators": _accelerators(nodes) if nodes else {},
        "conditions": Counter(node.condition or "GONE" for node in nodes.nodes) if nodes else {},
        "unwell": [node for node in nodes.nodes if node.condition != "READY"] if nodes else [],
        "status": status,
        "epoch": epoch,
    }
    parts = {"now": Part("_overview.html", values)}
    return View("Overview", "overview.html", parts=parts, lives=True, place="overview")


def causes(failed: Sequence[JobSummary]) -> list[Cause]:
    """Return the causes of failed jobs, most frequent first. `failed`: the failed jobs, newest first."""
    counts = Counter(job.rule for job in failed)
    newest = {job.rule: job for job in reversed(failed)}
    return [
        Cause(rule, count, job := newest[rule], error_line(job.error))
        for rule, count in counts.most_common(_MAX_LISTED)
    ]


def accelerators_by_person(holding: Iterable[JobSummary]) -> list[tuple[str, int]]:
    """Return the number of accelerators allocated to each user, largest number first."""
    held = Counter[str]()
    for job in holding:
        held[job.user] += sum(job.accelerators.values())
    return [(person, count) for person, count in held.most_common(_MAX_LISTED) if count]


def _accelerators(nodes: NodeList) -> Mapping[str, tuple[int, int]]:
    """Return (allocated, total) for each type of accelerator."""
    used, total = Counter[str](), Counter[str]()
    for node in nodes.nodes:
        for device in node.accelerators or ():
            used[device.type] += device.used
            total[device.type] += device.count
    return {kind: (used[kind], count) for kind, count in total.items()}


async def _days(visit: Visit) -> list[tuple[str, float, float, float, float]]:
    """Return (date, GPU-hours, CPU-hours, used GPU-hours, used CPU-hours) for each of the last days, oldest
    first. Return [] if the visitor may not see usage."""
    return [
        (
            day,
            sum(entry.gpu_hours for entry in rows),
            sum(entry.cpu_hours for entry in rows),
            sum(entry.gpu_hours * (entry.gpu_share or 0) for entry in rows),
            sum(entry.cpu_hours * (entry.cpu_share or 0) for entry in rows),
        )
        for day, rows in await usage_of_week(visit, "user")
    ]


async def settings(visit: Visit) -> View:
    """`/settings`: the page of the service."""
    status = await visit.get(Status, "status")
    project, _ = visit.place
    secrets = await visit.get_if_allowed(SecretList, "secrets", project=project) if project else None
    facts = {"status": status, "secrets": secrets or SecretList()}
    return View("Service", "settings.html", facts, place="settings")
