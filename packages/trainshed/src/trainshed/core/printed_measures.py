"""Reads measurements from printed lines, such as `loss: 0.0444 - val_accuracy: 0.9863`. Pure. A *measure* is
a metric such as `loss`. A number counts if the word before it is the name of a measure. Its position is the
counter in the line (`core.progress`), or the epoch from an earlier line."""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.progress import LEVELS, Count, Level, counts, last_state

_MEASURES: Final = frozenset(
    (
        *("loss", "acc", "accuracy", "auc", "error", "err", "rmse", "mse", "mae", "mape"),
        *("logloss", "perplexity", "ppl", "f1", "precision", "recall", "reward", "score", "r2"),
        *("iou", "miou", "bleu", "wer", "cer", "psnr", "fid", "nll", "kl", "elbo", "lr", "rouge"),
    )
)
"""Words that identify a name as that of a measure."""
_PARTS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "eval", "evaluation", "dev"), "validation"),
    "test": "test",
}
"""The part of the data that was measured (train, validation or test), by a word of the name."""
_IDLE: Final = frozenset(("average", "avg", "mean", "total", "running", "current", "epoch", "step"))
_NUMBER: Final = r"[-+]?\d{1,15}+(?:\.\d{0,18}+)?+(?:[eE][-+]?\d{1,3}+)?+|nan|NaN|[-+]?inf"
_PAIR: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9_./-]{0,40}+(?: [A-Za-z][A-Za-z0-9_]{0,20}+)?)['\"]?+\s{0,2}+[:=]?+\s{0,12}+['\"]?+"
    rf"({_NUMBER})(?![\w/:])"
)
_WORDS: Final = re.compile(r"[A-Za-z0-9]+")
_MAX_SERIES: Final = 16
_ASIDE: Final = ("lr", "learning rate", "grad norm", "epoch", "runtime", "samples per second")
"""Names of values that are not results of the training."""


class Point(Struct, frozen=True):
    """One printed value of a measure."""

    #: Position of the value: the epoch with its fraction, the step, or the number of the line.
    step: float
    #: Time at which the value was printed, in seconds.
    at: float
    value: float


class Series(Struct):
    """The values of one measure for one part of the data."""

    #: The name of the measure, such as "loss".
    measure: str
    #: The part of the data: "train", "validation" or "test".
    part: str
    #: The unit of `step`: "epoch", "step", or "line" if the program prints neither.
    unit: str
    points: list[Point] = field(default_factory=list[Point])
    #: Only every n-th point is kept, where n is `every`. `since` counts the points after the last kept point.
    every: int = 1
    since: int = 0


class Measures:
    """Reads the lines of a program in order and collects its measures.

    The memory is limited to 16 series of `most` points each. If a series is full, every other point is
    deleted, and from then on every other point is ignored. `was_restarted`: whether the program was restarted
    during these lines.
    """

    def __init__(self, *, most: int = 400, was_restarted: bool = False) -> None:
        self._most = most
        self._was_restarted = was_restarted
        self._series: dict[tuple[str, str], Series] = {}
        self._epoch: float | None = None
        #: Whether the program counts epochs from zero. It then prints the number of the running epoch.
        self._from_zero = False

    @property
    def series(self) -> tuple[Series, ...]:
        """The series, in order of their first values."""
        return tuple(self._series.values())

    def record_restart(self) -> None:
        """Record that the program was restarted."""
        self._was_restarted = True

    def feed(self, at: float, text: str) -> None:
        """Process a line that was printed at `at`, in seconds."""
        line = last_state(text)
        line_counts = counts(line)
        epoch = next((count for count in line_counts if count.level is Level.EPOCH), None)
        if epoch is not None:
            self._epoch = epoch.done
            self._from_zero |= epoch.done == 0
        for measure, part, value in read_measures(line):
            step, unit = self._place(line_counts, epoch)
            self._add(measure, part, unit, Point(step, at, value))

    def _place(self, line_counts: tuple[Count, ...], epoch: Count | None) -> tuple[float, str]:
        """Return the position of a line and the unit of the position, or (-1, "line") if the line contains no
        position."""
        inner = next((count for count in line_counts if count.level is Level.STEP), None)
        if inner is not None and not (inner.total and self._epoch is not None):
            return inner.done, "step"
        if self._epoch is None:
            return -1, "line"
        if epoch is not None and epoch.done != int(epoch.done):
            return epoch.done, "epoch"
        share = min(inner.done / inner.total, 1.0) if inner is not None else 1.0
        return self._epoch + share - (0 if self._from_zero else 1), "epoch"

    def _add(self, measure: str, part: str, unit: str, point: Point) -> None:
        series = self._series.get((measure, part))
        if series is None:
            if len(self._series) == _MAX_SERIES:
                return
            series = self._series[measure, part] = Series(measure, part, unit)
        points = series.points
        if points and unit == series.unit != "line" and point.step == points[-1].step:
            # Replace the last point: a progress bar is often printed again when it is complete.
            points[-1] = point
            return
        goes_back = bool(points) and point.step < points[-1].step
        if goes_back and self._was_restarted and unit != "line":
            # Delete the points of the steps that the program repeats after its restart. The new values count.
            series.since = 0
            while points and points[-1].step >= point.step:
                points.pop()
        elif unit == "line" or unit != series.unit or goes_back:
            if series.unit != "line":
                series.unit = "line"
                points[:] = [replace(known, step=number) for number, known in enumerate(points)]
            point = replace(point, step=points[-1].step + 1 if points else 0)
        if series.since:
            points.pop()  # The last point was kept only until the next one arrives.
        points.append(point)
        series.since = (series.since + 1) % series.every
        if len(points) > self._most:
            del points[1:-1:2]
            series.every *= 2


def rank(measure: str) -> tuple[bool, bool, str]:
    """Return the sort key of a measure: losses come first, values that are not results of the training come
    last."""
    return measure in _ASIDE, "loss" not in measure, measure


def read_measures(line: str) -> Iterator[tuple[str, str, float]]:
    """Yield (measure, part of the data, value) for each measure in a line."""
    of_line: str | None = None
    for match in _PAIR.finditer(line):
        if of_line is None:
            # The part of the data may be at the beginning of the line, as in `Test set: Average loss: 0.05`.
            of_line = _part(_words(line[: min(match.start(), 24)]))
        first, _, second = match[1].lower().partition(" ")
        # Omit the first of two words if it may be unrelated, as in `INFO loss: 0.5`.
        name = match[1] if first in _PARTS or first in _IDLE or not second else second
        if not _MEASURES.isdisjoint(_words(name)):
            measure, part = split_name(name)
            yield measure, part or of_line or "train", float(match[2])


def values_of(name: str, line: str) -> Iterator[float]:
    """Yield the finite values of one measure in a line. Other names of the same measure and part of the data
    also match, such as `Validation accuracy` for `val_acc`."""
    wanted, meant = name.lower(), split_name(name)
    for match in _PAIR.finditer(last_state(line)):
        whole = match[1].lower()
        names = (whole, whole.rpartition(" ")[2])
        is_meant = not _MEASURES.isdisjoint(_words(whole)) and split_name(whole) == meant
        if (wanted in names or is_meant) and math.isfinite(value := float(match[2])):
            yield value


_BOUND: Final = re.compile(
    r"(.{1,200}?)\s{0,9}([<>]=?|=)\s{0,9}([-+]?\d{0,15}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,3})?)"
)
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}


class Bound(Struct, frozen=True):
    """A condition on the last value of a measure, such as `val_accuracy>0.9`."""

    name: str
    #: The comparison operator, a key of `_COMPARE`.
    compare: str
    limit: float

    def admits(self, name: str, part: str, value: float | None) -> bool:
        """Return whether the condition is about this measure and accepts its value.

        `name`: the name from a program or an event file. `part`: the part of the data, if the name does not
        contain it. NaN and infinite values are never accepted.
        """
        (measure, own), (wanted, of) = split_name(name), split_name(self.name)
        is_meant = measure == wanted != "" and of in ("", own or part)
        return (
            (is_meant or name == self.name)
            and value is not None
            and math.isfinite(value)
            and _COMPARE[self.compare](value, self.limit)
        )


def read_bound(text: str) -> Bound:
    """Parse a condition such as `val_accuracy > 0.9`. Raise ValueError, with the valid form, for an invalid
    text."""
    match = _BOUND.fullmatch(text.strip())
    try:
        limit = float(match[3]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or not math.isfinite(limit):
        raise ValueError(
            f"{text[:60]!r} is not a condition on a metric. Write a name, one of >, >=, <, "
            "<= and =, and a number: val_accuracy>0.9."
        )
    return Bound(match[1], match[2], limit)


def split_name(name: str) -> tuple[str, str]:
    """Split a name such as `val_loss` into the measure and the part of the data. The part is "" if the name
    contains none."""
    words = _words(name)
    kept = [
        word for word in words if not (word in _PARTS or word in _IDLE or word in LEVELS or word.isdigit())
    ]
    return " ".join("accuracy" if word == "acc" else word for word in kept), _part(words)


def _words(name: str) -> list[str]:
    return _WORDS.findall(name.lower().replace("_", " "))


def _part(words: list[str]) -> str:
    return next((_PARTS[word] for word in words if word in _PARTS), "")
