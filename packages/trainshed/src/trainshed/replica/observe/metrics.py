"""Stores the measurements that a trial's program reports (spec/tuning#measurements, facts/tuning#metrics).

The program's library (cloudml-hypertune) rewrites its file at every report, with the newest 100 lines. So
this module reads the whole file after each change. It stores new measurements in `metrics.jsonl`, in the
directory of the replica's log.

A line of `metrics.jsonl` is one of

    {"started": NS, "incarnation": N}                                   a start of the program
    {"at": NS, "step": S, "values": {TAG: VALUE}, "incarnation": N}     a report of the program

`at`: time of the report, by the program's own clock if the report has a time. `at` ascends for each tag and
step, and the newest value counts. Values are finite. A repeated value is not stored again.
"""

import json
import math
import os
from collections.abc import Callable
from typing import Any

from trainshed.replica.observe import file_watcher, growing_files, masking
from trainshed.replica.observe import segments as log
from trainshed.replica.system import loop

FILE = "metrics.jsonl"

_MAX_NOTICES = 20
_REMEMBERED_LINES = 1000
_REMEMBERED_VALUES = 20000
_MAX_BYTES = 64 << 20
"""Maximum size of `metrics.jsonl`, enough for about 800,000 measurements. Later ones are dropped."""


def _remember(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Add an entry to `kept`, and drop the oldest entry if there are more than `most`."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


class Metrics:
    """Stores the measurements of one run (incarnation) of a trial's program. `mask`: masks secrets in stored
    texts."""

    def __init__(
        self,
        logs: str,
        incarnation: int,
        events: loop.Loop,
        *,
        log: Callable[[str], None],
        notify: Callable[[], None],
        retries: growing_files.DiskRetries,
        mask: masking.Mask | None = None,
    ) -> None:
        """Create the object before the program starts. `logs`: the directory of the replica's log. Raises
        OSError."""
        self._incarnation = incarnation
        #: Writes a line of the service into the replica's log.
        self._log = log
        #: Called after new measurements were stored.
        self._notify = notify
        #: Repeats writes to a full disk. Until they succeed, no further measurement is stored.
        self._retries = retries
        self._watcher = file_watcher.FileWatcher(PROGRAM_FILE, events, self._read_file, mask=mask)
        #: Hashes of the newest lines of the program's file that were already processed.
        self._seen: dict[int, bool] = {}
        #: Newest time and value of each (tag, step).
        self._values: dict[tuple[str, int], tuple[int, float]] = {}
        self._notices: set[str] = set()
        self._full = False
        self._taken = self._begun = False
        self._file, written = growing_files.reopen(os.path.join(logs, FILE))
        for line in written:
            try:
                entry = json.loads(line.decode("utf-8"))
            except ValueError:
                # Skip incomplete lines. The first line may be incomplete because only the file's end was
                # read. Other lines may be incomplete after a power failure.
                continue
            for tag, value in entry.get("values", {}).items():
                self._store((tag, entry["step"]), (entry["at"], value))
                self._taken = True
        if incarnation > 1:
            # Store the last measurements of the program's earlier run. Its shim may have been killed before
            # it stored them.
            self._read_file(left_by=incarnation - 1)

    def start(self, started: int) -> None:
        self._begun = True
        self._append({"started": started, "incarnation": self._incarnation})
        self.announce()
        self._watcher.start()

    def announce(self) -> None:
        """Notify a newly connected service that measurements exist, if this run of the program has started
        and has any."""
        if self._begun and self._taken:
            self._notify()

    def seal(self) -> None:
        """Store the last measurements of the ended program. Call `save` and `close` afterwards."""
        self._watcher.close()
        self._read_file(last=True)

    def save(self) -> bool:
        """Write and sync all measurements. Return False if the disk is full."""
        return self._file.flush() and self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _read_file(self, *, left_by: int = 0, last: bool = False) -> bool:
        """Read the program's file and store new measurements. Return False if this method must be called
        again. `left_by`: number of the earlier run (incarnation) that wrote the file. `last`: whether the
        program has ended.
        """
        if self._full:
            return True
        if self._file.waits and not last:
            # Earlier measurements wait for disk space, so do not read the file now. Nothing is lost, because
            # the program's file still contains its newest reports.
            return False
        size = self._file.size
        try:
            data = self._watcher.read()
        except file_watcher.Unreadable as unreadable:
            self._notice("", "The trial's metrics file cannot be read: %s." % unreadable)
            return True
        except file_watcher.Changing:
            return False
        lines = data.split(b"\n")
        most = max(_REMEMBERED_LINES, 2 * len(lines))
        for number, line in enumerate(lines, 1):
            if not line.strip() or hash(line) in self._seen:
                continue
            try:
                report = Report(line)
            except NoMetric:
                if number == len(lines) and not last:
                    break  # The program has not finished the line yet, so read it later.
                shown = json.dumps(line[:MAX_SHOWN].decode("utf-8", "replace"))
                self._notice(
                    "{}",
                    "A line of the trial's metrics file is not a report: %s. Such lines are ignored. Write a"
                    ' JSON object like {"global_step": "5", "acc": "0.9"}.' % shown,
                )
            else:
                self._take(report, left_by)
            _remember(self._seen, hash(line), True, most)
        if self._file.size > size:
            self.announce()
        return True

    def _take(self, report: "Report", left_by: int) -> None:
        for tag, shown in report.wrong.items():
            self._notice(
                tag,
                "The metric %s was reported as %s at step %d. Values like it are ignored. Report finite "
                "numbers, under names of at most %d"
                " characters." % (json.dumps(tag)[:MAX_SHOWN], shown, report.step, MAX_TAG),
            )
        at = log.now() if report.at is None else report.at
        values: dict[str, float] = {}
        for tag, value in report.values.items():
            before = self._values.get((tag, report.step))
            if before is not None:
                # Skip a repeated value. In the file of an earlier run, also skip a report that is not newer
                # than the stored one. Otherwise the report replaces the stored one, even if the report's own
                # time is earlier.
                if before[1] == value or (left_by and at <= before[0]):
                    continue
                at = max(at, before[0] + 1)
            values[tag] = value
        if values and self._file.size >= _MAX_BYTES:
            if not self._full:
                self._full = True
                self._log(
                    "This trial has reported %d MB of measurements, the maximum. More are ignored. Report "
                    "less often, such as"
                    " once per epoch." % (_MAX_BYTES >> 20)
                )
            return
        if values:
            for tag, value in values.items():
                self._store((tag, report.step), (at, value))
            self._append(
                {"at": at, "step": report.step, "values": values, "incarnation": left_by or self._incarnation}
            )
            self._taken = True

    def _store(self, key: tuple[str, int], value: tuple[int, float]) -> None:
        _remember(self._values, key, value, _REMEMBERED_VALUES)

    def _append(self, entry: dict[str, Any]) -> None:
        data = json.dumps(entry).encode("utf-8") + b"\n"
        if not self._file.append(data):
            self._retries.wait(self._file.flush)

    def _notice(self, subject: str, text: str) -> None:
        """Write a notice into the log, once for each subject, and limit the number of notices."""
        if subject not in self._notices and len(self._notices) < _MAX_NOTICES:
            self._notices.add(subject)
            self._log(text)


PROGRAM_FILE = "output.metrics"
"""File in the program's directory `program.HYPERTUNE`."""
MAX_SHOWN = 80
"""Maximum number of characters of an invalid value in a notice."""
MAX_TAG = 1000
"""Maximum number of characters in a metric's name, which also limits a trial's memory use."""

_NO_METRICS = frozenset(("checkpoint_path", "global_step", "timestamp", "trial"))
_MAX_LINE = 64 << 10
_LIMIT = 1 << 63


class NoMetric(Exception):
    """Raised if a line contains no measurement."""


class Report:
    """One line of the program's file: its time (ns, None if unknown), its step, its measurements. `wrong`:
    the original text of values that are not finite numbers, or whose name is too long."""

    def __init__(self, line: bytes) -> None:
        """Raises NoMetric."""
        try:
            parsed = json.loads(line.decode("utf-8")) if len(line) <= _MAX_LINE else None
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise NoMetric
        fields: dict[str, Any] = parsed  # pyright: ignore[reportUnknownVariableType] - JSON
        self.step = _whole(fields.get("global_step"))
        at = _finite(fields.get("timestamp"))
        # Rounded to microseconds, the precision of a float with seconds since the epoch.
        self.at = round(at * 1e6) * 1000 if at is not None and 0 < at * 1e9 < _LIMIT else None
        self.values: dict[str, float] = {}
        self.wrong: dict[str, str] = {}
        for tag, reported in fields.items():
            if tag not in _NO_METRICS:
                value = _finite(reported) if len(tag) <= MAX_TAG else None
                if value is None:
                    self.wrong[tag] = json.dumps(reported)[:MAX_SHOWN]
                else:
                    self.values[tag] = value


def _finite(reported: Any) -> float | None:
    """Return a finite number from a number or a text, or None for other values."""
    if isinstance(reported, bool) or not isinstance(reported, (int, float, str)):
        return None
    try:
        value = float(reported)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _whole(step: Any) -> int:
    """Return a valid step. Without a step, the result is 0, as in cloudml-hypertune. Raises NoMetric."""
    if step is None or step == "":
        return 0
    if isinstance(step, str):
        try:
            step = int(step)
        except ValueError:
            step = _finite(step)
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int) or not -_LIMIT < step < _LIMIT:
        raise NoMetric
    return step
