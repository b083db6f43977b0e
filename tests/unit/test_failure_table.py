"""The failure table (SPEC §2.1): rows, order, public codes and messages."""

import pytest

from tests.unit.jobs import exited
from trainshed.core.failure import RULES, Effect, Evidence, judge, logs_link
from trainshed.core.lifecycle.records import ExitRecord
from trainshed.core.names import Api, JobName, ReplicaId

VERTEX = JobName(Api.VERTEX, "demo", "us-central1", "42")
ML = JobName(Api.ML, "demo", "", "my_job")
PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 2)


def evidence(
    exit_record: ExitRecord | None,
    *,
    replica: ReplicaId = PRIMARY,
    name: JobName = VERTEX,
    is_package: bool = True,
    by_service: bool = False,
) -> Evidence:
    return Evidence(name, replica, is_package, exit_record, "its node went away", by_service)


@pytest.mark.parametrize(
    ("seen", "rule", "effect"),
    [
        (evidence(exited(0)), "primary_succeeded", Effect.JOB_SUCCEEDS),
        (evidence(exited(0), replica=WORKER), "replica_completed", Effect.REPLICA_DONE),
        (evidence(exited(signal=9, oom=True)), "out_of_memory", Effect.JOB_FAILS),
        (evidence(exited(1)), "user_code_failed", Effect.JOB_FAILS),
        (evidence(exited(signal=11), replica=WORKER), "user_code_failed", Effect.JOB_FAILS),
        (evidence(None, by_service=True), "internal_error", Effect.JOB_FAILS),
        (evidence(None), "replica_lost", Effect.JOB_FAILS),
    ],
)
def test_the_first_row_that_matches_decides(seen: Evidence, rule: str, effect: Effect) -> None:
    verdict = judge(seen)
    assert (verdict.rule, verdict.effect) == (rule, effect)
    assert (verdict.error is not None) == (effect is Effect.JOB_FAILS)


def test_no_row_is_shadowed_and_every_failing_row_has_a_public_code() -> None:
    cases = [
        evidence(record, replica=replica)
        for replica in (PRIMARY, WORKER)
        for record in (None, exited(0), exited(1), exited(signal=9, oom=True), exited(signal=6))
    ]
    cases.append(evidence(None, by_service=True))
    assert {judge(case).rule for case in cases} == {rule.name for rule in RULES}
    assert all(rule.code for rule in RULES if rule.effect is Effect.JOB_FAILS)


def test_a_failure_of_the_service_is_published_as_an_internal_error() -> None:
    """SPEC §2.1: the service itself failed."""
    error = judge(evidence(None, by_service=True)).error
    assert error is not None
    assert (error.code, error.message) == (13, "Internal error occurred for the current attempt")


@pytest.mark.parametrize(
    ("record", "is_package", "status"),
    [
        (exited(1), True, 1),
        (exited(signal=6), True, 6),
        (exited(signal=6), False, 134),
        (exited(signal=11), True, 11),
        (exited(signal=11), False, 139),
    ],
)
def test_signals_are_published_bare_for_packages_and_plus_128_for_containers(
    record: ExitRecord, is_package: bool, status: int
) -> None:
    """SPEC §2.1, third row from the public table."""
    error = judge(evidence(record, is_package=is_package)).error
    assert error is not None
    assert f"exited with a non-zero status of {status}. Termination reason: Error." in error.message


def test_the_out_of_memory_message_is_the_public_one() -> None:
    error = judge(evidence(exited(signal=9, oom=True), name=ML, replica=WORKER)).error
    assert error is not None
    assert (error.code, error.message) == (
        3,
        "The replica worker 2 ran out of memory and exited with a non-zero status of 137.",
    )


def test_the_user_code_message_carries_the_last_lines_and_a_link() -> None:
    record = exited(1, tail="Traceback (most recent call last):\nValueError: bad batch size\n")
    error = judge(evidence(record)).error
    assert error is not None
    assert "ValueError: bad batch size" in error.message
    assert error.message.endswith(logs_link(VERTEX))
    assert "job_id%2F42" in error.message
