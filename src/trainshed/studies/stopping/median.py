"""Median automated stopping, as the Vizier paper (Golovin et al. 2017, §3.2.2) and the API description define it.

A pending trial is stopped at step s if its best value up to s is strictly worse than the median of the running
averages, up to s, of the trials that are over. The rule asks nothing of the curves' form. Without numpy.
"""

from collections.abc import Sequence
from statistics import fmean, median

from trainshed.core.study.spec import MedianStopping, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict
from trainshed.studies.stopping.curves import (
    NO_SINGLE_OBJECTIVE,
    NOTHING_MEASURED,
    Line,
    axes,
    go_on,
    stop,
    too_early,
)

MIN_FINISHED = 5
"""Of fewer trials the median says little. Not published; chosen (docs/choices.md)."""


def should_stop(
    rule: MedianStopping, spec: StudySpec, trial: Curve, others: Sequence[Curve]
) -> StoppingVerdict:
    """The verdict at the trial's last measurement. The best trial so far is never stopped: no average is above it."""
    plane = axes(spec, rule.use_elapsed)
    if plane is None:
        return NO_SINGLE_OBJECTIVE
    own = plane.line(trial)
    if own is None:
        return NOTHING_MEASURED
    averages = [
        average
        for line in plane.finished(others)
        if (average := _running_average(line, own.end)) is not None
    ]
    if len(averages) < MIN_FINISHED:
        return too_early(
            f"{len(averages)} trials that are over had measured something {plane.where(own.end)}, {MIN_FINISHED} are needed."
        )
    middle, best = median(averages), max(own.ys)
    seen = (
        f"the median of the running averages of {len(averages)} trials is {plane.value(middle)} {plane.where(own.end)}, "
        f"the trial's best value {plane.value(best)}."
    )
    if best < middle:
        return stop(f"Worse than the median: {seen}")
    return go_on(f"Not worse than the median: {seen}")


def _running_average(line: Line, until: float) -> float | None:
    seen = [y for x, y in zip(line.xs, line.ys, strict=True) if x <= until]
    return fmean(seen) if seen else None
