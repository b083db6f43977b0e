"""Admission in relaxed capacity mode (SPEC §2)."""

from hypothesis import given
from hypothesis import strategies as st

from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.admission import QueuedJob, Snapshot, plan


def gang(size: int) -> tuple[ReplicaId, ...]:
    return (ReplicaId(0, 0), *(ReplicaId(1, i) for i in range(size - 1)))


queues = st.lists(
    st.builds(
        QueuedJob,
        uid=st.integers(1, 10**6).map(JobUid),
        priority=st.integers(0, 1000),
        created=st.integers(0, 10**6),
        replicas=st.integers(1, 20).map(gang),
    ),
    max_size=30,
    unique_by=lambda job: job.uid,
).map(lambda jobs: sorted(jobs, key=lambda job: job.rank))


@given(queues, st.integers(1, 5), st.integers(0, 40), st.integers(1, 40))
def test_gangs_are_placed_whole_in_order_and_within_the_limit(
    queued: list[QueuedJob], nodes: int, running: int, limit: int
) -> None:
    names = tuple(f"node-{i}" for i in range(nodes))
    admitted = plan(Snapshot(queued, names, running, limit))
    assert [a.uid for a in admitted] == [job.uid for job in queued[: len(admitted)]]
    for admit, job in zip(admitted, queued, strict=False):
        assert tuple(replica for replica, _ in admit.nodes) == job.replicas
        shares = [sum(node == name for _, node in admit.nodes) for name in names]
        assert max(shares) - min(shares) <= 1
    placed = sum(len(admit.nodes) for admit in admitted)
    alone = running == 0 and len(admitted) == 1
    assert not admitted or alone or running + placed <= limit


@given(queues.filter(bool))
def test_an_idle_host_always_starts_the_first_job(queued: list[QueuedJob]) -> None:
    """SPEC §2: any valid spec runs on what the host has, however large."""
    assert plan(Snapshot(queued, ("node-0",), 0, 1))[0].uid == queued[0].uid


def test_without_nodes_everything_waits() -> None:
    waiting = QueuedJob(JobUid(1), 0, 0, gang(1))
    assert plan(Snapshot((waiting,), (), 0, 8)) == ()
