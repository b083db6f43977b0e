"""The page that shows how things stand: what runs, what waits and why, what has failed, who holds what; and
the page of the service: its status, what its engine promises, and the names of secrets."""

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
from trainshed_console.visits import Part, View, Visit

_SHOWN: Final = 8
_MOST: Final = 500
"""Most jobs that are added up, the newest by their submit."""


class Cause(Struct, frozen=True):
    """Jobs that failed by the same rule of the failure table."""

    rule: str
    count: int
    #: The newest of them, and its error's most useful line.
    job: JobSummary
    error: str


async def page(visit: Visit) -> View:
    """`/overview`: the jobs that run, wait and have failed in the last day, capacity by person, usage of the
    week; for who may see it, the service itself."""
    day = visit.now // 10**9 - 86_400
    holding, all_failed, waiting, nodes, status, days = await asyncio.gather(
        jobs_of(visit, state=HOLDING, glance="true", counts="true", limit=str(_MOST)),
        jobs_of(visit, state="FAILED", limit=str(_MOST)),
        waiting_jobs(visit),
        visit.get_if_allowed(NodeList, "nodes"),
        visit.get(Status, "status"),
        _days(visit),
    )
    running = [job for job in holding.jobs if job.state == "RUNNING"]
    counts = holding.counts or {}
    failed = [job for job in all_failed.jobs if epoch(job.end_time) >= day]
    values: dict[str, object] = {
        "running": [{"job": job, **row(job)} for job in running[:_SHOWN]],
        "running_count": counts.get("RUNNING", 0),
        "waiting": waiting[0][:_SHOWN],
        "waiting_count": counts.get("QUEUED", 0) + counts.get("PREPARING", 0),
        "failed_count": f"{len(failed)}{'+' if len(failed) == _MOST else ''}",
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
    """Return the jobs, newest first, by the rules by which they failed; the most frequent first."""
    counts = Counter(job.rule for job in failed)
    newest = {job.rule: job for job in reversed(failed)}
    return [
        Cause(rule, count, job := newest[rule], error_line(job.error))
        for rule, count in counts.most_common(_SHOWN)
    ]


def accelerators_by_person(holding: Iterable[JobSummary]) -> list[tuple[str, int]]:
    """Return how many accelerators each person's jobs hold, the most first."""
    held = Counter[str]()
    for job in holding:
        held[job.user] += sum(job.accelerators.values())
    return [(person, count) for person, count in held.most_common(_SHOWN) if count]


def _accelerators(nodes: NodeList) -> Mapping[str, tuple[int, int]]:
    """Return (held, all) by type of accelerator."""
    used, there = Counter[str](), Counter[str]()
    for node in nodes.nodes:
        for device in node.accelerators or ():
            used[device.type] += device.used
            there[device.type] += device.count
    return {kind: (used[kind], count) for kind, count in there.items()}


async def _days(visit: Visit) -> list[tuple[str, float, float, float, float]]:
    """Return (date, GPU-hours, CPU-hours, how many of each were at work) of each of the last days, oldest
    first; [] if the visitor may not see usage."""
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
    """`/settings`: the service."""
    status = await visit.get(Status, "status")
    project, _ = visit.place
    secrets = (
        await visit.get_if_allowed(SecretList, "secrets", project=project) if project else None
    )
    facts = {"status": status, "secrets": secrets or SecretList()}
    return View("Service", "settings.html", facts, place="settings")
