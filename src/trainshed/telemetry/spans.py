"""Spans of traces, and the port that takes finished ones. `telemetry.otel` sends them to a collector, if a
setting names one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Span(Struct, frozen=True):
    """Something that has ended, for a trace. Times are ns since the epoch."""

    name: str
    begin: int
    end: int
    #: Named as in OpenTelemetry's semantic conventions, where those have a name.
    attributes: Mapping[str, str | int]
    #: The spans that it consists of.
    parts: Sequence["Span"] = ()
    failed: bool = False
    #: The caller's `traceparent` (W3C Trace Context); "" = it begins a trace.
    parent: str = ""


class SpanSink(Protocol):
    """Takes spans. `record` must be cheap, since it is called on the event loop."""

    def record(self, span: Span) -> None: ...

    def close(self) -> None:
        """Send what is left, for some seconds at most. Blocks."""
        ...
