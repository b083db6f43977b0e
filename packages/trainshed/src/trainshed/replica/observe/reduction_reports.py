"""Stores the reports of reducers and workers of a job with reducers (spec/reduction#reports).

Each program atomically replaces one small file (`Report`). Its notes go, once each, to the replica's log and
to the notes for people (`notes`); its metrics go to `reduction.jsonl` beside the log, every few seconds. If a
worker's program has ended without any report, its owner is told that the reducers were idle. Nothing here may
harm the program or its record: what cannot be written is dropped.

A line of `reduction.jsonl` is one of

    {"started": NS, "incarnation": N}                        the program was started
    {"at": NS, "metrics": {NAME: NUMBER or [NUMBER]}}        what it reported last by then; the last one has
    "last": true

The file is thinned as `usage.jsonl` is.
"""

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any, Union

from trainshed.replica import protocol
from trainshed.replica.observe import (
    file_watcher,
    growing_files,
    masking,
    notes,
)
from trainshed.replica.observe import segments as log
from trainshed.replica.supervisor import program
from trainshed.replica.system import loop

Metric = Union[int, float, list[Union[int, float]]]


FILE = "reduction.jsonl"
MOST_NOTES = 20
"""Of one incarnation, beside one for each reducer, which it may have to say is lost."""
_PREFIX = "trainshed reduction: "
"""Of lines in the log, as the package itself would write them."""
UNUSED = "unused"
"""The name of the note that says that a program has ended and was never heard of."""
_UNUSED_TEXT = (
    "This program ended without using the job's reducers: no process of it reported the Reduction Server's "
    "plug-in. It works for PyTorch's torch.distributed and for calls of trainshed_reduction.allreduce, in "
    "Pythons that have NumPy and the PYTHONPATH that the service sets. Take worker pool 2 out of the job if "
    "it does without."
)

_FIRST = (1.0, 1.0, 3.0)
_EVERY = 5.0
"""Seconds between two lines of metrics, the first ones apart."""
_PAUSE = 0.05
_SHARE = 10
"""A look that takes so many seconds of a processor is followed by a rest of ten times that, at least by
`_PAUSE`."""
_SHORT = 5.0
"""Seconds; a program that failed sooner may not have come to its reducers."""


class Reduction:
    """The reduction reports of one incarnation's program. `mask`: masks secrets in what is stored."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        events: loop.Loop,
        *,
        has_ended: Callable[[], bool],
        say: Callable[[str], None],
        notes: notes.Notes,
        mask: masking.Mask | None = None,
    ) -> None:
        """Created before the program starts. `plan`: one with `reducers`."""
        self._incarnation = plan.incarnation
        self._most_notes = MOST_NOTES + plan.observation.reducers
        self._is_expected = plan.observation.reducers_expected
        self._events = events
        #: Whether the main process is known to have ended.
        self._has_ended = has_ended
        #: Writes a line of the service into the replica's log.
        self._say = say
        #: Takes what people should know.
        self._notes = notes
        self._sheet = growing_files.SampleFile(os.path.join(plan.observation.logs, FILE))
        self._pacing = file_watcher.Pacing(events, self._look)
        self._watcher = file_watcher.FileWatcher(
            protocol.FILES,
            program.HYPERTUNE,
            PROGRAM_FILE,
            events,
            self._pacing.changed,
            mask=mask,
        )
        self._known: set[str] = set()
        self._metrics: dict[str, Metric] = {}
        self._first = list(_FIRST)
        self._is_there = False
        self._owed_after = float("inf")
        # A file that an earlier incarnation left must not count as this one's.
        self._watcher.discard()

    def begin(self, started: int) -> None:
        """Note that the program started at that moment (ns)."""
        try:
            self._sheet.open()
            self._sheet.append({"started": started, "incarnation": self._incarnation})
        except OSError:
            self._sheet.close()
        self._watcher.begin()
        self._owed_after = time.monotonic() + _SHORT

    def seal(self, *, succeeded: bool) -> None:
        """Store the last report of the ended program."""
        self._watcher.close()
        self._look(last=True)
        is_owed = succeeded or time.monotonic() >= self._owed_after
        if self._is_expected and is_owed and not self._is_there and not self._known:
            self._note(Note(UNUSED, WARNING, _UNUSED_TEXT))
        if self._metrics:
            self._write({"last": True})
        self._sheet.close()

    # --- the program's file ---

    def _look(self, *, last: bool = False) -> None:
        """Store what is new. `last`: the program has ended."""
        begin = time.process_time()
        try:
            data = self._watcher.read()
            if data:
                self._take(Report(data))
        except file_watcher.Changing:
            if not last:
                self._pacing.look_after(_PAUSE)
            return
        except file_watcher.Unreadable as unreadable:
            self._cannot_be_read(str(unreadable))
        except NoReport:
            self._cannot_be_read("it is no JSON object")
        self._pacing.rest(max(_PAUSE, (time.process_time() - begin) * _SHARE))

    def _take(self, report: "Report") -> None:
        self._is_there = True
        for note in report.notes:
            self._note(note)
        if report.metrics:
            is_first = not self._metrics
            self._metrics = report.metrics
            if is_first:
                self._write_now_and_then()

    def _cannot_be_read(self, why: str) -> None:
        text = "What this program reports about its reduction cannot be read: %s." % why
        self._note(Note("unreadable", WARNING, text))

    def _note(self, note: "Note") -> None:
        """Pass a note on, once for each name and limited in number."""
        if note.name in self._known or len(self._known) >= self._most_notes:
            return
        self._known.add(note.name)
        # Logged as a program would: JSON with a severity.
        self._say(json.dumps({"severity": note.severity, "message": _PREFIX + note.text}))
        self._notes.add(note.name, note.severity, note.text)

    # --- metrics ---

    def _write_now_and_then(self) -> None:
        if self._sheet.is_open and not self._has_ended():
            self._write({})
            pause = self._first.pop(0) if self._first else _EVERY
            self._events.after(pause, self._write_now_and_then)

    def _write(self, mark: dict[str, bool]) -> None:
        if self._sheet.is_open:
            try:
                self._sheet.append({"at": log.now(), "metrics": self._metrics, **mark})
            except OSError:
                self._sheet.close()


PROGRAM_FILE = "reduction.json"
"""In the program's directory `program.HYPERTUNE`."""
LONGEST_TEXT = 500
"""Characters of a note."""

INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"

_LONGEST_NAME = 64
_MOST_METRICS = 64
_MOST_NOTES = 100
_LONGEST_LIST = 1024
_LIMIT = 1 << 63


class NoReport(Exception):
    """The data is no valid report."""


class Note:
    """Something that people should know, as one line of text. `name`: the program's name of it."""

    def __init__(self, name: str, severity: str, text: str) -> None:
        self.name = name
        self.severity = severity if severity in (INFO, WARNING, ERROR) else INFO
        text = " ".join(text[: 2 * LONGEST_TEXT].split())
        text = "".join([c if c.isprintable() else "\ufffd" for c in text])
        self.text = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "\u2026"


class Report:
    """A report. `metrics`: finite numbers, or lists of them, by name."""

    def __init__(self, data: bytes) -> None:
        """Raises NoReport."""
        try:
            parsed = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise NoReport from None
        if not isinstance(parsed, dict):
            raise NoReport
        fields: dict[str, Any] = parsed  # pyright: ignore[reportUnknownVariableType] - JSON
        self.notes = _notes(fields.get("notes"))
        self.metrics = _metrics(fields.get("metrics"))


def _notes(reported: Any) -> list[Note]:
    notes: list[Note] = []
    if not isinstance(reported, list):
        return notes
    items: list[Any] = reported  # pyright: ignore[reportUnknownVariableType] - JSON
    for item in items[:_MOST_NOTES]:
        if isinstance(item, dict):
            fields: dict[str, Any] = item  # pyright: ignore[reportUnknownVariableType] - JSON
            name, text = fields.get("id"), fields.get("text")
            if isinstance(name, str) and isinstance(text, str) and name and text.strip():
                notes.append(Note(name[:_LONGEST_NAME], str(fields.get("severity")), text))
    return notes


def _metrics(reported: Any) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    if isinstance(reported, dict):
        fields: dict[str, Any] = reported  # pyright: ignore[reportUnknownVariableType] - JSON
        for name, value in fields.items():
            if len(name) <= _LONGEST_NAME and len(metrics) < _MOST_METRICS and _is_metric(value):
                metrics[name] = value
    return metrics


def _is_metric(value: Any) -> bool:
    if isinstance(value, list):
        values: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - JSON
        return len(values) <= _LONGEST_LIST and all(map(_is_number, values))
    return _is_number(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and abs(value) < _LIMIT
