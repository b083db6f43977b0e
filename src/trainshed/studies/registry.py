"""Finds the algorithm that serves a study. Loads numpy, scipy and the optional libraries only when asked.

The service itself imports only `port` and what is free of numpy from this package: suggestions are computed
in a process of their own.
"""

from importlib import import_module
from typing import assert_never

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.studies.port import Algorithm, EngineMissing, EngineName

_EXTRAS = {
    EngineName.OPTUNA_TPE: ("trainshed.studies.engines.optuna", "optuna"),
    EngineName.OPTUNA_GP: ("trainshed.studies.engines.optuna", "optuna"),
    EngineName.VIZIER: ("trainshed.studies.engines.vizier", "vizier"),
}
"""Module and extra (of the distribution) of the engines that need a library of their own."""


def algorithm_for(name: AlgorithmName, engine: EngineName = EngineName.GP_BANDIT) -> Algorithm:
    """Return the algorithm that a study asks for; `engine` counts for the default one only.

    Raises EngineMissing.
    """
    match name:
        case AlgorithmName.RANDOM_SEARCH:
            from trainshed.studies.random_search import RandomSearch

            return RandomSearch()
        case AlgorithmName.GRID_SEARCH:
            from trainshed.studies.random_search import GridSearch

            return GridSearch()
        case AlgorithmName.DEFAULT:
            return _default(engine)
        case _:
            assert_never(name)


def _default(engine: EngineName) -> Algorithm:
    if engine is EngineName.GP_BANDIT:
        from trainshed.studies.gp.bandit import GaussianProcessBandit

        return GaussianProcessBandit()
    module, extra = _EXTRAS[engine]
    try:
        return import_module(module).algorithm(engine)
    except ImportError as missing:
        raise EngineMissing(
            f"The tuning engine {engine.value} cannot be used: {missing}. Install trainshed[{extra}], or set"
            f" tuning_engine to {EngineName.GP_BANDIT.value}."
        ) from missing
