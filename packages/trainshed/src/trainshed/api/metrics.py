"""`GET /metrics`: the service's own metrics in the format of Prometheus (docs/metrics.md).

Most numbers come from `telemetry.meters`. The library that renders them is loaded by the first request.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trainshed.access.authorization import authorize
from trainshed.access.principals import Principal
from trainshed.api.calls.http import no_such_method, refusal_answer
from trainshed.api.calls.services import Services
from trainshed.core.capacity import Load, NodeStatus
from trainshed.eventloop.lag import Lag
from trainshed.httpd.messages import Request, Response
from trainshed.telemetry.meters import Histogram, Labels, Meters

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

METHOD: Final = "trainshed.v1.Service.GetMetrics"


class MetricsSurface:
    """Answers requests for `/metrics`."""

    def __init__(self, services: Services, authenticate: Callable[[str | None], Principal]) -> None:
        self._services = services
        self._authenticate = authenticate

    async def answer(self, request: Request) -> Response:
        """Return the metrics; a refusal for another path or method. Raises Unauthenticated,
        PermissionDenied."""
        if request.method != "GET" or request.path != "/metrics":
            return refusal_answer(no_such_method(request))
        request.api = "trainshed_v1"
        principal = self._authenticate(request.headers.get("authorization"))
        # Principals of one project are refused, because the metrics cover all projects.
        authorize(principal, METHOD, ())
        services = self._services
        counted = _Counted(
            services.settings.version,
            services.lag(),
            services.capacity.load(),
            services.capacity.nodes(),
            deepcopy(services.meters),
        )
        # In a thread also because the first request loads the library.
        return await asyncio.to_thread(_rendered, counted)


class _Counted(Struct, frozen=True, eq=False):
    """The data of one answer, as a collector that the library reads."""

    version: str
    lag: Lag
    load: Load
    nodes: tuple[NodeStatus, ...]
    #: A copy, because the event loop goes on counting.
    meters: Meters

    def collect(self) -> Iterable["Metric"]:
        yield from _of_service(self.version, self.lag)
        yield from _of_load(self.load)
        yield from _of_nodes(self.nodes)
        yield from _of_meters(self.meters)


def _rendered(counted: _Counted) -> Response:
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(counted)
    kind = CONTENT_TYPE_LATEST.encode()
    return Response(generate_latest(registry), headers=((b"content-type", kind),))


def _of_service(version: str, lag: Lag) -> Iterable["Metric"]:
    yield _gauge("trainshed_info", "The service that answers.", ("version",), {(version,): 1})
    yield _gauge(
        "trainshed_event_loop_lag_seconds",
        "How late the event loop was at most, of late and since the start.",
        ("span",),
        {("recent",): lag.recent, ("longest",): lag.longest},
    )


def _of_load(load: Load) -> Iterable["Metric"]:
    yield _gauge(
        "trainshed_jobs",
        "Training jobs that are not over.",
        ("api", "state"),
        {(api.value, state): count for (api, state), count in load.jobs.items()},
    )
    yield _gauge("trainshed_jobs_waiting", "Jobs that wait for capacity.", (), {(): load.waiting})
    quotas = {
        (quota.key.project_id, quota.key.region, quota.key.metric): quota for quota in load.quotas
    }
    labels = ("project", "region", "metric")
    limits = {of: quota.limit for of, quota in quotas.items() if quota.limit is not None}
    used = {of: quota.used for of, quota in quotas.items()}
    waiting = {of: quota.waiting for of, quota in quotas.items()}
    yield _gauge("trainshed_quota_limit", "Limit of a quota, if it has one.", labels, limits)
    yield _gauge("trainshed_quota_used", "How much of a quota running jobs use.", labels, used)
    yield _gauge(
        "trainshed_quota_waiting", "How much of a quota waiting jobs ask for.", labels, waiting
    )


def _of_nodes(there: Sequence[NodeStatus]) -> Iterable["Metric"]:
    yield _gauge(
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
        yield _gauge(f"trainshed_node_{name}", text, ("node",), values)
    all_of = {(node.name, kind): count for node in there for kind, count in node.accelerators}
    used = {(node.name, kind): count for node in there for kind, count in node.used_accelerators}
    labels = ("node", "type")
    yield _gauge("trainshed_node_accelerators", "Accelerators of a node.", labels, all_of)
    yield _gauge(
        "trainshed_node_used_accelerators", "Accelerators of a node that jobs have.", labels, used
    )


def _of_meters(meters: Meters) -> Iterable["Metric"]:
    yield _histogram(
        "trainshed_request_seconds",
        "Time to answer a request of the API; streams are not counted.",
        ("transport", "method", "code"),
        meters.requests,
    )
    yield _histogram(
        "trainshed_job_wait_seconds",
        "Time from asking for capacity to getting it.",
        ("api",),
        meters.waits,
    )
    yield _histogram(
        "trainshed_job_start_seconds",
        "Time from a job's submit until all of its replicas were up.",
        ("api",),
        meters.starts,
    )
    yield _counter(
        "trainshed_jobs_ended", "Jobs that are over.", ("api", "state", "rule"), meters.ends
    )
    yield _counter(
        "trainshed_job_retries", "Jobs that began another attempt.", ("rule",), meters.retries
    )
    yield _counter(
        "trainshed_replica_restarts",
        "Replicas that began again within their attempt.",
        ("rule",),
        meters.restarts,
    )
    yield _counter(
        "trainshed_log_lines", "Log lines of replicas that ended.", (), {(): meters.lines}
    )
    yield _counter(
        "trainshed_notifications",
        "Tries to tell a target of a job: sent, failed (it is tried again) or given_up.",
        ("target", "result"),
        meters.notifications,
    )
    yield _counter(
        "trainshed_retention_deleted",
        "Jobs and logs that were deleted because they had been kept for long enough.",
        ("what",),
        meters.deleted,
    )
    yield _counter(
        "trainshed_retention_freed_bytes",
        "Bytes of logs that were deleted so.",
        (),
        {(): meters.freed},
    )


def _gauge(name: str, text: str, labels: Labels, values: Mapping[Labels, float]) -> "Metric":
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in sorted(values.items()):
        family.add_metric(of, value)
    return family


def _counter(name: str, text: str, labels: Labels, values: Mapping[Labels, int]) -> "Metric":
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=labels)
    for of, value in sorted(values.items()):
        family.add_metric(of, value)
    return family


def _histogram(name: str, text: str, labels: Labels, histogram: Histogram) -> "Metric":
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for of, series in sorted(histogram.series.items()):
        counts = accumulate(series.counts)
        family.add_metric(of, list(zip(bounds, counts, strict=True)), series.total)
    return family
