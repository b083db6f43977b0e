"""Learning curves as numbers: how far a trial had come at each measurement, and how good it was then.

Both rules share this. Pure, and without numpy.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from trainshed.core.study.progress import objectives, score
from trainshed.core.study.spec import Metric, Selection, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict

_NS = 1_000_000_000


class Line(Struct, frozen=True):
    """The curve of one trial. Never empty."""

    number: int
    #: Steps or nanoseconds, ascending.
    xs: tuple[float, ...]
    #: The objective there, more is better.
    ys: tuple[float, ...]
    #: The value that counts in the end.
    final: float

    @property
    def end(self) -> float:
        return self.xs[-1]


class Axes(Struct, frozen=True):
    """What the two axes of a curve are, and how values on them are put into words."""

    metric: Metric
    use_elapsed: bool
    selection: Selection

    def line(self, curve: Curve) -> Line | None:
        """Return the curve as a line; None if the objective was not measured."""
        points = [
            (
                measurement.elapsed if self.use_elapsed else measurement.step,
                score(self.metric, value),
            )
            for measurement in curve.measurements
            if (value := measurement.value(self.metric.id)) is not None
        ]
        if not points:
            return None
        last = points[-1][1]
        points.sort(key=lambda point: point[0])
        ys = tuple(y for _, y in points)
        final = last if self.selection is Selection.LAST else max(ys)
        return Line(curve.number, tuple(x for x, _ in points), ys, final)

    def finished(self, curves: Iterable[Curve]) -> list[Line]:
        """Return the lines of the trials that are over."""
        return [
            line for curve in curves if curve.is_over and (line := self.line(curve)) is not None
        ]

    def where(self, x: float) -> str:
        return f"after {x / _NS:.4g} s" if self.use_elapsed else f"at step {x:.0f}"

    def value(self, y: float) -> str:
        return f"{score(self.metric, y) + 0.0:.6g}"


def axes(spec: StudySpec, use_elapsed: bool) -> Axes | None:
    """Return the axes; None if the study has not exactly one objective: no rule says what to do then."""
    aims = objectives(spec)
    return Axes(aims[0], use_elapsed, spec.selection) if len(aims) == 1 else None


def best_final(lines: Sequence[Line]) -> float:
    """Return the best final value of at least one line."""
    return max(line.final for line in lines)


def go_on(why: str) -> StoppingVerdict:
    return StoppingVerdict(False, why)


def too_early(why: str) -> StoppingVerdict:
    """Return the verdict of a rule that cannot decide yet."""
    return StoppingVerdict(False, f"Too early: {why}")


def stop(why: str) -> StoppingVerdict:
    return StoppingVerdict(True, why)


NO_SINGLE_OBJECTIVE = go_on(
    "The study has not exactly one objective; no trial of it is stopped early."
)
NOTHING_MEASURED = too_early("the trial has not measured the objective yet.")
