"""Optuna's samplers as algorithms.

Each call rebuilds the library's study from the stored trials, so no state of the library is stored. Pending
trials are running trials in Optuna: TPE counts them as bad (its constant liar), and the GP averages over
their values. Infeasible trials are omitted. TPE groups conditional parameters. The GP leaves parameters that
some trials lack to TPE.
"""

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from bench.tuning.engines import Engine
from bench.tuning.engines.tree import is_log, key, pending, places, reproducible, seed_of, to_value, walk
from trainshed.core.study.spec import Parameter, ParameterType, StudySpec, Value
from trainshed.studies.port import Algorithm, Proposals, TrialData

STARTUP = 10
"""Number of completed trials before a sampler uses a model. Until then, it draws at random. This is the
library's default."""


class _Sampler(Protocol):
    def __call__(self, optuna: Any, spec: StudySpec, seed: int) -> Any: ...


def algorithm(engine: Engine) -> Algorithm:
    """Return OPTUNA_TPE or OPTUNA_GP. OPTUNA_GP also requires torch. Raises ImportError if a library is not
    installed."""
    optuna = import_module("optuna")
    if engine is Engine.OPTUNA_GP:
        import_module("torch")
        return OptunaAlgorithm(optuna, _gp)
    return OptunaAlgorithm(optuna, _tpe)


class OptunaAlgorithm:
    """Implements `studies.port.Algorithm`."""

    def __init__(self, optuna: Any, sampler: _Sampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._sampler = sampler

    def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        def propose(known: Sequence[TrialData], number: int) -> TrialData:
            study = self._study(spec, known, seed_of(seed, number))
            trial = study.ask()

            def draw(index: int, parameter: Parameter) -> Value:
                return to_value(parameter, _draw(trial, key(index, parameter), parameter))

            return pending(number, walk(spec, draw))

        return Proposals(reproducible(trials, count, propose))

    def _study(self, spec: StudySpec, trials: Sequence[TrialData], seed: int) -> Any:
        study = self._optuna.create_study(
            directions=[metric.goal.value.lower() for metric in spec.metrics],
            sampler=self._sampler(self._optuna, spec, seed),
        )
        distributions = {
            key(index, parameter): _distribution(self._optuna, parameter)
            for index, parameter in enumerate(spec.parameters)
        }
        library_trials = (self._to_library_trial(spec, distributions, trial) for trial in trials)
        study.add_trials([trial for trial in library_trials if trial is not None])
        return study

    def _to_library_trial(self, spec: StudySpec, distributions: Mapping[str, Any], trial: TrialData) -> Any:
        """Convert a trial to the library's trial. Return None for a trial that is infeasible or that the
        library cannot represent."""
        located = places(spec, trial.parameters)
        if located is None or (trial.final is None and trial.state.is_over):
            return None
        parameters = {key(index, spec.parameters[index]): place for index, place in located.items()}
        states = self._optuna.trial.TrialState
        how: dict[str, Any] = {"state": states.RUNNING}
        if trial.final is not None:
            values = [trial.final.value(metric.id) for metric in spec.metrics]
            if None in values:
                return None
            how = {"state": states.COMPLETE, "values": values}
        return self._optuna.trial.create_trial(
            params=parameters, distributions={name: distributions[name] for name in parameters}, **how
        )


def _tpe(optuna: Any, spec: StudySpec, seed: int) -> Any:
    conditional = any(parameter.parent is not None for parameter in spec.parameters)
    groups = {"multivariate": True, "group": True} if conditional else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna marks the argument `group` as experimental.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=STARTUP, **groups)


def _gp(optuna: Any, spec: StudySpec, seed: int) -> Any:
    return optuna.samplers.GPSampler(
        seed=seed,
        n_startup_trials=STARTUP,
        independent_sampler=_tpe(optuna, spec, seed),
        warn_independent_sampling=False,
    )


def _distribution(optuna: Any, parameter: Parameter) -> Any:
    kinds, log = optuna.distributions, is_log(parameter)
    match parameter.type:
        case ParameterType.DOUBLE:
            return kinds.FloatDistribution(parameter.low, parameter.high, log=log)
        case ParameterType.INTEGER:
            return kinds.IntDistribution(int(parameter.low), int(parameter.high), log=log)
        case ParameterType.DISCRETE:
            return kinds.IntDistribution(0, len(parameter.values) - 1)
        case ParameterType.CATEGORICAL:
            return kinds.CategoricalDistribution(list(parameter.categories))


def _draw(trial: Any, name: str, parameter: Parameter) -> float | int | str:
    log = is_log(parameter)
    match parameter.type:
        case ParameterType.DOUBLE:
            return trial.suggest_float(name, parameter.low, parameter.high, log=log)
        case ParameterType.INTEGER:
            return trial.suggest_int(name, int(parameter.low), int(parameter.high), log=log)
        case ParameterType.DISCRETE:
            return trial.suggest_int(name, 0, len(parameter.values) - 1)
        case ParameterType.CATEGORICAL:
            return trial.suggest_categorical(name, list(parameter.categories))
