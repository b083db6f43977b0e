"""google-vizier's GP bandit as an algorithm: its designer is built anew from the stored
trials at every call. It takes seconds per suggestion and a gigabyte or two of memory, most of it for
compilation.

It knows no conditional parameters: it gets the whole tree flat, with inactive nodes in the middle of their
range. It gets unsafe trials as infeasible ones.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bench.tuning.engines.tree import (
    Place,
    is_log,
    key,
    pending,
    places,
    reproducible,
    seed_of,
    to_value,
    walk,
)
from trainshed.core.study.progress import objectives
from trainshed.core.study.spec import Parameter, ParameterType, StudySpec, Value
from trainshed.studies.optimal import is_safe
from trainshed.studies.port import Algorithm, Proposals, Seen


def algorithm() -> Algorithm:
    """Return VIZIER. Raises ImportError if the library or jax is not installed."""
    return VizierAlgorithm()


class VizierAlgorithm:
    """Implements `studies.port.Algorithm`."""

    def __init__(self) -> None:
        self._vz: Any = import_module("vizier.pyvizier")
        self._vza: Any = import_module("vizier.algorithms")
        self._designers: Any = import_module("vizier._src.algorithms.designers.gp_ucb_pe")
        self._padding: Any = import_module("vizier.pyvizier.converters.padding")
        self._jax: Any = import_module("jax")
        self._jax.config.update("jax_enable_x64", True)  # as the library's own service does

    def suggest(self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int) -> Proposals:
        problem = self._problem(spec)

        def propose(known: Sequence[Seen], number: int) -> Seen:
            designer = self._designers.VizierGPUCBPEBandit(
                problem,
                rng=self._jax.random.PRNGKey(seed_of(seed, number)),
                padding_schedule=self._schedule(spec),
            )
            told = [one for trial in known if (one := self._told(spec, trial)) is not None]
            over = self._vz.TrialStatus.COMPLETED
            designer.update(
                self._vza.CompletedTrials([one for one in told if one.status == over]),
                self._vza.ActiveTrials([one for one in told if one.status != over]),
            )
            suggested = designer.suggest(1)[0].parameters

            def draw(index: int, parameter: Parameter) -> Value:
                return to_value(
                    parameter,
                    _position(parameter, suggested.get_value(key(index, parameter))),
                )

            return pending(number, walk(spec, draw))

        return Proposals(reproducible(trials, count, propose))

    def _problem(self, spec: StudySpec) -> Any:
        problem = self._vz.ProblemStatement()
        for metric in objectives(spec):
            problem.metric_information.append(
                self._vz.MetricInformation(
                    name=metric.id, goal=self._vz.ObjectiveMetricGoal[metric.goal.value]
                )
            )
        for index, parameter in enumerate(spec.parameters):
            self._add(problem.search_space.root, key(index, parameter), parameter)
        return problem

    def _add(self, root: Any, name: str, parameter: Parameter) -> None:
        scale = self._vz.ScaleType.LOG if is_log(parameter) else self._vz.ScaleType.LINEAR
        match parameter.type:
            case ParameterType.DOUBLE:
                root.add_float_param(name, parameter.low, parameter.high, scale_type=scale)
            case ParameterType.INTEGER:
                low, high = int(parameter.low), int(parameter.high)
                root.add_int_param(name, low, high, scale_type=scale)
            case ParameterType.DISCRETE:
                root.add_int_param(name, 0, len(parameter.values) - 1, scale_type=scale)
            case ParameterType.CATEGORICAL:
                root.add_categorical_param(name, list(parameter.categories))

    def _schedule(self, spec: StudySpec) -> Any:
        """Pad the number of trials to powers of two, so that less is compiled anew; the library can do so
        only with one objective."""
        kinds = self._padding.PaddingType
        trials = kinds.POWERS_OF_2 if len(objectives(spec)) == 1 else kinds.NONE
        return self._padding.PaddingSchedule(
            num_trials=trials, num_features=kinds.NONE, num_metrics=kinds.NONE
        )

    def _told(self, spec: StudySpec, trial: Seen) -> Any:
        """Return the library's trial; None for one that it cannot represent."""
        found = places(spec, trial.parameters)
        if found is None:
            return None
        parameters = {
            key(index, parameter): found.get(index, _middle(parameter))
            for index, parameter in enumerate(spec.parameters)
        }
        told = self._vz.Trial(id=trial.number, parameters=parameters)
        if trial.final is None:
            if trial.state.is_over:
                told.complete(self._vz.Measurement(), infeasibility_reason="no final measurement")
            return told
        values = {metric.id: trial.final.value(metric.id) for metric in spec.metrics}
        if None in values.values():
            return None
        if not all(is_safe(metric, values[metric.id] or 0.0) for metric in spec.metrics):
            told.complete(self._vz.Measurement(), infeasibility_reason="unsafe")
        else:
            aims = {metric.id: values[metric.id] for metric in objectives(spec)}
            told.complete(self._vz.Measurement(metrics=aims))
        return told


def _middle(parameter: Parameter) -> Place:
    match parameter.type:
        case ParameterType.CATEGORICAL:
            return parameter.categories[0]
        case ParameterType.DISCRETE:
            return (len(parameter.values) - 1) // 2
        case ParameterType.INTEGER | ParameterType.DOUBLE:
            low, high = parameter.low, parameter.high
            middle = (low * high) ** 0.5 if is_log(parameter) else (low + high) / 2
            return int(middle) if parameter.type is ParameterType.INTEGER else middle


def _position(parameter: Parameter, suggested: float | str) -> Place:
    return str(suggested) if parameter.type is ParameterType.CATEGORICAL else float(suggested)
