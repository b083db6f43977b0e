"""Descriptions of Slurm's reasons: `trainshed_cluster.slurm.snapshot`."""

import pytest

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed_cluster.slurm.queries import list_pending
from trainshed_cluster.slurm.records import Job, Pending
from trainshed_cluster.slurm.snapshot import (
    MAX_ESTIMATE,
    cause_of_end,
    count_before,
    delay_of,
    reason_in_words,
)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("None", None),
        ("", None),
        ("Resources", "the required resources are in use"),
        ("Priority", "other jobs have priority"),
        ("ReqNodeNotAvail", "a required node is not available"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-3]", "a required node is not available: node[1-3]"),
        (
            "ReqNodeNotAvail, Reserved for maintenance",
            "a required node is not available: Reserved for maintenance",
        ),
        ("QOSMaxCpuPerUserLimit", "a limit of the QOS"),
        ("AssocGrpCPUMinutesLimit", "a limit of the account"),
        ("SomethingNew", "for another reason"),
    ],
)
def test_slurm_wait_reason_is_described_in_words(reason: str, words: str | None) -> None:
    assert reason_in_words(reason) == words


def job(reason: str = "Priority", starts: int | None = None, nodes: int = 1) -> Job:
    return Job(7, "a", "PENDING", nodes, 1, 1, (), (), starts, 0, reason)


def test_wait_message_contains_the_reason_and_the_start_estimate_of_slurm() -> None:
    assert delay_of(job(), None, 100) == Delay(
        WaitReason.CLUSTER,
        "Slurm has not granted its node yet: other jobs have priority (Priority)",
        word="Priority",
    )
    seen = delay_of(job("Resources", 160, nodes=3), 4, 100)
    assert seen is not None
    assert (
        seen.message == "Slurm has not granted its 3 nodes yet: the required resources are in use (Resources)"
    )
    assert (seen.position, seen.expected) == (5, 160 * 10**9)
    assert delay_of(job("None"), 0, 100) is None, "Slurm has not examined it yet"


@pytest.mark.parametrize(
    ("starts", "is_shown"),
    [
        (None, False),
        (60, False),
        (100, False),
        (101, True),
        (100 + MAX_ESTIMATE, True),
        # Behind a job without a time limit, which has just started or has run for months.
        (100 + 365 * 86400, False),
        (100 + 200 * 86400, False),
    ],
)
def test_past_and_placeholder_start_estimates_are_omitted(starts: int | None, is_shown: bool) -> None:
    delay = delay_of(job("Resources", starts), 4, 100)
    assert delay is not None and (delay.expected is not None) == is_shown


def test_queue_position_counts_jobs_in_shared_partitions() -> None:
    fields = [
        ("7", "100", "main"),
        ("8_[1-9]", "100", "main"),
        ("5", "100", "main"),
        ("9", "200", "hi,main"),
        ("6", "900", "other"),
        ("3", "0", "main"),
    ]
    query = list_pending()
    pending = query.read("".join(query.separator.join((*line, "\n")) for line in fields))
    assert pending[3] == Pending(9, 200, ("hi", "main"))
    assert count_before(job(), pending) == 2
    assert count_before(job(), ()) is None


@pytest.mark.parametrize(
    ("state", "loss"),
    [
        ("CANCELLED", Cause.ALLOCATION_REVOKED),
        ("TIMEOUT", Cause.ALLOCATION_EXPIRED),
        ("DEADLINE", Cause.ALLOCATION_EXPIRED),
        ("PREEMPTED", Cause.CLUSTER_PREEMPTED),
        ("NODE_FAIL", Cause.NODE_FAILED),
        ("BOOT_FAIL", Cause.NODE_FAILED),
        ("COMPLETED", None),
        ("FAILED", None),
    ],
)
def test_cause_of_an_allocation_end_is_derived_from_its_slurm_state(state: str, loss: Cause | None) -> None:
    ending = cause_of_end(Job(7, "a", state, 1, 1, 1, (), (), 0, 0, "None"))
    assert (ending and ending.loss) == loss
    assert ending is None or ending.why.endswith(f"({state})")
