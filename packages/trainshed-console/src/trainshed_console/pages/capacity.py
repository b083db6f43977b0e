"""The pages of the queue, the quotas and the nodes; actions to drain nodes and set quotas."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from trainshed.core.catalog.quotas import metrics
from trainshed.httpd.messages import Response
from trainshed.wire.trainshed_v1.capacity import Node, NodeList, QuotaList, UsageReport, UsageRow
from trainshed.wire.trainshed_v1.jobs import JobDescription, JobList
from trainshed_console.rendering import epoch
from trainshed_console.views import Part, View, Visit, of_job, redirect

_MAX_WAITING: Final = 50
"""Maximum number of waiting jobs in the list. They are the oldest of the newest `_MAX_NAMED` jobs."""
_MAX_RUNNING: Final = 100
"""Maximum running jobs in the list."""
HOLDING: Final = "PREPARING,RUNNING,CANCELLING"
"""States of jobs that use resources of nodes."""
_MAX_NAMED: Final = 500
"""Number of newest jobs that the pages of nodes show by name. Older jobs are shown by ID."""
_DAYS: Final = 7
Week = Sequence[tuple[str, Sequence[UsageRow]]]
"""The usage of each of the last days, oldest first, as pairs of a date such as `Mon 23` and its rows."""


async def queue(visit: Visit) -> View:
    """`/queue`: waiting jobs with their reasons and hints, running jobs, and quotas."""
    jobs, more = await waiting_jobs(visit)
    running = await jobs_of(visit, state="RUNNING", glance="true", limit=str(_MAX_RUNNING))
    nodes = await visit.get_if_allowed(NodeList, "nodes") or NodeList()
    held = Counter(replica.job for node in nodes.nodes for replica in node.replicas or ())
    # If the page shows all projects, show the quotas of the service's default project.
    project = visit.project if visit.project != "-" else visit.facts.project
    quotas = QuotaList()
    if project and (region := visit.facts.region):
        quotas = await visit.get(QuotaList, "quotas", project=project, region=region)
    return View(
        "Queue",
        "queue.html",
        parts={
            "waiting": Part("_queue_waiting.html", {"jobs": jobs, "more": more, "epoch": epoch}),
            "running": Part("_queue_running.html", {"jobs": running.jobs, "held": held}),
            "quotas": Part(
                "_queue_quotas.html",
                {
                    "quotas": quotas,
                    "metrics": metrics(),
                    "may_set": bool(quotas.project) and visit.may("trainshed.v1.Quotas.Set", quotas.project),
                },
            ),
        },
        lives=True,
        place="queue",
    )


async def jobs_of(visit: Visit, **query: str) -> JobList:
    """Return the newest jobs of the page's project that match a query. Raises CallRejected."""
    return await visit.get(JobList, "jobs", project=visit.project, **query)


async def waiting_jobs(visit: Visit) -> tuple[list[JobDescription], bool]:
    """Return the jobs that have waited longest, the next to start first, and whether more jobs wait."""
    waiting = await jobs_of(visit, state="QUEUED,PREPARING", limit=str(_MAX_NAMED))
    oldest = waiting.jobs[-_MAX_WAITING:]
    described = [await visit.get_if_allowed(JobDescription, of_job(job.uid)) for job in oldest]
    jobs = [
        job for job in described if job is not None
    ]  # Jobs that were deleted in the meantime are omitted.
    jobs.sort(key=lambda job: (job.waiting is None, job.waiting.position if job.waiting else 0))
    return jobs, len(waiting.jobs) > _MAX_WAITING


async def nodes(visit: Visit) -> View:
    """`/nodes`: the resources of each node, their allocation by job, their usage, and the allocation of the
    last days."""
    node_list = await visit.get(NodeList, "nodes", usage="true")
    running = await jobs_of(visit, state=HOLDING, limit=str(_MAX_NAMED))
    week = await usage_of_week(visit, "node")
    shared = {
        "names": {job.name: job.display_name or job.job_id for job in running.jobs},
        "users": {job.name: job.user for job in running.jobs},
    }
    parts = {
        f"node-{place}": Part(
            "_node.html", {**shared, "node": node, "used": _node_usage(node), "history": history(node, week)}
        )
        for place, node in enumerate(node_list.nodes)
    }
    return View(
        "Nodes",
        "nodes.html",
        parts=parts,
        lists={"nodes": tuple(parts)},
        whole=frozenset({"nodes"}),
        lives=True,
        place="nodes",
    )


async def usage_of_week(visit: Visit, by: str) -> Week:
    """Return the usage of each of the last days. Return () if the visitor may not see usage. `by`: "user" or
    "node", for which each row is one user or one node."""
    today = datetime.fromtimestamp(visit.now // 10**9, UTC).replace(hour=0, minute=0, second=0)
    begins = [today - timedelta(days=ago) for ago in range(_DAYS - 1, -1, -1)]
    reports = await asyncio.gather(
        *(
            visit.get_if_allowed(
                UsageReport,
                "usage",
                project=visit.project,
                by=by,
                since=begin.isoformat(),
                until=(begin + timedelta(days=1)).isoformat(),
            )
            for begin in begins
        )
    )
    return [
        (f"{begin:%a %d}", report.rows)
        for begin, report in zip(begins, reports, strict=True)
        if report is not None
    ]


def history(node: Node, week: Week) -> list[tuple[str, float]]:
    """Return (date, allocated fraction of the node) for each of the last days. Return [] if nothing was
    allocated. The fraction counts accelerators, or processors on nodes without accelerators."""
    count = sum(device.count for device in node.accelerators or ())
    most = 24 * (count or node.vcpus or 0)
    held = [
        (day, sum(row.gpu_hours if count else row.cpu_hours for row in rows if row.name == node.name))
        for day, rows in week
    ]
    return [(day, hours / most) for day, hours in held] if most and any(h for _, h in held) else []


def _node_usage(node: Node) -> tuple[float, int] | None:
    """Return the processors and bytes of memory that programs on a node use. Return None if the usage of a
    program is unknown."""
    known = [holder.usage for holder in node.replicas or () if holder.usage]
    if not known or len(known) < len(node.replicas or ()):
        return None
    running = [use for use in known if not use.over]
    return sum(use.cpus for use in running), sum(use.memory_bytes for use in running)


async def drain(visit: Visit) -> Response:
    """`POST /nodes/N/drain`: drain a node, with the reason in the form. Raises CallRejected."""
    body = {"reason": visit.form.get("reason", "")}
    await visit.do("POST", f"nodes/{visit.encode_variable('node')}:drain", body)
    return redirect("/nodes")


async def undrain(visit: Visit) -> Response:
    """`POST /nodes/N/undrain`: undrain a node. Raises CallRejected."""
    await visit.do("POST", f"nodes/{visit.encode_variable('node')}:undrain")
    return redirect("/nodes")


async def set_quota(visit: Visit) -> Response:
    """`POST /quotas`: set a limit. Raises CallRejected."""
    form, limit = visit.form, visit.form.get("limit", "").strip()
    try:
        value: float | str = float(limit)
    except ValueError:
        value = limit  # The text "unlimited" is allowed. The API rejects other texts.
    quota = {name: form.get(name, "") for name in ("project", "region", "metric", "user")}
    await visit.do("POST", "quotas:set", {**quota, "limit": value})
    return redirect(f"/queue?{urlencode({'project': quota['project']})}")
