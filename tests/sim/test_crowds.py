"""Nobody waits for ever: crowded worlds, and the bound of `crowds` for every job in them."""

import pytest

from tests.sim.crowds import crowd, starved
from tests.sim.universe import Universe
from trainshed.scheduler import planning

CROWDS = 3


@pytest.mark.parametrize("seed", [*range(CROWDS), 26])
def test_every_job_is_admitted_within_its_bound(seed: int) -> None:
    """spec/queue#order: small jobs may be backfilled but never starve a big one."""
    lived = lived_through(seed)
    assert not lived.wrong, lived.wrong[0]
    assert not late_in(lived)
    waited = max(lived.books.admitted[job.uid] - job.created for job in lived.books.jobs.values())
    assert waited > lived.scenario.policy.patience, "nobody was in need of it"


def test_a_scheduler_that_keeps_no_room_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail."""
    monkeypatch.setattr(planning, "MAX_RESERVATIONS", 0)
    assert any(late_in(lived_through(seed)) for seed in range(CROWDS))


def lived_through(seed: int) -> Universe:
    return Universe(crowd(seed)).run()


def late_in(lived: Universe) -> list[str]:
    return list(starved(lived.books.jobs, lived.books.admitted, lived.scenario.policy.patience))
