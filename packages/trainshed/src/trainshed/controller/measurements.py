"""Selects the relevant measurements of a trial from its program's reports, and converts them to learning
curves.

Curves of ended trials are cached until their tuning job ends. The store also contains them, and they never
change.
"""

import math
from collections.abc import Sequence
from typing import Final

from trainshed.core.curves import Point
from trainshed.core.names import JobUid
from trainshed.core.printed_measures import values_of
from trainshed.core.study.progress import final_measurement
from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.study.spec import StudySpec
from trainshed.core.tuning.machine import Sight, Transition
from trainshed.core.units import Nanos
from trainshed.store.sqlite.studies import Studies
from trainshed.studies.port import Curve

_MAX_MEASUREMENTS: Final = 1_000
"""Maximum number of measurements of a trial that are all used. If there are more, only every second, fourth,
… measurement is used."""
_MAX_CACHED: Final = 200_000
"""Maximum number of cached measurements of all jobs together, about 50 MB."""


def of_summaries(metric: str, points: Sequence[Point], started: Nanos) -> tuple[Measurement, ...]:
    """Return the finite values of a curve as measurements. Elapsed times count from `started` (ns)."""
    return tuple(
        Measurement(((metric, point.value),), point.step, max(0, point.at - started))
        for point in points
        if isinstance(point.value, float) and math.isfinite(point.value)
    )


def of_lines(metric: str, lines: Sequence[tuple[Nanos, str]], started: Nanos) -> tuple[Measurement, ...]:
    """Return the values of the metric that a program printed, in their order. Steps count from 1."""
    measured: list[Measurement] = []
    for at, line in lines:
        for value in values_of(metric, line):
            elapsed = max(0, at - started)
            measured.append(Measurement(((metric, value),), len(measured) + 1, elapsed))
    return tuple(measured)


def thin_out(study: StudySpec, measured: list[Measurement], *, is_over: bool) -> list[Measurement]:
    """Return a sample of at most about `_MAX_MEASUREMENTS` measurements, to limit the cost of a trial with a
    million reports. The sample includes the final measurement of an ended trial. The sample is stable: if
    more measurements follow, a later sample contains no earlier measurement that this sample omits."""
    if len(measured) <= _MAX_MEASUREMENTS:
        return measured
    kept = measured[:: 1 << ((len(measured) - 1) // _MAX_MEASUREMENTS).bit_length()]
    final = final_measurement(study, measured) if is_over else None
    return kept if final is None else sorted({*kept, final}, key=lambda measurement: measurement.step)


def known_metrics(
    study: StudySpec, measured: Sequence[Measurement], stored: Sequence[Measurement]
) -> list[Measurement]:
    """Return the measurements with only the metrics of the study, because a program may report other metrics
    as well.

    A program may report a step again, for example after a return to a checkpoint. The new measurement then
    receives the elapsed time of the stored measurement of that step. The reason is that the store replaces a
    measurement only by one with the same step and elapsed time. Each step thus has one measurement.
    """
    known = {metric.id for metric in study.metrics}
    elapsed = {measurement.step: measurement.elapsed for measurement in stored}
    filled: list[Measurement] = []
    for measurement in measured:
        metrics = tuple(pair for pair in measurement.metrics if pair[0] in known)
        if metrics:
            filled.append(
                Measurement(metrics, measurement.step, elapsed.get(measurement.step, measurement.elapsed))
            )
    return filled


class Curves:
    """The learning curves of tuning jobs' trials, with a cache."""

    def __init__(self, studies: Studies, most: int = _MAX_CACHED) -> None:
        """`most`: maximum number of measurements in the cache."""
        self._studies = studies
        self._left = most
        #: Curves by trial number. None for a trial without a usable curve.
        self._kept: dict[JobUid, dict[int, Curve | None]] = {}

    async def current_curves(self, transition: Transition, sights: Sequence[Sight]) -> list[Curve]:
        """Return the current learning curves of the job's trials, ascending by number. `sights`: the
        observation of each trial that ran when the transition began."""
        curves = await self._ended_curves(transition, {sight.trial.number for sight in sights})
        for sight in sights:
            points = sight.measurements or sight.stored_measurements
            curves[sight.trial.number] = _usable_curve(transition.current(sight.trial), points)
        return [curve for _, curve in sorted(curves.items()) if curve is not None]

    def forget(self, uid: JobUid) -> None:
        """Remove the cached curves of a finished job."""
        self._left += sum(_size(curve) for curve in self._kept.pop(uid, {}).values())

    async def _ended_curves(self, transition: Transition, running: set[int]) -> dict[int, Curve | None]:
        """Return the curves of the trials that had ended before the transition, by number."""
        job = transition.job
        kept = self._kept.setdefault(job.uid, {})
        curves = dict(kept)
        numbers = range(job.spec.first_trial, job.next_trial)
        missing = [number for number in numbers if number not in kept and number not in running]
        if not missing:
            return curves
        span = missing[-1] - missing[0] + 1
        trials = await self._studies.trials(job.study, missing[0] - 1, span)
        # Use one statement for each number, or a single one for all numbers: after a restart, a thousand
        # numbers may be missing.
        numbers_wanted = None if len(missing) > len(kept) else missing
        measured = await self._studies.measurements(job.study, numbers_wanted)
        wanted = set(missing)
        for trial in trials:
            if trial.number not in wanted:
                continue
            curve = _usable_curve(trial, measured.get(trial.number, ()))
            curves[trial.number] = curve
            if trial.state.is_over and (size := _size(curve)) <= self._left:
                self._left -= size
                kept[trial.number] = curve
        return curves


def curve_of(trial: Trial, points: tuple[Measurement, ...]) -> Curve:
    """Return a trial's learning curve in the form for stopping rules."""
    return Curve(trial.number, points, trial.state.is_over)


def _usable_curve(trial: Trial, points: tuple[Measurement, ...]) -> Curve | None:
    counts = points and trial.state is not TrialState.INFEASIBLE
    return curve_of(trial, points) if counts else None


def _size(curve: Curve | None) -> int:
    return 1 if curve is None else max(1, len(curve.measurements))
