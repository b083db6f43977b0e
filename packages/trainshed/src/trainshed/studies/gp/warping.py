"""Output warping: turns objective values into labels that a Gaussian process can model (arXiv 2408.11527,
output warping).

Two steps: the worst are replaced by normal quantiles of their ranks, so that no outlier sets the scale; a
mild logarithm stretches what is near the best. The paper's third step, a bad value for trials without one, is
left out: where trials fail is modelled separately (`success`).

The paper ranks the worse half. Late in a study most trials are near the best; if the better half alone set
the scale, the model would see one narrow peak on a plain, and all that was learnt of the rest would be lost.
So fewer are ranked here.
"""

import math

import numpy as np

from trainshed.studies.routines import Array, normal_quantile

_LOG_OFFSET = 1.5
"""The paper's: how much the logarithm stretches; 1 would not stretch at all."""

_TAIL = 0.2
"""Share of the trials, the worst ones, for which only the ranks count."""

_FAR = 1e8
"""A value that is so many times farther from the best than the median counts only by its rank: a penalty,
say."""


def warp(values: Array) -> Array:
    """Return labels of values that are to be maximized: within [-0.5, 0.5], monotone; 0 if all are alike."""
    return _log_warped(_tail_ranked(_tamed(values)))


def margins(values: Array, threshold: float) -> Array:
    """Return labels of a safety metric's values, all of them known: positive above the threshold, of about
    the size that `warp` gives."""
    away = _tamed(values / 2.0 - threshold / 2.0)
    width = float(np.sqrt(np.mean(away**2)))
    return np.clip(away / (4.0 * width), -1.0, 1.0) if width > 0.0 else np.zeros(values.shape)


def _tamed(values: Array) -> Array:
    """Return the values, all scaled by the same power of two if their squares would overflow or vanish."""
    peak = float(np.abs(values).max())
    return np.ldexp(values, -int(np.frexp(peak)[1])) if not 1e-100 < peak < 1e100 else values


def _tail_ranked(values: Array) -> Array:
    """Return the values, those below the pivot moved to where half a normal distribution, as wide as the
    others, has them."""
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
    """Return the worst value that is kept as it is."""
    count = len(ascending)
    best, middle = float(ascending[-1]), float(ascending[count // 2])
    near = int(np.searchsorted(ascending, best - _FAR * (best - middle)))
    return float(ascending[max(near, math.ceil(_TAIL * (count - 1)))])


def _log_warped(values: Array) -> Array:
    """Move the best to 0.5 and the worst to -0.5."""
    best, worst = float(values.max()), float(values.min())
    if best == worst:
        return np.zeros(values.shape)
    share = (best - values) / (best - worst)
    return 0.5 - np.log1p(share * (_LOG_OFFSET - 1.0)) / np.log(_LOG_OFFSET)
