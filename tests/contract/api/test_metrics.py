"""`/metrics`, parsed with the parser of the Prometheus client library."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.api.api_service import ApiService
from trainshed.core.capacity import Load, QuotaKey, QuotaStatus
from trainshed.core.catalog.quotas import GPU_HOURS
from trainshed.core.failure.table import RULES
from trainshed.core.names import Api

ROOT = Path(__file__).parents[3]


async def read(service: ApiService) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by name and labels."""
    answer = await service.call("GET", "/metrics")
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


async def test_requests_are_counted_by_method_and_code(service: ApiService) -> None:
    await service.call("GET", "/v1/projects/p1/locations/us-central1/customJobs")
    await service.call("GET", "/v1/projects/p1/locations/us-central1/customJobs/77")
    await service.call("GET", "/v1/projects/p1/locations/us-central1/customJobs/78")
    await service.call("GET", "/trainshed/v1/status")
    await service.call("GET", "/nobody/knows/this")
    samples = await read(service)
    counts = {
        dict(labels)["method"].rpartition(".")[2] + " " + dict(labels)["code"]: value
        for (name, labels), value in samples.items()
        if name == "trainshed_request_seconds_count"
    }
    assert counts == {"ListCustomJobs 200": 1, "GetCustomJob 404": 2, "GetStatus 200": 1}
    methods = {
        "method": "google.cloud.aiplatform.v1.JobService.GetCustomJob",
        "code": "404",
        "transport": "rest",
    }
    everything = (("le", "+Inf"), *methods.items())
    assert samples["trainshed_request_seconds_bucket", tuple(sorted(everything))] == 2


async def test_metrics_show_jobs_quotas_and_queue(service: ApiService) -> None:
    def load() -> Load:
        key = QuotaKey("p1", "us-central1", "cpus")
        endless = QuotaStatus(QuotaKey("p2", "us-central1", "cpus"), None, 3, 0)
        jobs = {(Api.ML, "QUEUED"): 2, (Api.VERTEX, "RUNNING"): 1}
        of_ana = QuotaStatus(QuotaKey(key.project_id, key.region, "cpus", "ana@x.example"), 1, 1, 0)
        many = {(f"q{number:03}", "RUNNING"): 1 for number in range(120)}
        used = {("p1", GPU_HOURS): 2.0, ("p1", "cost_per_month"): 9.0, ("q119", GPU_HOURS): 1.0}
        quotas = (QuotaStatus(key, 8, 4, 16), of_ana, endless)
        return Load(jobs, 2, quotas, {("p1", "QUEUED"): 2, **many}, used)

    service.capacity.load = load
    samples = await read(service)
    assert samples["trainshed_jobs", (("api", "ml"), ("state", "QUEUED"))] == 2
    assert samples["trainshed_jobs_waiting", ()] == 2
    assert samples["trainshed_project_jobs", (("project", "p1"), ("state", "QUEUED"))] == 2
    assert samples["trainshed_project_jobs", (("project", ""), ("state", "RUNNING"))] == 21
    use = (("project", "p1"), ("resource", "gpu"))
    assert samples["trainshed_project_used_seconds", use] == 7200
    assert sum(name.startswith("trainshed_project_") for name, _ in samples) == 103
    of_p1 = (("metric", "cpus"), ("project", "p1"), ("region", "us-central1"))
    assert samples["trainshed_quota_limit", of_p1] == 8
    assert samples["trainshed_quota_waiting", of_p1] == 16
    limited = [labels for name, labels in samples if name == "trainshed_quota_limit"]
    assert limited == [of_p1]
    assert any(name == "trainshed_node_vcpus" for name, _ in samples)
    assert samples["trainshed_info", (("version", "0.0.1"),)] == 1


async def test_metrics_need_a_token(service: ApiService) -> None:
    assert (await service.call("GET", "/metrics", token=None)).status == 401
    assert (await service.call("POST", "/metrics")).status == 404
    assert (await service.call("GET", "/metrics/more")).status == 404


def metric_names(text: str) -> Iterator[str]:
    for name in re.findall(r"trainshed_[a-z_]+", text):
        yield re.sub(r"_(bucket|count|sum|total)$", "", name)


async def test_docs_alerts_and_dashboard_use_only_existing_metrics(service: ApiService) -> None:
    answer = await service.call("GET", "/metrics")
    families = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    page = (ROOT / "docs/metrics.md").read_text()
    assert set(metric_names(page)) == families
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    dashboard = (ROOT / "deploy/grafana/trainshed.json").read_text()
    assert set(metric_names(rules)) | set(metric_names(dashboard)) <= families
    assert "trainshed_notifications" in {*metric_names(rules)} & {*metric_names(dashboard)}
    [lost] = re.findall(r'rule=~"(.+)"', rules)
    by_nodes = [rule.name for rule in RULES if rule.message == "lost" and rule.retries]
    assert lost.split("|") == by_nodes
    (group,) = yaml.safe_load(rules)["groups"]
    assert all(rule["annotations"]["summary"] and rule["expr"] for rule in group["rules"])
