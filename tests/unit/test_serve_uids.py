"""Tests that job UIDs ascend, are unique and cannot be guessed."""

from trainshed.serve.clock import JobUids, now


def test_job_uids_ascend_with_time_and_cannot_be_guessed() -> None:
    make = JobUids()
    before = now() // 1_000_000
    uids = [make() for _ in range(2_000)]
    assert uids == sorted(set(uids))
    assert before <= uids[0] >> 22 and uids[-1] >> 22 <= now() // 1_000_000 + 1
    # The first UID of each millisecond contains random bits.
    firsts = {uid >> 22: uid & (2**22 - 1) for uid in reversed(uids)}
    other = JobUids()
    assert len({*firsts.values(), other() & (2**22 - 1), JobUids()() & (2**22 - 1)}) > 2
