"""`GET /metrics`: the service's own metrics in the Prometheus format (docs/metrics.md). `telemetry.meters`
provides most of the values."""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from trainshed.access.permissions import authorize
from trainshed.api.calls.http import public_error_response, unknown_method
from trainshed.api.calls.services import Authenticate, Services
from trainshed.core.capacity import Load, NodeStatus
from trainshed.core.catalog.quotas import CPU_HOURS, GPU_HOURS
from trainshed.httpd.messages import Request, Response
from trainshed.telemetry.meters import Histogram, Labels

METHOD: Final = "trainshed.v1.Service.GetMetrics"
_MAX_PROJECTS: Final = 100
"""Maximum number of projects with their own series. All other projects are combined under the label ""."""
_RESOURCES: Final = {CPU_HOURS: "cpu", GPU_HOURS: "gpu"}
_CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_FAMILIES: Final[Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("metrics.toml").read_text("utf-8")
)
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Values = Mapping[Labels, float]
"""The samples of a metric, by their labels."""


class MetricsSurface:
    """Handles requests for `/metrics`."""

    def __init__(self, services: Services, authenticate: Authenticate) -> None:
        self._services = services
        self._authenticate = authenticate

    async def answer(self, request: Request) -> Response:
        """Return the metrics. For another path or method, return an error. Raises Unauthenticated and
        PermissionDenied."""
        if request.method != "GET" or request.path != "/metrics":
            return public_error_response(unknown_method(request))
        request.api = "trainshed_v1"
        principal = await self._authenticate(request.headers.get("authorization"))
        # The metrics cover all projects, so callers with rights in only one project are rejected.
        authorize(principal, METHOD, ())
        return Response("".join(_lines(self._services)).encode(), headers=((b"content-type", _CONTENT_TYPE),))


def _lines(services: Services) -> Iterable[str]:
    values = {**_load_values(services.capacity.load()), **_node_values(services.capacity.nodes())}
    lag, meters = services.lag(), services.meters
    values |= {
        "info": {(services.settings.version,): 1},
        "event_loop_lag_seconds": {("recent",): lag.recent, ("longest",): lag.longest},
        "jobs_ended": meters.ends,
        "job_retries": meters.retries,
        "replica_restarts": meters.restarts,
        "log_lines": {(): meters.lines},
        "notifications": meters.notifications,
        "retention_deleted": {(): meters.deleted_jobs},
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


def _load_values(load: Load) -> Mapping[str, Values]:
    # Quotas of users are omitted, because ten thousand of them may exist.
    own = [quota for quota in load.quotas if not quota.key.person]
    quotas = {(quota.key.project_id, quota.key.region, quota.key.metric): quota for quota in own}
    return {
        "jobs": {(api.value, state): count for (api, state), count in load.jobs.items()},
        "jobs_waiting": {(): load.waiting},
        **_project_values(load),
        "quota_limit": {label_values: q.limit for label_values, q in quotas.items() if q.limit is not None},
        "quota_used": {label_values: quota.used for label_values, quota in quotas.items()},
        "quota_waiting": {label_values: quota.waiting for label_values, quota in quotas.items()},
    }


def _project_values(load: Load) -> Mapping[str, Values]:
    """Return the numbers of jobs and the usage by project. Only the projects with the most jobs and usage
    have labels of their own, because callers can invent project names."""
    weights: defaultdict[str, float] = defaultdict(float)
    for (project, _), hours in load.used.items():
        weights[project] += hours
    for (project, _), count in load.jobs_of_projects.items():
        weights[project] += count * 10**9
    shown = set(nlargest(_MAX_PROJECTS, weights, key=lambda project: weights[project]))
    jobs: Counter[Labels] = Counter()
    for (project, state), count in load.jobs_of_projects.items():
        jobs[project if project in shown else "", state] += count
    used: defaultdict[Labels, float] = defaultdict(float)
    for (project, metric), hours in load.used.items():
        if metric in _RESOURCES:
            used[project if project in shown else "", _RESOURCES[metric]] += hours * 3600
    return {"project_jobs": jobs, "project_used_seconds": used}


def _node_values(nodes: Sequence[NodeStatus]) -> Mapping[str, Values]:
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
    for label_values, series in sorted(histogram.series.items()):
        for bound, count in zip(bounds, accumulate(series.counts), strict=True):
            yield _sample(f"{name}_bucket", (*labels, "le"), (*label_values, bound), count)
        yield _sample(f"{name}_count", labels, label_values, sum(series.counts))
        yield _sample(f"{name}_sum", labels, label_values, series.total)


def _sample(name: str, labels: Sequence[str], label_values: Labels, value: float) -> str:
    pairs = ",".join(
        f'{label}="{text.translate(_ESCAPES)}"' for label, text in zip(labels, label_values, strict=True)
    )
    return f"{name}{{{pairs}}} {float(value)}\n" if pairs else f"{name} {float(value)}\n"
