"""Failure rules of the operator: valid fields, precedence, and one error that lists all faults."""

import tomllib
from typing import Any

import pytest

from tests.failure_entries import complete_entry, toml
from tests.unit.jobs import PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.failure.rules import Rule
from trainshed.core.failure.table import RULES, WrongRules, table_with
from trainshed.core.lifecycle.transition import FailurePolicy


def table(text: str) -> tuple[Rule, ...]:
    return table_with(entries(text))


def entries(text: str) -> list[dict[str, Any]]:
    return tomllib.loads(text).get("failure_rules", [])


def row(name: str, rules: tuple[Rule, ...]) -> Rule:
    return next(rule for rule in rules if rule.name == name)


def life(text: str, *counts: int) -> Life:
    return Life(job(*counts), FailurePolicy(table(text))).up()


def violations(text: str) -> tuple[str, ...]:
    with pytest.raises(WrongRules) as raised:
        table(text)
    return raised.value.violations


def test_failure_rule_with_a_built_in_name_overrides_that_rule() -> None:
    """spec/failures#overrides: the operator can override rules."""
    changed = table(
        """
        [[failure_rules]]
        name = "stock_out"
        causes = ["stock_out"]
        action = "fail"
        code = 8
        message = "stock_out"
        retries = 5
        back_off = [10, 60.5]
        gives_room = true
        """
    )
    after = row("stock_out", changed)
    assert (after.retries, after.back_off) == (5, (10 * SECOND, 60_500_000_000))
    assert not after.unstoppable, "a row has no fields that the entry does not set"
    assert [rule for rule in changed if rule is not after] == list(RULES)


def test_new_failure_rule_precedes_the_built_in_failure_rules() -> None:
    """spec/failures#rules: the first matching rule decides."""
    text = """
        [[failure_rules]]
        name = "bad_node"
        causes = ["exited", "signalled"]
        exit_codes = [42, "64-66"]
        signals = ["SIGBUS", "fpe", 4]
        action = "fail"
        code = 3
        message = "user_code"
        restarts = 2
        """
    rules = table(text)
    names = [rule.name for rule in rules]
    assert names.index("bad_node") == names.index("out_of_memory") - 1
    made = row("bad_node", rules)
    assert (made.match.exit_codes, made.match.signals) == ({42, 64, 65, 66}, {4, 7, 8})
    subject = life(text, 1, 1).exits(WORKER, 65)
    assert subject.rules == ["bad_node"]
    assert subject.replica(WORKER).incarnation == 2
    for _ in range(2):
        subject.up().exits(WORKER, signal=7)
    error = subject.up().job.error
    assert error is not None and error.code == 3
    assert "The replica workerpool1-0 exited with a non-zero status of 7." in error.message


def test_new_failure_rule_can_set_its_position_and_its_error_message() -> None:
    rules = table(
        """
        [[failure_rules]]
        name = "licence_missing"
        before = "primary_succeeded"
        causes = ["exited"]
        exit_codes = [77]
        action = "fail"
        code = 9
        text = "{replica} has no licence (status {status})."
        """
    )
    assert rules[0].name == "licence_missing"
    subject = Life(job(), FailurePolicy(rules)).up().exits(PRIMARY, 77)
    assert subject.job.error is not None
    assert (subject.job.error.code, subject.job.error.message) == (
        9,
        "workerpool0-0 has no licence (status 77).",
    )


def test_failure_rule_for_an_exit_code_can_use_the_package_error_message() -> None:
    rules = table(toml("user_code_failed", exit_codes=[77], message="package"))
    error = Life(job(module=None), FailurePolicy(rules)).up().exits(PRIMARY, 77).job.error
    assert error is not None and error.message.startswith("To find out more ")


def test_built_in_failure_rule_applies_if_the_override_does_not_match() -> None:
    text = toml("user_code_failed", exit_codes=[7], restarts=1)
    restarts = [life(text, 1, 1).exits(WORKER, code).replica(WORKER).restarts for code in (7, 8)]
    assert restarts == [(("user_code_failed", 1),), ()]


def test_error_of_failure_rules_lists_all_faults_with_field_names() -> None:
    """docs/failure-table.md: one fault does not hide another."""
    faults = violations(
        """
        [[failure_rules]]
        name = "Bad Name"
        before = "nobody"
        [[failure_rules]]
        name = "stock_out"
        retries = -1
        gives_room = "no"
        colour = "red"
        [[failure_rules]]
        name = "mine"
        causes = ["exited"]
        exit_codes = [300]
        signals = ["SIGNOT"]
        action = "explode"
        [[failure_rules]]
        name = "out_of_memory"
        causes = ["out_of_memory"]
        action = "fail"
        """
    )
    assert [text.split(": ")[0] for text in faults] == [
        "failure_rules[0].name",
        "failure_rules[0].causes",
        "failure_rules[0].action",
        "failure_rules[0].before",
        'failure_rules "stock_out".retries',
        'failure_rules "stock_out".gives_room',
        'failure_rules "stock_out".colour',
        'failure_rules "stock_out".causes',
        'failure_rules "stock_out".action',
        'failure_rules "mine".exit_codes',
        'failure_rules "mine".signals',
        'failure_rules "mine".action',
        'failure_rules "out_of_memory".code',
        'failure_rules "out_of_memory".message',
    ]
    assert "unknown field; the fields are name, before, causes" in faults[6]
    assert "'explode' is not one of succeed, done, fail" in faults[11]


@pytest.mark.parametrize(
    ("name", "changes", "fault"),
    [
        ("mine", {"action": "fail"}, "causes: required; set a list of exited"),
        ("mine", {"causes": []}, "causes: [] is not a list of"),
        ("mine", {"causes": ["cancelled"]}, "causes: ['cancelled'] is not a list of"),
        ("user_code_failed", {"action": "done"}, "action: a job cannot continue without"),
        ("internal_error", {"action": "succeed"}, 'action: "succeed" requires that a replica ended'),
        ("mine", {"before": "nobody"}, "before: the row 'nobody' does not exist"),
        ("user_code_failed", {"text": "{job} is over"}, "text: '{job} is over' is not a text, in"),
        ("stock_out", {"gives_room": False}, "gives_room: the job has no capacity"),
        ("stock_out", {"restarts": 1}, "restarts: no single replica ended"),
        ("cancelled", {}, "name: cancellations do not use the failure table"),
        ("out_of_memory", {"memory_growth": 0.5}, "memory_growth: 0.5 is not a factor"),
        ("out_of_memory", {"window": float("inf"), "restarts": 1}, "window: inf is not a number"),
        ("out_of_memory", {"code": 99}, "code: 99 is not a google.rpc code"),
        ("out_of_memory", {"retries": True}, "retries: True is not a whole number"),
    ],
)
def test_contradictory_failure_rule_is_rejected(name: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(WrongRules) as raised:
        table_with([complete_entry(name, **changes)])
    assert any(fault in text for text in raised.value.violations), raised.value.violations


def test_duplicate_failure_rule_names_are_rejected() -> None:
    entry = toml("stock_out")
    assert violations(entry + entry) == (
        'failure_rules "stock_out".name: an earlier entry has the same name; merge the two entries',
    )
