"""Which algorithm serves which study, and that the room costs the service nothing."""

import subprocess
import sys

from trainshed.core.study.spec import Algorithm
from trainshed.studies.advisor_process import algorithm_for
from trainshed.studies.gp.bandit import GaussianProcessBandit
from trainshed.studies.random_search import GridSearch, RandomSearch


def test_each_study_gets_what_it_asks_for() -> None:
    """facts/tuning#ml: the default is Bayesian."""
    assert isinstance(algorithm_for(Algorithm.DEFAULT), GaussianProcessBandit)
    assert isinstance(algorithm_for(Algorithm.GRID_SEARCH), GridSearch)
    assert isinstance(algorithm_for(Algorithm.RANDOM_SEARCH), RandomSearch)


def test_importing_the_room_loads_no_numpy() -> None:
    """The service imports the port and the registry; numbers are for the process that suggests."""
    code = (
        "import sys, trainshed.studies, trainshed.studies.port, trainshed.studies.advisor_process;"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
