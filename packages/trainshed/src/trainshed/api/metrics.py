"""`GET /metrics`: the service's own metrics in the format of Prometheus (docs/metrics.md).

Most numbers come from `telemetry.meters`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate
from typing import Final

from trainshed.access.authorization import authorize
from trainshed.api.calls.http import no_such_method, refusal_answer
from trainshed.api.calls.services import Authenticate, Services
from trainshed.core.capacity import Load, NodeStatus
from trainshed.core.catalog.quotas import CPU_HOURS, GPU_HOURS
from trainshed.eventloop.lag import Lag
from trainshed.httpd.messages import Request, Response
from trainshed.telemetry.meters import Histogram, Labels, Meters

METHOD: Final = "trainshed.v1.Service.GetMetrics"
_PROJECTS: Final = 100
"""Projects with series of their own; all others are one, whose name is ""."""
_RESOURCES: Final = {CPU_HOURS: "cpu", GPU_HOURS: "gpu"}
_KIND: Final = b"text/plain; version=0.0.4; charset=utf-8"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


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
    yield from _of_service(services.settings.version, services.lag())
    yield from _of_load(services.capacity.load())
    yield from _of_nodes(services.capacity.nodes())
    yield from _of_meters(services.meters)


def _of_service(version: str, lag: Lag) -> Iterable[str]:
    yield from _gauge("trainshed_info", "The service that answers.", ("version",), {(version,): 1})
    yield from _gauge(
        "trainshed_event_loop_lag_seconds",
        "How late the event loop was at most, of late and since the start.",
        ("span",),
        {("recent",): lag.recent, ("longest",): lag.longest},
    )


def _of_load(load: Load) -> Iterable[str]:
    yield from _gauge(
        "trainshed_jobs",
        "Training jobs that are not over.",
        ("api", "state"),
        {(api.value, state): count for (api, state), count in load.jobs.items()},
    )
    yield from _gauge(
        "trainshed_jobs_waiting", "Jobs that wait for capacity.", (), {(): load.waiting}
    )
    yield from _of_projects(load)
    # Those of people are not told: there may be ten thousand.
    own = [quota for quota in load.quotas if not quota.key.person]
    quotas = {(quota.key.project_id, quota.key.region, quota.key.metric): quota for quota in own}
    labels = ("project", "region", "metric")
    limits = {of: quota.limit for of, quota in quotas.items() if quota.limit is not None}
    used = {of: quota.used for of, quota in quotas.items()}
    waiting = {of: quota.waiting for of, quota in quotas.items()}
    yield from _gauge("trainshed_quota_limit", "Limit of a quota, if it has one.", labels, limits)
    yield from _gauge("trainshed_quota_used", "How much of a quota running jobs use.", labels, used)
    yield from _gauge(
        "trainshed_quota_waiting", "How much of a quota waiting jobs ask for.", labels, waiting
    )


def _of_projects(load: Load) -> Iterable[str]:
    """Yield what projects do, by name those with most jobs, then most use: anybody may make up names."""
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
    text = "Training jobs of a project that are not over."
    yield from _gauge("trainshed_project_jobs", text, ("project", "state"), jobs)
    text = "Time of GPUs and CPUs that a project held in this month."
    yield from _gauge("trainshed_project_used_seconds", text, ("project", "resource"), used)


def _of_nodes(there: Sequence[NodeStatus]) -> Iterable[str]:
    yield from _gauge(
        "trainshed_node_ready",
        "1 if the node takes work.",
        ("node", "condition"),
        {(node.name, node.condition.value): int(not node.cause) for node in there},
    )
    per_node: Mapping[str, tuple[str, Callable[[NodeStatus], float]]] = {
        "vcpus": ("CPUs of a node.", lambda node: node.vcpus),
        "used_vcpus": ("CPUs of a node that jobs have.", lambda node: node.used_vcpus),
        "memory_bytes": ("Memory of a node.", lambda node: node.memory_bytes),
        "used_memory_bytes": (
            "Memory of a node that jobs have.",
            lambda node: node.used_memory_bytes,
        ),
    }
    for name, (text, value) in per_node.items():
        values = {(node.name,): value(node) for node in there}
        yield from _gauge(f"trainshed_node_{name}", text, ("node",), values)
    all_of = {(node.name, kind): count for node in there for kind, count in node.accelerators}
    used = {(node.name, kind): count for node in there for kind, count in node.used_accelerators}
    labels = ("node", "type")
    yield from _gauge("trainshed_node_accelerators", "Accelerators of a node.", labels, all_of)
    yield from _gauge(
        "trainshed_node_used_accelerators", "Accelerators of a node that jobs have.", labels, used
    )


def _of_meters(meters: Meters) -> Iterable[str]:
    request = ("transport", "method", "code")
    text = "Time to answer a request of the API; streams are not counted."
    yield from _histogram("trainshed_request_seconds", text, request, meters.requests)
    text = "Time from asking for capacity to getting it."
    yield from _histogram("trainshed_job_wait_seconds", text, ("api",), meters.waits)
    text = "Time from a job's submit until all of its replicas were up."
    yield from _histogram("trainshed_job_start_seconds", text, ("api",), meters.starts)
    for name, text, labels, values in _counters(meters):
        yield from _counter(f"trainshed_{name}", text, labels, values)


def _counters(meters: Meters) -> Iterable[tuple[str, str, Labels, Mapping[Labels, int]]]:
    of_rule = ("rule",)
    notified = "Tries to tell a target of a job: sent, failed (it is tried again) or given_up."
    deleted = "Jobs that were deleted because they had been kept for long enough."
    yield "jobs_ended", "Jobs that are over.", ("api", "state", "rule"), meters.ends
    yield "job_retries", "Jobs that began another attempt.", of_rule, meters.retries
    restarted = "Replicas that began again within their attempt."
    yield "replica_restarts", restarted, of_rule, meters.restarts
    yield "log_lines", "Log lines of replicas that ended.", (), {(): meters.lines}
    yield "notifications", notified, ("target", "result"), meters.notifications
    yield "retention_deleted", deleted, (), {(): meters.deleted}


def _gauge(name: str, text: str, labels: Labels, values: Mapping[Labels, float]) -> Iterable[str]:
    yield _heading(name, text, "gauge")
    for of, value in sorted(values.items()):
        yield _sample(name, labels, of, value)


def _counter(name: str, text: str, labels: Labels, values: Mapping[Labels, int]) -> Iterable[str]:
    yield _heading(f"{name}_total", text, "counter")
    for of, value in sorted(values.items()):
        yield _sample(f"{name}_total", labels, of, value)


def _histogram(name: str, text: str, labels: Labels, histogram: Histogram) -> Iterable[str]:
    yield _heading(name, text, "histogram")
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for of, series in sorted(histogram.series.items()):
        for bound, count in zip(bounds, accumulate(series.counts), strict=True):
            yield _sample(f"{name}_bucket", (*labels, "le"), (*of, bound), count)
        yield _sample(f"{name}_count", labels, of, sum(series.counts))
        yield _sample(f"{name}_sum", labels, of, series.total)


def _heading(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _sample(name: str, labels: Labels, of: Labels, value: float) -> str:
    pairs = ",".join(
        f'{label}="{text.translate(_ESCAPED)}"' for label, text in zip(labels, of, strict=True)
    )
    return f"{name}{{{pairs}}} {float(value)}\n" if pairs else f"{name} {float(value)}\n"
