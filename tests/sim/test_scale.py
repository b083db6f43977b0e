"""The measuring of the controller's room, at a small size: its figures are worth nothing if the room is not
as it says."""

from tests.sim.scale import Hall


def test_the_hall_is_filled_overflows_and_lets_others_in() -> None:
    """Most jobs wait when the nodes are full, and whoever waits is told why and where it stands."""
    hall = Hall(40, 400)
    took = hall.measure()
    assert 20 < hall.admitted < 200
    assert set(took) >= {"put: a job that is new", "why", "position", "preflight", "a node's state"}
    waiting = [
        uid for uid, job in hall.jobs.items() if not job.is_placed and not job.state.is_final
    ]
    assert all(hall.room.position(uid) for uid in waiting[-50:])
    assert all(hall.room.why(uid, hall.now) for uid in waiting[-50:])
