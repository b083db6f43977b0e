"""Starvation: crowded worlds, and the waiting time bound of `starvation` for every job in them."""

import pytest

from tests.sim.simulation import Simulation, simulate
from tests.sim.starvation import crowded_scenario, starved_jobs
from trainshed.scheduler import planning

CROWDS = 3


@pytest.mark.parametrize("seed", [*range(CROWDS), 26])
def test_every_job_is_admitted_within_its_maximum_waiting_time(seed: int) -> None:
    """spec/queue#order: small jobs may be backfilled but never starve a large job."""
    world = simulate(crowded_scenario(seed))
    assert not late_in(world)
    waited = max(world.books.admissions[job.uid] - job.created for job in world.books.jobs.values())
    assert waited > world.scenario.policy.patience, (
        "no job waited longer than the limit, so the test proves nothing"
    )


def test_scheduler_without_reserved_capacity_exceeds_the_maximum_waiting_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This test proves that the starvation check can fail."""
    monkeypatch.setattr(planning, "MAX_RESERVATIONS", 0)
    assert any(late_in(Simulation(crowded_scenario(seed)).run()) for seed in range(CROWDS))


def late_in(world: Simulation) -> list[str]:
    return list(starved_jobs(world.books.jobs, world.books.admissions, world.scenario.policy.patience))
