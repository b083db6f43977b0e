"""Hostile programs at every isolation level: each is confined as in the table of docs/security.md."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from tests.e2e.hostile.attack_setup import MEMORY, OWN, STAGED, STAGING, AttackSetup, open_attack_setup
from tests.e2e.hostile.attacks import Attack, MemoryUse, attack, memory_use_of
from tests.e2e.hostile.table import (
    BEGIN,
    COLUMNS,
    END,
    HELD,
    ROWS,
    VARIES,
    WARM_ROWS,
    Column,
    render_table,
    strongest,
)
from tests.e2e.hostile.warm import FORKED, SERVICE, WarmAttackSetup
from tests.e2e.running import ROOT

pytestmark = pytest.mark.e2e
_MAX_UNCONFINED_MIB = {"touched": 8 * (MEMORY >> 20), "unmapped": 2 * (MEMORY >> 20)}
"""MiB at which an unconfined program stops."""


@dataclass(frozen=True)
class AttackRun:
    """A service after the attacks. `memory_uses`: results of programs that used too much memory, by kind."""

    column: Column
    setup: AttackSetup
    attack: Attack
    memory_uses: dict[str, MemoryUse]
    kernel: bool


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (column, kind),
            # The default start of programs.
            marks=[] if column in strongest() and kind is AttackSetup else [pytest.mark.soak],
            id=column.name + output,
        )
        for kind, output in ((AttackSetup, ""), (WarmAttackSetup, ", begun warm"))
        for column in COLUMNS
        # Without namespaces there are no forks.
        if kind is AttackSetup or column.level != "session"
    ],
)
def attack_run(request: pytest.FixtureRequest) -> Iterator[AttackRun]:
    column, kind = cast("tuple[Column, type[AttackSetup]]", request.param)
    program = ("-c", SERVICE) if kind is WarmAttackSetup else ("-m", "trainshed")
    with open_attack_setup(column, kind, program) as setup:
        setup.open()
        engine = setup.service.call("GET", "/trainshed/v1/status")["engine"]
        assert engine["isolation"] == column.level
        # Memory attacks run in parallel with the attacker: their limits are independent.
        eaters = {
            how: setup.submit(OWN, "memory_hog", how, str(most)) for how, most in _MAX_UNCONFINED_MIB.items()
        }
        result = attack(setup)
        memory_uses = {how: memory_use_of(setup, job) for how, job in eaters.items()}
        yield AttackRun(column, setup, result, memory_uses, engine["memory_limit"] == "kernel")


def test_every_attack_has_the_documented_result(attack_run: AttackRun) -> None:
    """spec/program#isolation: no access to the service's own files, other jobs' files, or other projects'
    buckets, enforced by the kernel at the isolation levels that can.
    """
    wrong: list[str] = []
    if isinstance(attack_run.setup, WarmAttackSetup):
        assert {row.attempt for row in WARM_ROWS} <= attack_run.attack.verdicts.keys()
    for row in (*ROWS, *WARM_ROWS):
        got = attack_run.attack.verdicts.get(row.attempt)
        expected = row.expected_outcome(attack_run.column)
        if got is not None and expected is not VARIES and (expected is HELD) == bool(got):
            wrong.append(f"{row.attempt}: should be {expected}, got {got!r} {attack_run.attack.why}")
    assert not wrong, "\n".join(wrong)


def test_every_program_of_the_attack_on_warm_starts_is_started_warm(attack_run: AttackRun) -> None:
    """spec/program#warm-starts: the attacker's second incarnation too, because otherwise the attempts prove
    nothing.
    """
    number = attack_run.setup.printed_value(attack_run.attack.job, "PROCESS")
    assert (int(number) in FORKED) == isinstance(attack_run.setup, WarmAttackSetup)
    if not isinstance(attack_run.setup, WarmAttackSetup):
        return
    began = {job: attack_run.setup.beginnings(job) for job in attack_run.setup.jobs}
    assert len(began[attack_run.attack.job]) == 2
    wrong = [text for texts in began.values() for text in texts if "started warm" not in text]
    assert all(began.values()) and not wrong, began


def test_attack_program_succeeds_on_its_own_resources(attack_run: AttackRun) -> None:
    """The same operations succeed on the attacker's own resources, so the attempts fail for lack of
    permission.
    """
    assert set(attack_run.attack.controls.values()) == {200}, attack_run.attack.controls


def test_program_that_exceeds_its_memory_limit_is_ended(attack_run: AttackRun) -> None:
    """spec/failures#out-of-memory."""
    meal = attack_run.memory_uses["touched"]
    assert not meal.has_survived
    assert "out-of-memory" in meal.error["message"] or "memory" in meal.error["message"], meal.error
    if attack_run.kernel:
        assert meal.peak < MEMORY


def test_program_with_unmapped_memory_is_ended_only_if_the_kernel_counts_that_memory(
    attack_run: AttackRun,
) -> None:
    assert attack_run.memory_uses["unmapped"].has_survived is not attack_run.kernel


def test_flood_of_output_does_not_grow_the_shims_memory(attack_run: AttackRun) -> None:
    """spec/logs#lines: every line of every replica; an endless line is truncated."""
    assert 0 < attack_run.attack.log_memory < 64 << 20
    assert attack_run.attack.error["code"] == 3, "it ended as it wished"


def test_attack_changes_neither_jobs_nor_objects_of_the_attacked_project(attack_run: AttackRun) -> None:
    """The other project's job continues, its object is unchanged, and the service answers."""
    service = attack_run.setup.service
    assert service.process.poll() is None
    states = {
        job["name"]: job["state"]
        for job in service.call("GET", "/trainshed/v1/jobs?project=attacked-project")["jobs"]
    }
    # Successful jobs created the preloaders.
    result = sorted(state for state in states.values() if state != "SUCCEEDED")
    assert result == ["FAILED", "RUNNING"], states
    listed = service.call("GET", "/storage/v1/b/attacked/o")["items"]
    assert [item["name"] for item in listed] == ["secret"]
    assert [service.read(bucket, STAGED) for bucket in STAGING[:2]] == [b"theirs", b"theirs"]
    there = {item["name"] for item in service.call("GET", "/storage/v1/b")["items"]}
    assert there.isdisjoint(STAGING[2:])


def test_docs_show_the_table_of_tested_attacks() -> None:
    """The page shows the isolation table. After a change: put `table.shown()` between the marks."""
    page = (ROOT / "docs" / "security.md").read_text()
    begin, end = page.index(BEGIN), page.index(END) + len(END) + 1
    assert page[begin:end] == render_table()
