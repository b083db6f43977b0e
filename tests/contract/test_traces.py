"""Traces of a real service at a real receiver of OTLP over HTTP (docs/metrics.md#traces)."""

import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.jobs import CREATED, Life, job
from trainshed.controller.job_traces import JobTraces
from trainshed.telemetry.spans import Span

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """A sink that keeps."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        pass


def test_the_start_of_a_job_is_a_span_of_its_stages() -> None:
    kept = Kept()
    traces, life = JobTraces(kept), Life(job())
    while not kept.spans:
        before = life.job
        (demanded, *_) = life._done()  # pyright: ignore[reportPrivateUsage] # one at a time
        life.see(demanded)
        traces.step(before, life.job, life.now)
    (span,) = kept.spans
    assert [part.name for part in span.parts] == [
        "wait for capacity",
        "prepare environments",
        "start replicas",
    ]
    assert (span.begin, span.end, span.failed) == (CREATED, life.now, False)
    assert [part.begin for part in span.parts[1:]] == [part.end for part in span.parts[:-1]]
    assert span.attributes["trainshed.job.uid"] == str(life.job.uid)


@contextmanager
def collector() -> Generator[tuple[str, list[bytes]]]:
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_collector_gets_spans_within_the_trace_of_whoever_asked() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from trainshed.telemetry.otel import OtelSpans

    part = Span("prepare environments", CREATED, CREATED + 5, {})
    asked = Span("GetJob", CREATED, CREATED + 9, {"rpc.method": "GetJob"}, (part,), True, PARENT)
    with collector() as (endpoint, taken):
        spans = OtelSpans(endpoint, "1.2")
        spans.record(asked)
        spans.close()
    sent: Any = ExportTraceServiceRequest.FromString(taken[0])
    (resource,) = sent.resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (named["service.name"], named["service.version"]) == ("trainshed", "1.2")
    found = {span.name: span for span in resource.scope_spans[0].spans}
    outer, inner = found["GetJob"], found["prepare environments"]
    assert outer.trace_id.hex() == inner.trace_id.hex() == PARENT.split("-")[1]
    assert outer.parent_span_id.hex() == PARENT.split("-")[2]
    assert inner.parent_span_id == outer.span_id
    assert (outer.start_time_unix_nano, outer.end_time_unix_nano) == (CREATED, CREATED + 9)
    assert outer.status.code == 2


def test_nothing_of_it_is_loaded_when_it_is_off() -> None:
    program = (
        "import sys, trainshed.serve.app, trainshed.api.rest, trainshed.api.grpc.server\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_service_sends_what_its_requests_and_jobs_took(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from tests.e2e.running import CUSTOM_JOBS, container_job, running

    with collector() as (endpoint, taken):
        config = tmp_path / "c.toml"
        config.write_text(f'[traces]\nendpoint = "{endpoint}"\n')
        with running(tmp_path / "data", "--config", str(config)) as service:
            made = service.call("POST", CUSTOM_JOBS, container_job("true"))
            service.finish(made["name"].rpartition("/")[2])
        names = {
            span.name
            for body in taken
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }
    assert {"start of a job", "wait for capacity", "start replicas"} <= names
    assert "google.cloud.aiplatform.v1.JobService.CreateCustomJob" in names
