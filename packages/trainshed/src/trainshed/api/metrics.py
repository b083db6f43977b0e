"""`GET /metrics`: the service's own metrics in the format of Prometheus (docs/metrics.md).

Most numbers come from `telemetry.meters`.
"""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from trainshed.access.permissions import authorize
from trainshed.api.calls.http import no_such_method, refusal_answer
from trainshed.api.calls.services import Authenticate, Services
from trainshed.core.capacity import Load, NodeStatus
from trainshed.core.catalog.quotas import CPU_HOURS, GPU_HOURS
from trainshed.httpd.messages import Request, Response
from trainshed.telemetry.meters import Histogram, Labels

METHOD: Final = "trainshed.v1.Service.GetMetrics"
_PROJECTS: Final = 100
"""Projects with series of their own; all others are one, whose name is ""."""
_RESOURCES: Final = {CPU_HOURS: "cpu", GPU_HOURS: "gpu"}
_KIND: Final = b"text/plain; version=0.0.4; charset=utf-8"
_FAMILIES: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("metrics.toml").read_text("utf-8")
)
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Values = Mapping[Labels, float]
"""The samples of a family, by their labels."""


class MetricsSurface:
    """Answers requests for `/metrics`."""

    def __init__(self, services: Services, authenticate: Authenticate) -> None:
        self._services = services
        self._authenticate = authenticate

    async def answer(self, request: Request) -> Response:
        """Return the metrics; a refusal for another path or method. Raises Unauthenticated,
        PermissionDenied."""
        if request.method != "GET" or request.path != "/metrics":
            return refusal_answer(no_such_method(request))
        request.api = "trainshed_v1"
        principal = await self._authenticate(request.headers.get("authorization"))
        # Principals of one project are refused, because the metrics cover all projects.
        authorize(principal, METHOD, ())
        return Response(
            "".join(_lines(self._services)).encode(), headers=((b"content-type", _KIND),)
        )


def _lines(services: Services) -> Iterable[str]:
    values = {**_of_load(services.capacity.load()), **_of_nodes(services.capacity.nodes())}
    lag, meters = services.lag(), services.meters
    values |= {
        "info": {(services.settings.version,): 1},
        "event_loop_lag_seconds": {("recent",): lag.recent, ("longest",): lag.longest},
        "jobs_ended": meters.ends,
        "job_retries": meters.retries,
        "replica_restarts": meters.restarts,
        "log_lines": {(): meters.lines},
        "notifications": meters.notifications,
        "retention_deleted": {(): meters.deleted},
    }
    histograms = {
        "request_seconds": meters.requests,
        "job_wait_seconds": meters.waits,
        "job_start_seconds": meters.starts,
    }
    for key, family in _FAMILIES.items():
        kind, labels = family["kind"], family["labels"]
        name = f"trainshed_{key}" + ("_total" if kind == "counter" else "")
        yield f"# HELP {name} {family['help']}\n# TYPE {name} {kind}\n"
        if kind == "histogram":
            yield from _histogram(name, labels, histograms[key])
        else:
            yield from (_sample(name, labels, *item) for item in sorted(values[key].items()))


def _of_load(load: Load) -> Mapping[str, Values]:
    # Those of people are not told: there may be ten thousand.
    own = [quota for quota in load.quotas if not quota.key.person]
    quotas = {(quota.key.project_id, quota.key.region, quota.key.metric): quota for quota in own}
    return {
        "jobs": {(api.value, state): count for (api, state), count in load.jobs.items()},
        "jobs_waiting": {(): load.waiting},
        **_of_projects(load),
        "quota_limit": {of: q.limit for of, q in quotas.items() if q.limit is not None},
        "quota_used": {of: quota.used for of, quota in quotas.items()},
        "quota_waiting": {of: quota.waiting for of, quota in quotas.items()},
    }


def _of_projects(load: Load) -> Mapping[str, Values]:
    """Return what projects do, by name those with most jobs, then most use: anybody may make up names."""
    weights: defaultdict[str, float] = defaultdict(float)
    for (project, _), hours in load.used.items():
        weights[project] += hours
    for (project, _), count in load.jobs_of_projects.items():
        weights[project] += count * 10**9
    shown = set(nlargest(_PROJECTS, weights, key=lambda project: weights[project]))
    jobs: Counter[Labels] = Counter()
    for (project, state), count in load.jobs_of_projects.items():
        jobs[project if project in shown else "", state] += count
    used: defaultdict[Labels, float] = defaultdict(float)
    for (project, metric), hours in load.used.items():
        if metric in _RESOURCES:
            used[project if project in shown else "", _RESOURCES[metric]] += hours * 3600
    return {"project_jobs": jobs, "project_used_seconds": used}


def _of_nodes(nodes: Sequence[NodeStatus]) -> Mapping[str, Values]:
    return {
        "node_ready": {(node.name, node.condition.value): not node.cause for node in nodes},
        **{
            f"node_{field}": {(node.name,): getattr(node, field) for node in nodes}
            for field in ("vcpus", "used_vcpus", "memory_bytes", "used_memory_bytes")
        },
        **{
            f"node_{field}": {
                (node.name, kind): count for node in nodes for kind, count in getattr(node, field)
            }
            for field in ("accelerators", "used_accelerators")
        },
    }


def _histogram(name: str, labels: Sequence[str], histogram: Histogram) -> Iterable[str]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for of, series in sorted(histogram.series.items()):
        for bound, count in zip(bounds, accumulate(series.counts), strict=True):
            yield _sample(f"{name}_bucket", (*labels, "le"), (*of, bound), count)
        yield _sample(f"{name}_count", labels, of, sum(series.counts))
        yield _sample(f"{name}_sum", labels, of, series.total)


def _sample(name: str, labels: Sequence[str], of: Labels, value: float) -> str:
    pairs = ",".join(
        f'{label}="{text.translate(_ESCAPED)}"' for label, text in zip(labels, of, strict=True)
    )
    return f"{name}{{{pairs}}} {float(value)}\n" if pairs else f"{name} {float(value)}\n"
