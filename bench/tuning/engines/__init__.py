"""The service's default algorithm, and algorithms of other projects with the same interface, for
comparison."""

import enum
from importlib import import_module

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.studies.advisor_process import algorithm_for
from trainshed.studies.port import Algorithm


class Engine(enum.StrEnum):
    """The algorithm of a study with default settings: the service's own algorithm, or a library's."""

    GP_BANDIT = "gp-bandit"
    OPTUNA_TPE = "optuna-tpe"
    OPTUNA_GP = "optuna-gp"


def algorithm_of(engine: Engine) -> Algorithm:
    """Return the engine's algorithm. Raises ImportError if its library is not installed."""
    match engine:
        case Engine.GP_BANDIT:
            return algorithm_for(AlgorithmName.DEFAULT)
        case Engine.OPTUNA_TPE | Engine.OPTUNA_GP:
            return import_module("bench.tuning.engines.optuna").algorithm(engine)
