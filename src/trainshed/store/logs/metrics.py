"""Reads what trials have measured, from what their primaries' shims took down (SPEC §6).

Layout (`trainshed.replica.metrics` writes it): `<root>/<job uid>/<attempt>/workerpool0-0/metrics.jsonl`, each line
complete with its newline, so that a torn last one does not count until the rest has come.
"""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import msgspec

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.study.trials import Measurement

_PRIMARY = str(ReplicaId(0, 0))
_FILE = "metrics.jsonl"


class _Entry(msgspec.Struct, frozen=True):
    """Either the start of an incarnation or one report; times in ns since the epoch."""

    started: int = 0
    at: int = 0
    step: int = 0
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


_decoder = msgspec.json.Decoder(_Entry)


class MetricsReader:
    """Reads below `root`, which need not exist yet. Keeps no state; blocks for as long as a small file takes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def measurements(self, job_uid: JobUid, started: int = 0) -> tuple[Measurement, ...]:
        """All that a trial has measured in all its attempts and incarnations, one measurement per step, ascending by
        step; of each metric at each step the value that was reported last. The metrics of one measurement stand in the
        order of their names.

        `started`: since when `elapsed` counts, ns since the epoch; 0 = since the trial's first start. () for a job
        that has measured nothing, or that nobody watched.
        """
        entries = sorted(self._entries(job_uid), key=attrgetter("at"))
        starts = [entry.started for entry in entries if entry.started]
        reports = [entry for entry in entries if entry.values]
        if not reports:
            return ()
        begin = started or min(starts, default=reports[0].at)
        values: dict[int, dict[str, float]] = {}
        last: dict[int, int] = {}
        for report in reports:
            values.setdefault(report.step, {}).update(report.values)
            last[report.step] = report.at
        return tuple(
            Measurement(tuple(sorted(values[step].items())), step, max(0, last[step] - begin))
            for step in sorted(values)
        )

    def tags(self, job_uid: JobUid) -> tuple[str, ...]:
        """Names of all metrics that a trial has reported, in order: what to say when the study's is not among them."""
        return tuple(sorted({tag for entry in self._entries(job_uid) for tag in entry.values}))

    def _entries(self, job_uid: JobUid) -> Iterator[_Entry]:
        """Attempt by attempt, as they were written."""
        job = self._root / str(job_uid)
        try:
            attempts = sorted(int(entry.name) for entry in job.iterdir() if entry.name.isdecimal())
        except (FileNotFoundError, NotADirectoryError):
            return
        for attempt in attempts:
            try:
                data = (job / str(attempt) / _PRIMARY / _FILE).read_bytes()
            except FileNotFoundError:
                continue
            for line in data.split(b"\n")[:-1]:
                try:
                    yield _decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # What a crash of the machine may have left.
