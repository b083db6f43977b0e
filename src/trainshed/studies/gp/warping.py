"""Output warping: objective values to labels that a Gaussian process can model (arXiv 2408.11527, output
warping).

Two steps: the worst are replaced by normal quantiles of their ranks, so that no outlier sets the scale; a
mild logarithm stretches what is near the best. The paper's third, a bad value for trials that have none, is
left out: where trials fail is modelled apart (`success`).

The paper ranks the worse half. Late in a study most trials lie near the best, then half of them as a scale
would show the model one narrow peak on a plain, and all that was learnt of the rest would be lost; so fewer
are ranked here.
"""

import math

import numpy as np

from trainshed.studies.routines import Array, normal_quantile

_LOG_OFFSET = 1.5
"""The paper's: how much the logarithm stretches; 1 would not stretch at all."""

_TAIL = 0.2
"""Share of the trials, the worst ones, of which only the ranks count."""

_FAR = 1e8
"""So many times farther from the best than the median is, a value counts by its rank in any case: a penalty,
say."""


def warp(values: Array) -> Array:
    """Labels of values that are to be maximized, within [-0.5, 0.5]. Monotone in the values. All alike: 0."""
    return _log_warped(_tail_ranked(_tamed(values)))


def margins(values: Array, threshold: float) -> Array:
    """Labels of a safety metric, all of them known: positive from the threshold on, of the size that `warp`
    gives."""
    away = _tamed(values / 2.0 - threshold / 2.0)
    width = float(np.sqrt(np.mean(away**2)))
    return np.clip(away / (4.0 * width), -1.0, 1.0) if width > 0.0 else np.zeros(values.shape)


def _tamed(values: Array) -> Array:
    """The values, all together made smaller by a power of two if their squares would overflow, larger if they
    would vanish."""
    peak = float(np.abs(values).max())
    return np.ldexp(values, -int(np.frexp(peak)[1])) if not 1e-100 < peak < 1e100 else values


def _tail_ranked(values: Array) -> Array:
    """The values below the pivot moved to where half a normal distribution, as wide as the others, has
    them."""
    distinct = np.unique(values)
    pivot = _pivot(np.sort(values))
    better = distinct[distinct >= pivot]
    width = float(np.sqrt(np.mean((better - pivot) ** 2)))
    if width == 0.0:
        width = float(np.sqrt(np.mean((distinct - pivot) ** 2)))
    if width == 0.0:
        return np.zeros(values.shape)
    worse = len(distinct) - len(better)
    shares = 0.5 * (np.arange(worse, dtype=np.float64) + 0.5) / (worse + 0.5)
    warped = np.concatenate([pivot + width * normal_quantile(shares), better])
    return warped[np.searchsorted(distinct, values)]


def _pivot(ascending: Array) -> float:
    """The worst value that is taken as it is."""
    count = len(ascending)
    best, middle = float(ascending[-1]), float(ascending[count // 2])
    near = int(np.searchsorted(ascending, best - _FAR * (best - middle)))
    return float(ascending[max(near, math.ceil(_TAIL * (count - 1)))])


def _log_warped(values: Array) -> Array:
    """Best to 0.5, worst to -0.5."""
    best, worst = float(values.max()), float(values.min())
    if best == worst:
        return np.zeros(values.shape)
    share = (best - values) / (best - worst)
    return 0.5 - np.log1p(share * (_LOG_OFFSET - 1.0)) / np.log(_LOG_OFFSET)
