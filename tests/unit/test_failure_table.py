"""The failure table (spec/failures#budgets): rows, order, budgets, public codes and messages."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, exit_record
from trainshed.core.failure.evidence import CLUSTER_LOSSES, Cause, Evidence
from trainshed.core.failure.rules import Effect, Spent, judge
from trainshed.core.failure.table import RULES
from trainshed.core.job import ExitRecord
from trainshed.core.names import Api, JobName, ReplicaId

VERTEX = JobName(Api.VERTEX, "demo", "us-central1", "42")
PRIMARY, WORKER, REDUCER = ReplicaId(0, 0), ReplicaId(1, 2), ReplicaId(2, 0)
FRESH = Spent(now=CREATED)


def evidence_of(
    record: ExitRecord, *, replica: ReplicaId = PRIMARY, name: JobName = VERTEX, is_package: bool = True
) -> Evidence:
    cause = Cause.EXITED if record.signal is None else Cause.SIGNALLED
    if record.oom:
        cause = Cause.OUT_OF_MEMORY
    if record.out_of_disk:
        cause = Cause.OUT_OF_DISK
    reducer = replica == REDUCER
    return Evidence(cause, name, replica, record, is_package=is_package, is_reducer=reducer)


def evidence_without_record(cause: Cause, replica: ReplicaId | None = None) -> Evidence:
    """Return evidence of an end without an exit record."""
    reducer = replica == REDUCER
    return Evidence(cause, VERTEX, replica, is_reducer=reducer, text="because", region="us-central1")


EXAMPLES = [
    (evidence_of(exit_record(0)), "primary_succeeded", Effect.JOB_SUCCEEDS),
    (evidence_of(exit_record(0), replica=WORKER), "replica_completed", Effect.REPLICA_DONE),
    (evidence_of(exit_record(0), replica=REDUCER), "replica_completed", Effect.REPLICA_DONE),
    (evidence_of(exit_record(1), replica=REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS),
    (evidence_of(exit_record(signal=11), replica=REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS),
    (evidence_of(exit_record(signal=9, oom=True), replica=REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS),
    (evidence_without_record(Cause.LOST, REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS),
    (evidence_without_record(Cause.SERVICE, REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS),
    (evidence_of(exit_record(signal=9, oom=True)), "out_of_memory", Effect.JOB_FAILS),
    (evidence_of(exit_record(137, oom=True)), "out_of_memory", Effect.JOB_FAILS),
    (evidence_of(replace(exit_record(signal=9), out_of_disk=True)), "out_of_disk", Effect.JOB_FAILS),
    (evidence_without_record(Cause.OUT_OF_DISK, REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS),
    *((evidence_of(exit_record(code)), "transient_exit", Effect.JOB_RETRIES) for code in (6, 134, 11, 139)),
    *((evidence_of(exit_record(signal=number)), "transient_exit", Effect.JOB_RETRIES) for number in (6, 11)),
    *(
        (evidence_of(exit_record(signal=number), replica=WORKER), "replica_lost", Effect.REPLICA_RESTARTS)
        for number in (9, 15)
    ),
    *(
        (evidence_without_record(cause, WORKER), "replica_lost", Effect.REPLICA_RESTARTS)
        for cause in (Cause.LOST, Cause.LEFT, Cause.STALLED)
    ),
    *(
        (evidence_of(exit_record(code)), "user_code_failed", Effect.JOB_FAILS)
        for code in (1, 2, 9, 15, 127, 129, 130, 135, 136, 137, 143, 255)
    ),
    *(
        (evidence_of(exit_record(signal=number)), "user_code_failed", Effect.JOB_FAILS)
        for number in (1, 2, 4, 7, 8, 13)
    ),
    *(
        (evidence_without_record(cause, WORKER), cause.value, Effect.REPLICA_RESTARTS)
        for cause in (
            Cause.NODE_FAILED,
            Cause.AGENT_LOST,
            Cause.ALLOCATION_REVOKED,
            Cause.ALLOCATION_EXPIRED,
            Cause.POD_EVICTED,
        )
    ),
    (evidence_without_record(Cause.CLUSTER_PREEMPTED, WORKER), "cluster_preempted", Effect.JOB_RETRIES),
    *(
        (evidence_without_record(loss, REDUCER), "reducer_lost", Effect.REPLICA_RESTARTS)
        for loss in (*CLUSTER_LOSSES, Cause.LOST, Cause.OUT_OF_MEMORY, Cause.OUT_OF_DISK)
    ),
    (evidence_without_record(Cause.PACKAGE), "package_failed", Effect.JOB_FAILS),
    (evidence_without_record(Cause.DATA), "data_failed", Effect.JOB_FAILS),
    (evidence_without_record(Cause.REJECTED), "launch_rejected", Effect.JOB_FAILS),
    (evidence_without_record(Cause.STOCK_OUT), "stock_out", Effect.JOB_RETRIES),
    (evidence_without_record(Cause.SERVICE), "internal_error", Effect.JOB_RETRIES),
    (evidence_without_record(Cause.SERVICE, WORKER), "internal_error", Effect.JOB_RETRIES),
    (evidence_without_record(Cause.PREEMPTED), "preempted", Effect.JOB_RETRIES),
    (evidence_without_record(Cause.BUDGET), "budget_used_up", Effect.JOB_RETRIES),
    (evidence_without_record(Cause.CANCELLED), "cancelled", Effect.JOB_CANCELLED),
]


def all_evidence() -> Iterator[Evidence]:
    """Yield every possible kind of evidence."""
    for replica in (PRIMARY, WORKER, REDUCER):
        for code in range(256):
            yield evidence_of(exit_record(code), replica=replica)
        for number in range(1, 65):
            yield evidence_of(exit_record(signal=number), replica=replica)
        for cause in (Cause.OUT_OF_MEMORY, Cause.OUT_OF_DISK, Cause.STALLED, Cause.LEFT):
            yield evidence_without_record(cause, replica)
        for cause in (*CLUSTER_LOSSES, Cause.LOST, Cause.SERVICE):
            yield evidence_without_record(cause, replica)
    alone = {Cause.SERVICE, Cause.PACKAGE, Cause.DATA, Cause.REJECTED, Cause.STOCK_OUT}
    for cause in (*alone, Cause.PREEMPTED, Cause.BUDGET, Cause.CANCELLED):
        yield evidence_without_record(cause)


def test_first_matching_failure_rule_decides() -> None:
    """spec/failures#rules: each row in its order has examples."""
    for seen, rule, effect in EXAMPLES:
        verdict = judge(seen, FRESH, RULES)
        assert (verdict.rule.name, verdict.effect) == (rule, effect), seen
        assert (verdict.error is not None) == (effect in (Effect.JOB_FAILS, Effect.JOB_CANCELLED))


def test_every_failure_rule_has_an_example_and_is_reachable() -> None:
    """spec/failures#rules: each row decides at least one kind of evidence, and every kind has a row."""
    assert [rule.name for rule in RULES] == list(dict.fromkeys(rule.name for rule in RULES))
    assert {rule for _, rule, _ in EXAMPLES} == {rule.name for rule in RULES}
    assert {judge(seen, FRESH, RULES).rule.name for seen in all_evidence()} == {rule.name for rule in RULES}


def test_every_failure_cause_has_a_rule() -> None:
    causes = {cause for rule in RULES for cause in rule.match.causes}
    assert causes == set(Cause)


@pytest.mark.parametrize(
    ("record", "is_package", "status"),
    [
        (exit_record(1), True, 1),
        (exit_record(143), False, 143),
        (exit_record(signal=6), True, 6),
        (exit_record(signal=6), False, 134),
        (exit_record(signal=11), True, 11),
        (exit_record(signal=11), False, 139),
        (exit_record(signal=7), False, 135),
    ],
)
def test_exit_status_of_a_signal_is_128_higher_for_container_jobs(
    record: ExitRecord, is_package: bool, status: int
) -> None:
    """spec/failures#crashes: package jobs report 6 and 11, custom containers report 134 and 139."""
    spent = Spent(CREATED, retries=(("transient_exit", 3),))
    error = judge(evidence_of(record, is_package=is_package), spent, RULES).error
    assert error is not None and error.status == status
    assert f"exited with a non-zero status of {status}. Termination reason: Error." in error.message


def test_error_of_a_job_with_an_unavailable_image_starts_with_the_cause() -> None:
    """spec/failures#service-failures: no program ran, so there is no exit status."""
    lacking = replace(
        evidence_without_record(Cause.PACKAGE), text="The image x:1 is nowhere.", is_package=False
    )
    error = judge(lacking, FRESH, RULES).error
    assert error is not None
    assert error.message.startswith("The image x:1 is nowhere.\nTo find out more ")
    error = judge(replace(lacking, is_package=True), FRESH, RULES).error
    assert error is not None and "status of 1. Termination reason" in error.message


def test_job_error_shows_the_message_field_of_json_lines() -> None:
    """spec/failures#messages: the error contains the last log lines in the same form as the log
    (spec/logs#lines)."""
    log = '{"severity": "ERROR", "message": "no batch"}\n{"loss": 0.3}\n{"message": 7}\n{broken}'
    error = judge(evidence_of(exit_record(1, tail=log)), FRESH, RULES).error
    assert error is not None
    assert '\nno batch\n{"loss": 0.3}\n{"message": 7}\n{broken}\n' in error.message
    assert error.tail == log
    error = judge(evidence_of(exit_record(1, tail=f"ValueError: rows\n{'x' * 5000}")), FRESH, RULES).error
    assert error is not None and f"Error. \n…{'x' * 2000}\n" in error.message
    assert error.reason == "ValueError: rows"
