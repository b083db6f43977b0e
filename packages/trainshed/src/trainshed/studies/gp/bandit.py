"""The default algorithm: a Gaussian-process bandit, as a pure function of the spec, the stored trials and the
seed (docs/adr/0018).

It follows the published Vizier paper (arXiv 2408.11527): a quasi-random start, warped outputs, a Gaussian
process with MAP hyperparameters, an upper confidence bound whose variance counts pending trials, a trust
region, and a search over the mixed space.

The paper does not contain four parts of this algorithm. Every second trial exploits: it maximizes the mean.
The process models main effects (`process`). A separate model covers failures (`belief`). Ranks replace fewer
metric values than in the paper (`belief.warp`). No state is kept between calls, so the same trials give the
same result.
"""

from collections.abc import Sequence
from itertools import chain, islice

import numpy as np

from trainshed.core.study.progress import score
from trainshed.core.study.records import Parameters, TrialState
from trainshed.core.study.spec import Algorithm, Scale, StudySpec, Value
from trainshed.studies.gp.acquisition import Score, TrustRegion, trust_radius
from trainshed.studies.gp.belief import Belief, bound_score, fit_beliefs, successes
from trainshed.studies.gp.process import Posterior
from trainshed.studies.gp.search import Candidates, Search, score_all
from trainshed.studies.gp.selection import choose
from trainshed.studies.port import Proposals, TrialData
from trainshed.studies.random_search import grid
from trainshed.studies.routines import Array
from trainshed.studies.space import Node, Space, starting_point
from trainshed.wire.trainshed_v1.jobs import Outlook, OutlookAxis

_MAX_SCORED_POINTS = 512
"""Maximum points of a space whose points are all scored instead of searched."""

_MAX_START_POINTS = 64
"""Number of successive quasi-random points among which an untried point is searched at the start of a study.
"""

_SEEDS = 20
"""Number of best points around which the search starts."""

_MIN_VALUES = 3
"""Minimum number of different measured values of the first metric. With fewer values, the model has no
outlook."""

_POINTS_ALONG_ONE, _POINTS_ALONG_TWO = 61, 25
"""Number of points of an outlook over one parameter, and per parameter over two."""

_MAX_LISTED_POINTS = 100
"""Maximum points of an outlook for a parameter with countable values."""

_MIN_DISTANCE = 1e-5
"""Distance, in units of the cube, below which two points count as equal."""

_COEFFICIENT = 1.8
"""Coefficient of the upper confidence bound, as in the paper."""

_EXPLOIT_INTERVAL = 2
"""Every n-th trial exploits: its coefficient is 0."""

_EXPLOIT_PENDING_COEFFICIENT = 0.3
"""Coefficient of an exploiting trial while other trials are pending."""


class GaussianProcessBandit:
    """Implements `studies.port.Algorithm`."""

    def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        study = _Study(spec, trials, abs(seed))
        latest = max((trial.number for trial in trials), default=0)
        return Proposals(tuple(study.propose(latest + ahead) for ahead in range(1, count + 1)))


class _Study:
    """The view of a study during one call. Completed trials do not change in that time, so the models are
    fitted once."""

    def __init__(self, spec: StudySpec, trials: Sequence[TrialData], seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._space = Space(spec.parameters)
        self._shown = choose(spec, trials)
        self._done = self._space.encode([trial.parameters for trial in self._shown.done])
        self._tried = {trial.parameters for trial in trials}
        self._running = {trial.parameters for trial in trials if not trial.state.is_over}
        #: All points of a small space. Empty for other spaces.
        self._all: list[Parameters] = []
        if all(node.size for node in self._space.nodes):
            points = list(islice(grid(spec.parameters), _MAX_SCORED_POINTS + 1))
            self._all = points if len(points) <= _MAX_SCORED_POINTS else []
        self._beliefs: tuple[Belief, ...] = ()
        self._success: Posterior | None = None

    def propose(self, number: int) -> Parameters:
        """Return the point for trial `number`. It counts as pending from then on."""
        proposed = self._suggest_by_model if self._shown.is_enough else self._start
        point = proposed(number)
        self._tried.add(point)
        self._running.add(point)
        self._shown = self._shown.with_pending(TrialData(number, TrialState.REQUESTED, point))
        return point

    def _start(self, number: int) -> Parameters:
        """Return a point without using a model: the quasi-random point of this number if it is untried.
        Otherwise, return another untried point, or the same quasi-random point if no untried point is found.
        """
        numbers = range(number, number + _MAX_START_POINTS)
        codes = self._space.snap(np.array([starting_point(self._space, at, self._seed) for at in numbers]))
        points = [*(self._space.decode(row) for row in codes), *self._all]
        return next((point for point in points if point not in self._tried), points[0])

    def _suggest_by_model(self, number: int) -> Parameters:
        if not self._beliefs:
            points = self._space.embed(self._done)
            self._beliefs = fit_beliefs(self._spec, self._space, self._shown, points)
            self._success = successes(self._space, self._shown, points)
        codes = self._space.encode([trial.parameters for trial in self._shown.pending])
        rng = np.random.default_rng((self._seed, number))
        if number % _EXPLOIT_INTERVAL == 0:
            coefficient = _EXPLOIT_PENDING_COEFFICIENT if len(codes) else 0.0
            best = self._search(self._score(codes, rng, coefficient), codes, rng)
            point = self._best_untried(best)
            if point is not None and self._is_new(best.codes[:1], codes):
                return point
        best = self._search(self._score(codes, rng, _COEFFICIENT), codes, rng)
        return self._best_untried(best) or self._space.decode(best.codes[0])

    def _score(self, pending: Array, rng: np.random.Generator, coefficient: float) -> Score:
        """Return the score to maximize. `coefficient`: the coefficient of the upper confidence bound."""
        points = self._space.embed(pending)
        return bound_score(self._beliefs, self._success, points, coefficient, rng)

    def _search(self, score: Score, pending: Array, rng: np.random.Generator) -> Candidates:
        space = self._space
        if self._all:
            return score_all(space, score, space.encode(self._all))
        seen = space.embed(np.vstack([self._done, pending]))[:, space.is_number]
        trust = TrustRegion(seen, trust_radius(len(self._shown.values), space.width))
        aim = self._beliefs[0]
        best = aim.rows[np.argsort(-aim.data.labels, kind="stable")[:_SEEDS]]
        return Search(space, score, trust).maximize(space.genotypes(self._done[best]), rng)

    def _best_untried(self, best: Candidates) -> Parameters | None:
        """Return the best untried point. If all points were tried, return the best point that is not pending,
        or None if all are pending."""
        decode, codes = self._space.decode, best.codes
        fresh = (point for point in map(decode, codes) if point not in self._tried)
        free = (point for point in map(decode, codes) if point not in self._running)
        return next(chain(fresh, free), None)

    def _is_new(self, codes: Array, pending: Array) -> bool:
        """Return whether a point differs enough from all tried and pending points."""
        seen = self._space.embed(np.vstack([self._done, pending]))
        apart = np.abs(seen - self._space.embed(codes)).max(axis=1)
        return bool(apart.min() > _MIN_DISTANCE)


def outlook(spec: StudySpec, trials: Sequence[TrialData], chosen: Sequence[str]) -> Outlook:
    """Return the model's expectation of the first metric over one or two chosen parameters. All other
    parameters have their values in the best trial. If the model has no expectation, return the reason
    instead."""
    if spec.algorithm is not Algorithm.DEFAULT:
        return Outlook(reason="Random and grid search use no model of the search space.")
    metric, shown, space = spec.metrics[0], choose(spec, trials), Space(spec.parameters)
    count = len(np.unique(shown.values[np.isfinite(shown.values[:, 0]), 0]))
    if count < _MIN_VALUES or not shown.is_enough:
        text = f"It needs {_MIN_VALUES} different values of {metric.id}; trials have measured {count} so far."
        return Outlook(reason=text)
    codes = space.encode([trial.parameters for trial in shown.done])
    aim = fit_beliefs(spec, space, shown, space.embed(codes))[0]
    top = int(aim.rows[np.argmax(aim.data.labels)])
    best, ids = shown.done[top], [node.parameter.id for node in space.nodes]
    active = {ids[at]: at for at in np.flatnonzero(~np.isnan(codes[top]))}
    if idle := [name for name in chosen if name not in active]:
        text = f"{' and '.join(idle)} has no effect in the best trial, {best.number}."
        return Outlook(reason=text)
    columns = [active[name] for name in chosen]
    nodes = [space.nodes[at] for at in columns]
    places = _places(nodes)
    grid = np.stack(np.meshgrid(*places, indexing="ij"), axis=-1).reshape(-1, len(places))
    points = np.repeat(space.genotypes(codes[[top]]), len(grid), axis=0)
    points[:, columns] = grid
    mean, deviation = aim.known.predict(space.embed(space.snap(points)))
    values, sign = shown.values[shown.rows][aim.rows, 0], score(metric, 1.0)
    ends = [
        sign * _to_metric_values(mean + away, aim.data.labels, values) for away in (-deviation, deviation)
    ]
    return Outlook(
        metric=metric.id,
        is_maximized=sign > 0,
        best=best.number,
        others={name: value for name, value in best.parameters if name not in chosen},
        axes=tuple(
            OutlookAxis(
                name=name, values=tuple(map(node.value, listed)), is_log=node.parameter.scale is Scale.LOG
            )
            for name, node, listed in zip(chosen, nodes, places, strict=True)
        ),
        expected=_round(sign * _to_metric_values(mean, aim.data.labels, values)),
        low=_round(np.minimum(*ends)),
        high=_round(np.maximum(*ends)),
        points=_trial_points(nodes, places, codes[aim.rows][:, columns], sign * values),
    )


def _places(nodes: Sequence[Node]) -> list[Array]:
    """Return the codes at which the outlook is computed, ascending, for each parameter."""
    along = _POINTS_ALONG_ONE if len(nodes) == 1 else _POINTS_ALONG_TWO
    counts = [max(along, min(node.size, _MAX_LISTED_POINTS)) for node in nodes]
    shares = [np.linspace(0.0, 1.0, count) for count in counts]
    return [np.unique(node.place(some)) for node, some in zip(nodes, shares, strict=True)]


def _trial_points(
    nodes: Sequence[Node], places: Sequence[Array], codes: Array, values: Array
) -> tuple[tuple[Value, ...], ...]:
    """Return the parameters of trials with their measured values. Parameters without codes are omitted.
    `codes`: by trial and parameter."""
    columns = zip(nodes, places, codes.T, strict=True)
    has_place = np.all(
        [np.isin(of, at) if node.is_categorical else ~np.isnan(of) for node, at, of in columns], axis=0
    )
    return tuple(
        (*(node.value(code) for node, code in zip(nodes, row, strict=True)), float(value))
        for row, value in zip(codes[has_place], values[has_place], strict=True)
    )


def _to_metric_values(labels: Array, known: Array, values: Array) -> Array:
    """Return metric values for labels. Between `known` labels, interpolate their observed `values`. Below the
    lowest and above the highest known label, continue with the average slope between the middle label and
    that label."""
    order = np.argsort(known, kind="stable")
    at, of, middle = known[order], values[order], len(order) // 2
    worth = np.interp(labels, at, of)
    with np.errstate(over="ignore", invalid="ignore"):
        for end, beyond in ((0, np.minimum(labels - at[0], 0)), (-1, np.maximum(labels - at[-1], 0))):
            if at[end] != at[middle]:
                worth += beyond * (of[end] - of[middle]) / (at[end] - at[middle])
    return np.nan_to_num(worth)


def _round(values: Array) -> tuple[float, ...]:
    """Return the values rounded to the precision of a chart."""
    return tuple(float(f"{value:.6g}") for value in values)
