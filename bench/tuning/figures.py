"""Computes figures from results: medians, ranks, ratios to random search with their interval, wins and
losses. Pure."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from bench.tuning.runs import RANDOM, Result

FLOOR = 1e-4
"""Regrets below this value count as this value, because smaller differences do not matter."""
SIGNIFICANT = 0.05
RESAMPLES = 1000

Case = tuple[str, int]
"""A problem and the number of pending trials."""
Regrets = Mapping[Case, Mapping[str, Sequence[float]]]
"""The regrets by case and candidate, one for each seed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The figures of a candidate.

    `ratio`: geometric mean over the cases of the candidate's median regret divided by random search's. `low`,
    `high`: 95 % interval of `ratio` over resampled seeds. `wins`, `losses`: number of cases that differ
    significantly from random search. `seconds`: per suggestion.
    """

    candidate: str
    rank: float
    ratio: float
    low: float
    high: float
    wins: int
    losses: int
    seconds: float


def regrets_after(results: Sequence[Result], trials: int) -> Regrets:
    regrets: dict[Case, dict[str, list[float]]] = {}
    for result in sorted(results, key=lambda result: result.task.seed):
        if len(result.regrets) >= trials:
            case = regrets.setdefault((result.task.problem, result.task.pending), {})
            case.setdefault(result.task.candidate, []).append(max(result.regrets[trials - 1], FLOOR))
    return regrets


def complete(regrets: Regrets, candidates: Sequence[str]) -> Regrets:
    """Return the cases that all candidates have completed, in order."""
    return {
        case: {name: regrets[case][name] for name in candidates}
        for case in sorted(regrets)
        if all(name in regrets[case] for name in candidates)
    }


def standings(results: Sequence[Result], candidates: Sequence[str], trials: int) -> list[Standing]:
    """Return the standings, best rank first. The result is empty without cases that all candidates have
    completed, or without random search."""
    regrets = complete(regrets_after(results, trials), candidates)
    if not regrets or RANDOM not in candidates:
        return []
    ranks = {name: median(_rank(case, name) for case in regrets.values()) for name in candidates}
    table: list[Standing] = []
    for name in candidates:
        low, high = _interval(regrets, name)
        verdicts = [_differs(case[name], case[RANDOM]) for case in regrets.values()]
        seconds = [result.seconds for result in results if result.task.candidate == name]
        table.append(
            Standing(
                name,
                ranks[name],
                _ratio(regrets, name),
                low,
                high,
                verdicts.count(-1),
                verdicts.count(1),
                sum(seconds) / len(seconds),
            )
        )
    return sorted(table, key=lambda standing: (standing.rank, standing.ratio))


def _rank(case: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the rank of a candidate in a case, from 1 (best). Candidates with equal values have the mean of
    their ranks."""
    own = median(case[name])
    others = [median(regrets) for regrets in case.values()]
    return sum(other < own for other in others) + (others.count(own) + 1) / 2


def _ratio(regrets: Regrets, name: str) -> float:
    return geometric_mean(median(case[name]) / median(case[RANDOM]) for case in regrets.values())


def _interval(regrets: Regrets, name: str) -> tuple[float, float]:
    """Return the interval of the ratio, by a bootstrap over the seeds of every case."""
    if name == RANDOM:
        return 1.0, 1.0
    draw = random.Random(name)
    ratios = sorted(
        math.exp(
            sum(
                math.log(
                    median(draw.choices(case[name], k=len(case[name])))
                    / median(draw.choices(case[RANDOM], k=len(case[RANDOM])))
                )
                for case in regrets.values()
            )
            / len(regrets)
        )
        for _ in range(RESAMPLES)
    )
    return ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40 - 1]


def _differs(own: Sequence[float], other: Sequence[float]) -> int:
    """Return -1 if `own` is significantly lower than `other` (two-sided rank sum test), 1 if it is higher,
    otherwise 0."""
    from scipy.stats import mannwhitneyu

    test = mannwhitneyu(own, other, alternative="two-sided", method="auto")
    if not float(test.pvalue) < SIGNIFICANT:
        return 0
    return -1 if median(own) < median(other) else 1
