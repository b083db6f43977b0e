"""Finds the algorithm that serves a study. Loads numpy and scipy only when asked.

The service itself imports only `port` and what is free of numpy from this package: suggestions are computed
in a process of their own.
"""

from typing import assert_never

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.studies.port import Algorithm


def algorithm_for(name: AlgorithmName) -> Algorithm:
    """Return the algorithm that a study asks for."""
    match name:
        case AlgorithmName.RANDOM_SEARCH:
            from trainshed.studies.random_search import RandomSearch

            return RandomSearch()
        case AlgorithmName.GRID_SEARCH:
            from trainshed.studies.random_search import GridSearch

            return GridSearch()
        case AlgorithmName.DEFAULT:
            from trainshed.studies.gp.bandit import GaussianProcessBandit

            return GaussianProcessBandit()
        case _:
            assert_never(name)
