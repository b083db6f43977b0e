"""Reads the measurements of trials from files that the shim of each trial's primary replica wrote
(spec/tuning#measurements).

`trainshed.replica.observe.metrics` writes the stream, with at most 64 MB. The last line is ignored until its
newline has been written.
"""

import msgspec

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams
from trainshed.core.study.records import Measurement
from trainshed.core.units import Nanos
from trainshed.store.logs.segments import contents, records

_PRIMARY = ReplicaId(0, 0)


class _Entry(msgspec.Struct, frozen=True):
    """One line of the stream: the start of a run (incarnation) of the trial's program, or one report. Times
    are in ns since the epoch."""

    started: Nanos = 0
    at: Nanos = 0
    step: int = 0
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


_decoder = msgspec.json.Decoder(_Entry)


def read_metrics(streams: Streams, job_uid: JobUid, started: Nanos = 0) -> tuple[Measurement, ...]:
    """Return the measurements of a trial from all its attempts, and all runs (incarnations) of its program.

    The result contains one measurement per step, ordered by step. A measurement contains the last reported
    value of each metric, ordered by name. The result is empty if the job has no measurements or no recorded
    metrics. Blocks while it reads the file. `started`: the time from which `elapsed` counts, in ns since the
    epoch. 0 = the trial's first start.
    """
    kept = contents((streams,), job_uid, StreamKind.METRICS, replica=_PRIMARY)
    entries = [entry for _, data in kept for entry in records(data, _decoder)]
    starts = [entry.started for entry in entries if entry.started]
    # If two reports have the same time, the report that was written later takes effect.
    reports = sorted((entry for entry in entries if entry.values), key=lambda entry: entry.at)
    since = started or min(starts or [report.at for report in reports], default=0)
    values: dict[int, dict[str, float]] = {}
    last: dict[int, Nanos] = {}
    for report in reports:
        values.setdefault(report.step, {}).update(report.values)
        last[report.step] = report.at
    return tuple(
        Measurement(tuple(sorted(metrics.items())), step, max(0, last[step] - since))
        for step, metrics in sorted(values.items())
    )
