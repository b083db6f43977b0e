"""The lease of an agent (its maximum time without contact to the service), the service's death timeout
(spec/invariants#one-incarnation) and the conversion of times of a node with a wrong clock (docs/adr/0165).
"""

import pytest

from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaNoted, ReplicaStarted
from trainshed.core.names import ReplicaId
from trainshed_cluster.remote.clocks import Reading, skew_message
from trainshed_cluster.remote.lease import LAST_GRACE, Lease, beat_interval, death_timeout, remaining_grace


def test_lease_is_renewed_from_the_time_at_which_the_acknowledged_heartbeat_was_sent() -> None:
    lease = Lease(90, now=0)
    assert lease.until == 90
    first, second, third = lease.next_number(10), lease.next_number(20), lease.next_number(30)
    lease.acknowledge(second)
    assert lease.until == 110
    # Earlier beats are acknowledged as well, and have no effect anymore.
    lease.acknowledge(first)
    assert lease.until == 110
    lease.acknowledge(third)
    assert lease.until == 120
    lease.acknowledge(99)
    assert lease.until == 120


def test_service_that_acknowledges_no_heartbeats_counts_as_unreachable() -> None:
    lease = Lease(90, now=0)
    words = [lease.next_number(10.0 * number) for number in range(4)]
    assert lease.is_unacknowledged
    lease.acknowledge(words[0])
    assert not lease.is_unacknowledged
    lease.next_number(50)
    lease.restart(said_at=60)
    assert not lease.is_unacknowledged
    # Time to reconnect remains before the lease (the agent's maximum time without contact) ends.
    assert 5 * beat_interval(90) < 90


def test_heartbeat_of_an_earlier_connection_does_not_renew_the_lease() -> None:
    lease = Lease(90, now=0)
    word = lease.next_number(10)
    lease.restart(said_at=12)
    lease.acknowledge(word)
    assert lease.until == 102


@pytest.mark.parametrize(
    ("now", "grace"), [(90, LAST_GRACE), (91, LAST_GRACE - 1), (93, 0), (95, 0), (1000, 0)]
)
def test_grace_period_is_shortened_by_the_time_since_the_lease_expired(now: float, grace: float) -> None:
    assert remaining_grace(90, now) == grace


@pytest.mark.parametrize("seconds", [5.0, 36.0, 90.0, 300.0])
def test_replicas_are_reported_lost_only_after_their_programs_must_have_ended(seconds: float) -> None:
    assert death_timeout(seconds) > seconds + LAST_GRACE
    # Two beats may be lost.
    assert 3 * beat_interval(seconds) < seconds


SECOND = 10**9
NOW = 1_700_000_000 * SECOND
REPLICA = ReplicaId(0, 0)


@pytest.mark.parametrize("skew", [-7200, 0, 7200])
def test_event_times_of_a_node_are_converted_to_the_clock_of_the_service(skew: int) -> None:
    theirs = NOW + skew * SECOND
    reading = Reading(theirs, NOW)
    started = ReplicaStarted(1, REPLICA, 1, theirs - 5 * SECOND)
    assert reading.of(started).at == NOW - 5 * SECOND
    noted = ReplicaNoted(1, REPLICA, 1, 1, theirs, "disk_full", "INFO", "text")
    assert reading.of(noted).at == NOW
    record = ExitRecord(
        exit_code=0, signal=None, oom=False, started=theirs - 9 * SECOND, ended=theirs - SECOND
    )
    exit_record = reading.of(ReplicaExited(1, REPLICA, 1, record)).exit
    assert (exit_record.started, exit_record.ended) == (NOW - 9 * SECOND, NOW - SECOND)


def test_repeated_event_report_has_the_same_time_despite_network_delays() -> None:
    for skew in (-7200, 0, 7200):
        began = NOW + skew * SECOND
        readings = [Reading(began + 9 * SECOND - late, NOW + 9 * SECOND) for late in (0, SECOND, 4 * SECOND)]
        assert len({reading.ours_at(began) for reading in readings}) == 1


def test_event_times_that_cannot_be_converted_are_returned_unchanged() -> None:
    assert Reading(None, NOW).ours_at(17) == 17, "its clock is unknown"
    assert Reading(NOW, NOW).ours_at(0) == 0, "a program that never started"
    assert Reading(NOW - 60 * SECOND, NOW).ours_at(NOW) == NOW, "the clock was set back"


def test_node_clock_is_reported_only_if_it_differs_much_from_the_service_clock() -> None:
    assert skew_message(-7200.4) == "its clock is 7200 s behind the service's"
    assert skew_message(60) == "its clock is 60 s ahead of the service's"
    assert skew_message(9) is skew_message(-9) is None
