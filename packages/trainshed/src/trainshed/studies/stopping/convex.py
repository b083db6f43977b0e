"""Convex automated stopping: stops a trial that even an optimistic extrapolation leaves behind the best (API
description).

A learning curve is assumed to rise ever more slowly (more is better here). Then the line through its recent
half, continued to the trial's last step, is above all that can come: an overestimate. If even that falls
short of the best trial, the trial is stopped. The value that it would likely have reached is its level plus a
part of the overestimated gain: the part that finished trials have made from the same place. "The same place"
means steps times learning rate, if the study names its learning rate: a trial with half the rate counts as
half as far at the same step. The public text says that the rate is used, but not how; this is the service's
own choice (docs/tuning.md).
"""

from collections.abc import Sequence
from statistics import median

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.special import stdtrit

from trainshed.core.study.progress import score
from trainshed.core.study.records import Measurement
from trainshed.core.study.spec import ConvexStopping, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict
from trainshed.studies.stopping.curves import (
    NS,
    Axes,
    Line,
    axes,
    best_final,
    go_on,
    stop,
    too_early,
)

TAIL = 5
"""Least number of the latest measurements that make the line, if there are as many; three at least are needed
to see the noise."""
CONFIDENCE = 0.975
"""One-sided confidence of the overestimate: noise alone stops few trials."""
UNKNOWN_PART = 0.5
"""Part of the overestimated gain that is assumed while no finished trial can be compared: midway."""

Floats = NDArray[np.float64]


class Tangent(Struct, frozen=True):
    """The line through the recent half of a curve. `slope` is at least 0: the model is monotone."""

    x: float
    level: float
    slope: float
    centre: float
    spread: float
    residual: float
    count: int

    def at(self, x: float) -> float:
        return self.level + self.slope * (x - self.x)

    def optimistic(self, x: float) -> float:
        """Return the upper end of the prediction at `x`."""
        error = self.residual * (1 / self.count + (x - self.centre) ** 2 / self.spread) ** 0.5
        return self.at(x) + float(stdtrit(self.count - 2, CONFIDENCE)) * error


def should_stop(
    rule: ConvexStopping, plane: Axes, own: Line, finished: Sequence[Line]
) -> StoppingVerdict:
    """Return the verdict at the trial's last measurement."""
    if lacking := _lacking(rule, plane, own, finished):
        return too_early(lacking)
    best, goal = best_final(finished), _last_step(rule, finished)
    if max(own.ys) >= best:
        return go_on(f"No finished trial is better than {plane.value(max(own.ys))}.")
    if own.end >= goal:
        return go_on(f"The trial is at its end {plane.where(goal)}.")
    if (line := tangent(own)) is None:
        return go_on("The curve is flat; nothing can be said of it.")
    seen = (
        f"{plane.where(own.end)} an optimistic end is {plane.value(line.optimistic(goal))} "
        f"{plane.where(goal)}, the best of {len(finished)} trials {plane.value(best)}."
    )
    if line.optimistic(goal) < best:
        return stop(f"Cannot catch up: {seen}")
    return go_on(f"May still catch up: {seen}")


def predicted_final(
    rule: ConvexStopping, spec: StudySpec, trial: Curve, others: Sequence[Curve]
) -> Measurement | None:
    """Return what a stopped trial would likely have measured at its last step, which the public rule adds as
    its last measurement. None if its curve does not allow it. Never better than the best of `others` if the
    rule stopped it."""
    plane = axes(spec, rule.use_elapsed)
    own = plane and plane.line(trial)
    if plane is None or own is None:
        return None
    finished = plane.finished(others)
    goal, line = _last_step(rule, [*finished, own]), tangent(own)
    if line is None or own.end >= goal:
        return None
    value = line.level + _part(own, goal, finished) * line.slope * (goal - line.x)
    metric = ((plane.metric.id, score(plane.metric, value)),)
    if rule.use_elapsed:
        return Measurement(metric, trial.measurements[-1].step, int(goal))
    return Measurement(metric, int(goal), trial.measurements[-1].elapsed)


def updated_finals(
    rule: ConvexStopping, spec: StudySpec, stopped: Sequence[Curve], others: Sequence[Curve]
) -> tuple[tuple[int, Measurement], ...]:
    """Return the final measurements, by trial number, of trials that this rule stopped earlier, predicted
    anew from trials that ran to their end (`others`); () unless the study asks for it
    (`update_all_stopped`)."""
    if not rule.update_all_stopped:
        return ()
    predicted = ((curve.number, predicted_final(rule, spec, curve, others)) for curve in stopped)
    return tuple((number, final) for number, final in predicted if final is not None)


def tangent(own: Line) -> Tangent | None:
    """Fit the line through the recent half; None for a flat curve, and for one of less than three places."""
    xs, ys = np.array(own.xs, float), np.array(own.ys, float)
    count = max(TAIL, (len(xs) + 1) // 2)
    xs, ys = xs[-count:], ys[-count:]
    centre = float(xs.mean())
    spread = float(((xs - centre) ** 2).sum())
    if len(xs) < 3 or spread == 0 or max(own.ys) == min(own.ys):
        return None
    slope = float(((xs - centre) * (ys - ys.mean())).sum()) / spread
    away: Floats = ys - ys.mean() - slope * (xs - centre)
    residual = float((away**2).sum() / (len(xs) - 2)) ** 0.5
    rising = max(slope, 0.0)
    level = float(ys.mean()) + rising * (own.end - centre)
    return Tangent(own.end, level, rising, centre, spread, residual, len(xs))


def _lacking(rule: ConvexStopping, plane: Axes, own: Line, finished: Sequence[Line]) -> str:
    """Return why it is too early; "" if it is not. The conditions are those of the API description."""
    if len(finished) < rule.min_measurements + 1:
        return f"{len(finished)} trials are over, {rule.min_measurements + 1} are needed."
    needed = max(rule.min_measurements, 3)
    if len(own.xs) < needed:
        return f"the trial has {len(own.xs)} measurements, {needed} are needed."
    first = rule.min_steps * (NS if rule.use_elapsed else 1) or _last_step(rule, finished) / 10
    if own.end <= first:
        return f"the trial stands {plane.where(own.end)}; the rule begins {plane.where(first)}."
    return ""


def _last_step(rule: ConvexStopping, finished: Sequence[Line]) -> float:
    """Return the place to which curves are extrapolated, in steps or ns."""
    last = rule.max_steps * (NS if rule.use_elapsed else 1)
    return last or max(line.end for line in finished)


def _part(own: Line, goal: float, finished: Sequence[Line]) -> float:
    """Return which part of the overestimated gain from `own.end` to `goal` the finished trials have made:
    the median, 0..1."""
    parts: list[float] = []
    for line in finished:
        pace = _pace(own, line)
        until = own.end * pace
        before = [point for point in zip(line.xs, line.ys, strict=True) if point[0] <= until]
        reached = min(goal * pace, line.end)
        if len(before) < 3 or reached <= before[-1][0]:
            continue
        xs, ys = zip(*before, strict=True)
        guess = tangent(Line(line.number, xs, ys, ys[-1], None))
        if guess is None or guess.slope == 0:
            continue
        gained = float(np.interp(reached, line.xs, line.ys)) - guess.level
        parts.append(min(1.0, max(0.0, gained / (guess.slope * (reached - guess.x)))))
    return median(parts) if parts else UNKNOWN_PART


def _pace(own: Line, line: Line) -> float:
    """Return the multiple of `own`'s steps at which the other trial is as far, by the learning rates."""
    if not own.learning_rate or not line.learning_rate:
        return 1.0
    ratio = own.learning_rate / line.learning_rate
    return ratio if ratio > 0 else 1.0
