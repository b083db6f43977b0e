"""Hostile programs on Slurm's nodes, for each identity of the service and of its jobs. The table in
docs/slurm.md shows which attacks are prevented."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.running import ROOT
from tests.slurm.attacks import IDENTITIES, AttackResults, SlurmYard, attacked_service
from tests.slurm.hostile_table import BEGIN, END, HELD, ROWS, VARIES, documented_table
from tests.slurm.lab import SlurmLab

__all__ = ["commons", "gate"]


@pytest.fixture(
    scope="module", params=[pytest.param((identity, SlurmYard), id=identity.title) for identity in IDENTITIES]
)
def attack_results(slurm_lab: SlurmLab, request: pytest.FixtureRequest) -> Iterator[AttackResults]:
    with attacked_service(slurm_lab, *request.param) as attack_results:
        yield attack_results


@pytest.mark.soak  # e2e/test_hostile.py tests the levels
def test_every_attack_has_the_documented_result(attack_results: AttackResults) -> None:
    """spec/program#isolation."""
    verdicts = attack_results.attack.verdicts | attack_results.verdicts
    why = attack_results.attack.why | attack_results.why
    wrong: list[str] = []
    for row in ROWS:
        got = verdicts.get(row.attempt)
        expected = row.says[IDENTITIES.index(attack_results.identity)]
        if got is not None and expected is not VARIES and (expected is HELD) == bool(got):
            wrong.append(f"{row.attempt}: should be {expected}, got {got!r} {why.get(row.attempt)}")
    tried = {row.attempt for row in ROWS}
    wrong += [f"{attempt}: is in no row" for attempt in verdicts.keys() - tried]
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_attack_program_succeeds_on_its_own_resources(attack_results: AttackResults) -> None:
    """This shows that the other attacks fail because another user owns their targets, not because of an error
    in the attack's code."""
    assert set(attack_results.attack.controls.values()) == {200}, attack_results.attack.controls


@pytest.mark.soak
def test_attack_leaves_no_files_on_the_node(attack_results: AttackResults) -> None:
    """Files of the program are removed at any depth."""
    assert attack_results.leftovers == ()


def test_docs_show_the_table_of_tested_attacks() -> None:
    """After a change, copy `hostile_table.documented_table()` between the marks."""
    page = (ROOT / "docs" / "slurm.md").read_text()
    begin, end = page.index(BEGIN), page.index(END) + len(END) + 1
    assert page[begin:end] == documented_table()
