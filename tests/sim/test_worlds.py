"""The whole control plane over virtual time: random worlds, and a crash at every commit of a small one."""

from dataclasses import replace

import pytest

from tests.sim.scenario import Scenario, scenario
from tests.sim.universe import Universe
from tests.unit.jobs import CREATED, SECOND
from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.turn import FailurePolicy, Step

WORLDS = 40
SMALL = (3, 14, 41)
"""Seeds of small worlds that differ in what happens in them."""


@pytest.mark.parametrize("block", range(8))
def test_nothing_is_lost_in_any_world(block: int) -> None:
    """SPEC §2, §2.1, DESIGN §3: no cancel or submission lost, no quota or node exceeded, never two incarnations, budgets
    exact, all slots given back, every job ends; with services, nodes, shims and zygotes that die at random."""
    for seed in range(block * WORLDS // 8, (block + 1) * WORLDS // 8):
        lived = Universe(scenario(seed)).run()
        assert not lived.wrong, f"seed {seed}: {lived.wrong[0]}"


@pytest.mark.parametrize("seed", SMALL)
@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
def test_a_service_may_die_at_every_commit(seed: int, stored: bool) -> None:
    """DESIGN §3.7, §6: killed just before or just after each commit of a small world in turn, nothing is different."""
    world = small(seed)
    commits = Universe(world).run().tally.commits
    assert commits > 20
    for number in range(1, commits + 1):
        lived = Universe(replace(world, crash_commits=((number, stored),))).run()
        assert lived.tally.crashes == 1
        assert not lived.wrong, f"commit {number}: {lived.wrong[0]}"


def test_a_service_that_dies_at_every_third_commit_gets_through() -> None:
    """It makes progress between any two deaths, so it ends."""
    world = small(SMALL[0])
    crashes = tuple((number, number % 2 == 0) for number in range(3, 600, 3))
    lived = Universe(replace(world, crash_commits=crashes)).run()
    assert not lived.wrong, lived.wrong[0]
    assert lived.tally.crashes > 5


def test_what_happened_is_told_by_the_tally() -> None:
    lived = Universe(small(SMALL[0])).run()
    assert lived.tally.jobs == sum(lived.tally.ends.values())
    assert lived.tally.virtual_ns > 60 * SECOND


def test_a_quota_that_is_ignored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: a service that does not see a quota breaks it."""
    world = Universe(small(SMALL[0]))
    for project in ("ada", "bob", "eve"):
        world.books.quotas[QuotaKey(project, "us-central1", "pd_ssd_gb")] = 1
    world.books.quotas_since = CREATED - 3600 * SECOND
    assert any("pd_ssd_gb" in wrong for wrong in world.run().wrong)


class _Deaf(Universe):
    """A service that does not hear its users' cancels."""

    def _step(self, job: Job, event: Event, now: int, policy: FailurePolicy | None = None) -> Step:
        if isinstance(event, CancelRequested) and event.cause is CancelCause.USER:
            return Step(job)
        return super()._step(job, event, now, policy)


def test_a_cancel_that_is_lost_is_noticed() -> None:
    """The checks can fail: SPEC §2, an accepted cancel is never lost."""
    lived = (_Deaf(scenario(seed)).run() for seed in range(20))
    assert any("was cancelled at" in wrong for world in lived for wrong in world.wrong)


def small(seed: int) -> Scenario:
    """A few jobs and everything that may happen to them, but no crash."""
    return replace(scenario(seed, jobs=4), crash_commits=(), crash_times=(), downs=(SECOND,))


@pytest.mark.parametrize("seed", [5025, 5099])
def test_a_replica_without_a_place_is_not_placed_while_its_attempt_is_shut_down(seed: int) -> None:
    """It would be decided, and ignored, without end. (Found as an endless loop in these worlds.)"""
    lived = Universe(scenario(seed)).run()
    assert not lived.wrong, lived.wrong[0]
