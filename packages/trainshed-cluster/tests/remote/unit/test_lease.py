"""The time of an agent and that of its service: which is over first (spec/invariants#one-incarnation).
Moments of a node whose clock is wrong, as the service has them (docs/adr/0165)."""

import pytest

from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaNoted, ReplicaStarted
from trainshed.core.names import ReplicaId
from trainshed_cluster.remote.clocks import Reading, told_skew
from trainshed_cluster.remote.lease import LAST_GRACE, Lease, beat, last_grace, longest_silence


def test_a_lease_runs_from_when_the_word_was_said_that_the_service_has_heard() -> None:
    lease = Lease(90, now=0)
    assert lease.until == 90
    first, second, third = lease.say(10), lease.say(20), lease.say(30)
    lease.acknowledge(second)
    assert lease.until == 110
    # What was said before it was heard as well, and counts no more.
    lease.acknowledge(first)
    assert lease.until == 110
    lease.acknowledge(third)
    assert lease.until == 120
    lease.acknowledge(99)
    assert lease.until == 120


def test_a_service_that_answers_no_word_is_out_of_reach() -> None:
    lease = Lease(90, now=0)
    words = [lease.say(10.0 * number) for number in range(4)]
    assert lease.is_unheard
    lease.acknowledge(words[0])
    assert not lease.is_unheard
    lease.say(50)
    lease.begin_anew(said_at=60)
    assert not lease.is_unheard
    # Before the lease is over there is time to dial again.
    assert 5 * beat(90) < 90


def test_a_word_of_an_earlier_connection_renews_nothing() -> None:
    lease = Lease(90, now=0)
    word = lease.say(10)
    lease.begin_anew(said_at=12)
    lease.acknowledge(word)
    assert lease.until == 102


@pytest.mark.parametrize(
    ("now", "grace"), [(90, LAST_GRACE), (91, LAST_GRACE - 1), (93, 0), (95, 0), (1000, 0)]
)
def test_grace_time_ends_before_the_service_counts_the_programs_as_dead(
    now: float, grace: float
) -> None:
    assert last_grace(90, now) == grace


@pytest.mark.parametrize("seconds", [5.0, 36.0, 90.0, 300.0])
def test_the_service_waits_for_longer_than_programs_can_live(seconds: float) -> None:
    assert longest_silence(seconds) > seconds + LAST_GRACE
    # Two of its words may be lost.
    assert 3 * beat(seconds) < seconds


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
    exit_record = reading.of(ReplicaExited(1, R, 1, record)).exit
    assert (exit_record.started, exit_record.ended) == (NOW - 9 * SECOND, NOW - SECOND)


def test_a_moment_that_is_reported_twice_is_the_same_however_long_the_message_took() -> None:
    for skew in (-7200, 0, 7200):
        began = NOW + skew * SECOND
        readings = [
            Reading(began + 9 * SECOND - late, NOW + 9 * SECOND) for late in (0, SECOND, 4 * SECOND)
        ]
        assert len({reading.ours_at(began) for reading in readings}) == 1


def test_what_is_not_known_stays_as_it_was() -> None:
    assert Reading(None, NOW).ours_at(17) == 17, "its clock is not known"
    assert Reading(NOW, NOW).ours_at(0) == 0, "a program that never began"
    assert Reading(NOW - 60 * SECOND, NOW).ours_at(NOW) == NOW, "set back since"


def test_only_a_clock_that_is_off_is_told() -> None:
    assert told_skew(-7200.4) == "its clock is 7200 s behind the service's"
    assert told_skew(60) == "its clock is 60 s ahead of the service's"
    assert told_skew(9) is told_skew(-9) is None
