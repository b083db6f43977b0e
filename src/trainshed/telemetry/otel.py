"""Sends spans to a collector of OpenTelemetry by OTLP over HTTP. Needs the extra `otel`; loaded only where
the setting `traces_endpoint` names a collector.

The library sends from a thread of its own; a collector that does not answer costs spans and nothing else.
"""

from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trainshed.telemetry.spans import Span

_TIMEOUT: Final = 5.0
"""Seconds that a collector has to answer."""
_LAST: Final = 3000
"""Milliseconds to send what is left when the service ends."""


class OtelSpans:
    """A `SpanSink`. `endpoint`: where a collector takes traces, `http://127.0.0.1:4318/v1/traces`."""

    def __init__(self, endpoint: str, version: str) -> None:
        resource = Resource.create({"service.name": "trainshed", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("trainshed", version)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, span: Span) -> None:
        """Do as `SpanSink` says."""
        context = self._propagator.extract({"traceparent": span.parent}) if span.parent else None
        kind = SpanKind.SERVER if "rpc.method" in span.attributes else SpanKind.INTERNAL
        made = self._tracer.start_span(
            span.name,
            context=context,
            kind=kind,
            attributes=dict(span.attributes),
            start_time=span.begin,
        )
        if span.failed:
            made.set_status(StatusCode.ERROR)
        inside = set_span_in_context(made)
        for part in span.parts:
            self._tracer.start_span(
                part.name, inside, attributes=dict(part.attributes), start_time=part.begin
            ).end(part.end)
        made.end(span.end)

    def close(self) -> None:
        """Send what is left, for some seconds at most. Blocks."""
        self._provider.force_flush(_LAST)
        self._provider.shutdown()
