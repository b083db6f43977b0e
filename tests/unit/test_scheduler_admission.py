"""Admission in relaxed capacity mode (SPEC §2)."""

from hypothesis import given
from hypothesis import strategies as st

from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.admission import QueuedJob, Snapshot, plan


def gang(size: int) -> tuple[ReplicaId, ...]:
    return (ReplicaId(0, 0), *(ReplicaId(1, i) for i in range(size - 1)))


queued_jobs = st.lists(
    st.builds(
        QueuedJob,
        uid=st.integers(1, 10**6).map(JobUid),
        priority=st.integers(0, 1000),
        created=st.integers(0, 10**6),
        replicas=st.integers(1, 20).map(gang),
    ),
    max_size=30,
    unique_by=lambda job: job.uid,
)


@given(queued_jobs, st.integers(1, 5))
def test_every_job_is_admitted_whole_by_priority_then_age(jobs: list[QueuedJob], n: int) -> None:
    nodes = tuple(f"node-{i}" for i in range(n))
    admitted = plan(Snapshot(tuple(jobs), nodes))
    by_uid = {job.uid: job for job in jobs}
    assert {admit.uid for admit in admitted} == set(by_uid)
    keys = [(-by_uid[a.uid].priority, by_uid[a.uid].created, a.uid) for a in admitted]
    assert keys == sorted(keys)
    for admit in admitted:
        assert tuple(replica for replica, _ in admit.nodes) == by_uid[admit.uid].replicas
        shares = [sum(node == name for _, node in admit.nodes) for name in nodes]
        assert max(shares) - min(shares) <= 1


def test_without_nodes_everything_waits() -> None:
    waiting = QueuedJob(JobUid(1), 0, 0, gang(1))
    assert plan(Snapshot((waiting,), ())) == ()
