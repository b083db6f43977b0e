"""The machine compared with an independent implementation of spec/lifecycle#end and spec/failures, over
random lives of jobs.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests.sim.operator_rules import draw_operator_rules
from tests.sim.traces import Life
from trainshed.core.failure.table import RULES
from trainshed.core.lifecycle.transition import FailurePolicy

BLOCKS, LIVES = 7, 300
_WILD = (662, 458, 543, 203, 343, 546, 886, 618, 855, 897, 1118, 912)
"""Seeds of lives that exhaust rarely exhausted budgets, checked first."""


def soak_blocks(first: int, end: int) -> list[Any]:
    """Return parameters of blocks of lives that only run in `./dev test-all`."""
    return [pytest.param(block, marks=pytest.mark.soak) for block in range(first, end)]


@cache
def compare_random_life(seed: int, *, with_operator_rules: bool = False) -> tuple[str, str, set[str], float]:
    """Compare machine and reference over one random life of a job, optionally with an operator's rules.

    Returns:
        The differences, the rule of its end, the rules of its continuations, and the growth of its memory.
    """
    life = Life(seed, operator_rules=draw_operator_rules(f"of {seed}") if with_operator_rules else None)
    judge = life.live()
    restarts = [spent for replica in life.job.replicas for spent in replica.restarts]
    continuations = {rule for rule, _ in (*life.job.retries, *restarts)}
    ended = life.job.outcome.rule if life.job.outcome else ""
    return (judge.history_text() if judge.differences else "", ended, continuations, life.job.memory_factor)


@pytest.mark.parametrize("block", [*range(3), *soak_blocks(3, BLOCKS)])
def test_job_state_machine_equals_the_reference_model_at_every_step(block: int) -> None:
    """spec/lifecycle, spec/failures: final state, public code, message, restarts and retries of every cause,
    for any order of reports.
    """
    for seed in range(block * LIVES, (block + 1) * LIVES):
        differences = compare_random_life(seed)[0]
        assert not differences, f"seed {seed}\n{differences}"


@pytest.mark.parametrize("block", [*range(2), *soak_blocks(2, 4)])
def test_job_state_machine_equals_the_reference_model_with_failure_rules_of_operators(block: int) -> None:
    """spec/failures#out-of-memory, "overridable by an operator": other budgets, dropped rows, new rows,
    growing memory.
    """
    for seed in range(block * LIVES, (block + 1) * LIVES):
        differences = compare_random_life(seed, with_operator_rules=True)[0]
        assert not differences, f"seed {seed}, {draw_operator_rules(f'of {seed}')}\n{differences}"


def test_random_job_histories_use_every_failure_rule_of_operators() -> None:
    """The lives above must reach the operator's rules, so that the comparison covers them."""
    lives = [compare_random_life(seed, with_operator_rules=True) for seed in range(2 * LIVES)]
    met = set[str]().union(*({ended, *continuations} for _, ended, continuations, _ in lives))
    assert met >= {"bad_device", "bus_error", "hung", "pod_evicted", "out_of_memory", "user_code_failed"}
    assert len({growth for *_, growth in lives}) > 2


def _off_by_one() -> Iterator[tuple[str, FailurePolicy]]:
    """Yield the failure table with each budget changed by plus and minus one."""
    yield "attempts+1", FailurePolicy(max_attempts=11)
    yield "attempts-1", FailurePolicy(max_attempts=9)
    for index, rule in enumerate(RULES):
        for budget in ("restarts", "retries"):
            for change in (1, -1):
                if value := getattr(rule, budget):
                    planted = replace(rule, **{budget: value + change})
                    rules = (*RULES[:index], planted, *RULES[index + 1 :])
                    yield f"{rule.name}.{budget}{change:+}", FailurePolicy(rules)


@pytest.mark.parametrize(("name", "policy"), [pytest.param(*p, id=p[0]) for p in _off_by_one()])
def test_reference_model_comparison_detects_a_retry_budget_that_is_off_by_one(
    name: str, policy: FailurePolicy
) -> None:
    """spec/failures#budgets: the budgets are exact, and the lives are varied enough to show it."""
    seeds = (*_WILD, *range(3000))
    assert any(Life(seed, policy).live().differences for seed in seeds), name


def test_random_job_histories_contain_every_possible_outcome() -> None:
    """The lives above must have all possible outcomes, so that the comparison covers them."""
    rules = {compare_random_life(seed)[1] for seed in range(LIVES)}
    assert rules >= {
        "primary_succeeded",
        "transient_exit",
        "replica_lost",
        "node_failed",
        "agent_lost",
        "pod_evicted",
        "allocation_revoked",
        "allocation_expired",
        "cluster_preempted",
        "out_of_memory",
        "user_code_failed",
        "package_failed",
        "data_failed",
        "launch_rejected",
        "internal_error",
        "stock_out",
        "preempted",
        "budget_used_up",
        "cancelled_user",
    }
