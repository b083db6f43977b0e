"""Programs that mean harm, on Slurm's nodes, by the identity of the service and of its jobs: each is held as
the table says that docs/slurm.md shows."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.running import ROOT
from tests.slurm.hostile_table import BEGIN, END, HELD, ROWS, VARIES, shown
from tests.slurm.lab import SlurmLab
from tests.slurm.siege import IDENTITIES, Siege, SlurmYard, besieged

__all__ = ["commons", "gate"]


@pytest.fixture(
    scope="module",
    params=[pytest.param((identity, SlurmYard), id=identity.title) for identity in IDENTITIES],
)
def siege(slurm_lab: SlurmLab, request: pytest.FixtureRequest) -> Iterator[Siege]:
    with besieged(slurm_lab, *request.param) as siege:
        yield siege


@pytest.mark.soak  # The levels themselves: e2e/test_hostile.py.
def test_every_attempt_has_the_result_of_the_table(siege: Siege) -> None:
    """spec/program#isolation."""
    verdicts = siege.attack.verdicts | siege.verdicts
    why = siege.attack.why | siege.why
    wrong: list[str] = []
    for row in ROWS:
        got = verdicts.get(row.attempt)
        expected = row.says[IDENTITIES.index(siege.identity)]
        if got is not None and expected is not VARIES and (expected is HELD) == bool(got):
            wrong.append(f"{row.attempt}: should be {expected}, got {got!r} {why.get(row.attempt)}")
    tried = {row.attempt for row in ROWS}
    wrong += [f"{attempt}: is in no row" for attempt in verdicts.keys() - tried]
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_attacker_can_use_its_own_resources(siege: Siege) -> None:
    """The other attempts fail for whose things they are, not for how they are made."""
    assert set(siege.attack.controls.values()) == {200}, siege.attack.controls


@pytest.mark.soak
def test_nothing_is_left_on_the_node(siege: Siege) -> None:
    """Whatever the program made there, however deep."""
    assert siege.left == ()


def test_the_page_shows_the_table_that_is_tested() -> None:
    """After a change: put `hostile_table.shown()` between the marks."""
    page = (ROOT / "docs" / "slurm.md").read_text()
    begin, end = page.index(BEGIN), page.index(END) + len(END) + 1
    assert page[begin:end] == shown()
