"""Spans of traces, and the port that takes finished ones. `telemetry.otel` sends them to a collector, if a
setting names one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Span(Struct, frozen=True):
    """Something that is over. Moments are ns since the epoch."""

    name: str
    begin: int
    end: int
    #: By their names in OpenTelemetry's semantic conventions, where there are such.
    attributes: Mapping[str, str | int]
    #: What it is made of.
    parts: Sequence["Span"] = ()
    failed: bool = False
    #: The `traceparent` of whoever asked for it (W3C Trace Context); "" = it begins a trace.
    parent: str = ""


class SpanSink(Protocol):
    """Takes spans. Cheap: called on the event loop."""

    def record(self, span: Span) -> None: ...

    def close(self) -> None:
        """Send what is left, for some seconds at most. Blocks."""
        ...
