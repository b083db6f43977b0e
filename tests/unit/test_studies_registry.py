"""Which algorithm serves which study, and that the room costs the service nothing."""

import subprocess
import sys

import pytest

from trainshed.core.study.spec import Algorithm
from trainshed.studies import registry
from trainshed.studies.gp.bandit import GaussianProcessBandit
from trainshed.studies.port import EngineMissing, EngineName
from trainshed.studies.random_search import GridSearch, RandomSearch
from trainshed.studies.registry import algorithm_for


def test_each_study_gets_what_it_asks_for() -> None:
    """facts/tuning#ml: the default is Bayesian; an engine counts for the default only."""
    assert isinstance(algorithm_for(Algorithm.DEFAULT), GaussianProcessBandit)
    assert isinstance(algorithm_for(Algorithm.GRID_SEARCH, EngineName.VIZIER), GridSearch)
    assert isinstance(algorithm_for(Algorithm.RANDOM_SEARCH, EngineName.OPTUNA_GP), RandomSearch)


@pytest.mark.parametrize(
    ("engine", "extra"),
    [
        (EngineName.OPTUNA_TPE, "optuna"),
        (EngineName.OPTUNA_GP, "optuna"),
        (EngineName.VIZIER, "vizier"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    engine: EngineName, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr(registry, "import_module", absent)
    with pytest.raises(EngineMissing) as missing:
        algorithm_for(Algorithm.DEFAULT, engine)
    for part in (engine.value, extra, "No module named", "tuning_engine"):
        assert part in str(missing.value)


def test_importing_the_room_loads_no_numpy() -> None:
    """The service imports the port and the registry; numbers are for the process that suggests."""
    code = (
        "import sys, trainshed.studies, trainshed.studies.port, trainshed.studies.registry;"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
