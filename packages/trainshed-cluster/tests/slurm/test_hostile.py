"""Programs that mean harm, on Slurm's nodes, by the identity of the service and of its jobs: each is held as
the table says that docs/slurm.md shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import commons, gate
from tests.e2e.running import ROOT, Service, submit
from tests.e2e.stories import BEGUN, PRIMARY, at, pools, story_of, until
from tests.e2e.test_failure_rows import MEMORY_MIB, WAITS
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
def test_every_attempt_comes_to_what_the_table_says(siege: Siege) -> None:
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
def test_what_is_its_own_is_open_to_it(siege: Siege) -> None:
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


GREEDY = {
    "at once": "x = bytearray({much} << 20)",
    "by its children": """
import os, signal
for _ in range(8):
    if os.fork() == 0:
        x = bytearray({much} << 18)
        signal.pause()
os.wait()
raise SystemExit(3)
""",
    "in shared memory": """
import os
file = os.open('/dev/shm/much', os.O_RDWR | os.O_CREAT)
while True:
    os.write(file, bytes(1 << 20))
""",
}
"""What takes more memory than its replica may have, and ends of it."""


@pytest.mark.soak  # The rows: test_service_rows.py.
@pytest.mark.parametrize("how", GREEDY)
def test_who_takes_more_memory_than_is_his_hurts_nobody_else(
    slurm_lab: SlurmLab, slurm_service: Service, gate: Path, how: str
) -> None:
    """spec/failures#out-of-memory, on a node that others share, with the kernel's limit of the replica within
    Slurm's of the allocation: programs of his are ended, and neither an agent nor a neighbour."""
    others = [node for node in slurm_lab.nodes if node != "node2"]
    for node in others:
        slurm_service.call("POST", f"/trainshed/v1/nodes/{node}:drain", {})
    try:
        neighbour = submit(slurm_service, pools(at(gate)))
        log = slurm_service.follow(neighbour, PRIMARY)
        until(log, BEGUN)
        greedy = submit(slurm_service, pools(WAITS, GREEDY[how].format(much=3 * MEMORY_MIB)))
        seen = story_of(slurm_service, greedy)
        assert (seen.state, seen.code) == ("FAILED", 3), seen.public
        messages = "\n".join(entry["message"] for entry in seen.entries)
        assert "memory" in messages, messages
        assert not seen.of_kind("replica_lost"), "an agent, or a shim, was lost"
    finally:
        for node in others:
            slurm_service.call("POST", f"/trainshed/v1/nodes/{node}:undrain", {})
    gate.write_text("")
    well = story_of(slurm_service, neighbour)
    assert well.state == "SUCCEEDED" and well.begun == {PRIMARY: 1} and not well.verdicts
