"""What messages call the reducers that a worker is connected to."""

from trainshed_reduction.client.lanes import Lane


def test_a_worker_s_own_reducer_is_called_so() -> None:
    """spec/reduction#hybrid: in hybrid mode a reducer of worker pool 2 and one that runs beside a worker are
    looked for in different places."""
    address = ("10.0.0.2", 2222)
    assert str(Lane(1, address)) == "reducer 10.0.0.2:2222"
    assert str(Lane(4, address, owner=2)) == "rank 2's own reducer 10.0.0.2:2222"


def test_a_complaint_says_what_is_known_of_a_lane() -> None:
    """spec/reduction#reports: a reducer that has let the worker in has a connection, whether or not it has
    said for whom it waits."""
    lane = Lane(1, ("10.0.0.2", 2222))
    assert lane.complaint() == "no connection to reducer 10.0.0.2:2222: it does not answer"
    lane.is_greeted = True
    assert lane.complaint() == "reducer 10.0.0.2:2222: it has not said yet whom it waits for"
    lane.status = "waiting 2 s for rank 1"
    assert lane.complaint() == "reducer 10.0.0.2:2222: waiting 2 s for rank 1"
