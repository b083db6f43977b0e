"""Moments of a node whose clock is wrong, as the service has them (docs/adr/0165)."""

import pytest

from trainshed.core.job.exits import ExitRecord
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaNoted, ReplicaStarted
from trainshed.core.names import ReplicaId
from trainshed_cluster.remote.clocks import Reading, told_skew
from trainshed_cluster.slurm.node_doctor import told_clock

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
R = ReplicaId(0, 0)


@pytest.mark.parametrize("skew", [-7200, 0, 7200])
def test_moments_are_told_by_the_services_clock(skew: int) -> None:
    theirs = NOW + skew * SECOND
    reading = Reading(theirs, NOW)
    started = ReplicaStarted(1, R, 1, theirs - 5 * SECOND)
    assert reading.of(started).at == NOW - 5 * SECOND
    noted = ReplicaNoted(1, R, 1, 1, theirs, "disk_full", "INFO", "text")
    assert reading.of(noted).at == NOW
    record = ExitRecord(
        exit_code=0, signal=None, oom=False, started=theirs - 9 * SECOND, ended=theirs - SECOND
    )
    told = reading.of(ReplicaExited(1, R, 1, record)).exit
    assert (told.started, told.ended) == (NOW - 9 * SECOND, NOW - SECOND)


def test_a_moment_that_is_reported_twice_is_the_same_however_long_the_message_took() -> None:
    for skew in (-7200, 0, 7200):
        began = NOW + skew * SECOND
        readings = [
            Reading(began + 9 * SECOND - late, NOW + 9 * SECOND) for late in (0, SECOND, 4 * SECOND)
        ]
        assert len({reading.ours_at(began) for reading in readings}) == 1


def test_what_is_not_known_stays_as_it_was() -> None:
    assert Reading(0, NOW).ours_at(17) == 17, "its clock is not known"
    assert Reading(NOW, NOW).ours_at(0) == 0, "a program that never began"
    assert Reading(NOW - 60 * SECOND, NOW).ours_at(NOW) == NOW, "set back since"


def test_only_a_clock_that_is_off_is_told() -> None:
    assert told_skew(-7200.4) == "its clock is 7200 s behind the service's"
    assert told_skew(60) == "its clock is 60 s ahead of the service's"
    assert told_skew(9) == told_skew(-9) == ""


def test_the_doctor_allows_for_the_time_that_a_command_takes() -> None:
    """docs/adr/0165: a node's clock is compared with when it was asked and when it had answered."""
    assert told_clock(1000.0, 995.0, 1200.0) == []
    assert told_clock(990.0, 995.0, 1200.0) == []
    (behind,) = told_clock(100.0, 995.0, 1200.0)
    (ahead,) = told_clock(8400.0, 995.0, 1200.0)
    assert behind.startswith("its clock is 895 s behind the service's")
    assert ahead.startswith("its clock is 7200 s ahead of the service's")
