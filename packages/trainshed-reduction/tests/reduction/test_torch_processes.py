"""What a program does with its processes and groups: nothing is left of a group that ended, and ranks that a
program spawns speak for it (spec/reduction)."""

import json
from pathlib import Path

import pytest

from tests.e2e.nursery import Nursery
from tests.reduction.programs import environment, run_one, run_ranks, with_reducers
from tests.reduction.reducers import Reducers
from trainshed.runtimes import reduction_distribution as distribution
from trainshed_reduction import variables


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    distribution.unpack(path)
    return path


@pytest.mark.soak  # test_every_collective_is_right_and_sums_are_exact makes groups again.
def test_nothing_is_left_of_a_group_that_ended(torch_python: Path, site: Path) -> None:
    """spec/reduction: as without reducers the store's server ends with the group; else the next group meets
    at the old one's."""
    with Reducers(1) as reducers:
        environ = with_reducers(reducers.addresses)
        ended = run_ranks(torch_python, "made_again.py", 2, environment(site, **environ))
    assert [(rank.status, rank.output) for rank in ended] == [(0, "gone\n"), (0, "")]
    assert "1 reducer" in ended[0].said[0]


@pytest.mark.soak  # Nodes: test_torch.py; a replica's reports: tests/contract/replica/test_reduction.py.
@pytest.mark.parametrize("node_first", ["0", "1"])
def test_spawned_ranks_speak_for_their_program(
    torch_python: Path, site: Path, tmp_path: Path, node_first: str
) -> None:
    """spec/reduction#reports: no rank writes over what another one reports, and the program does not say that
    reducers were idle. Those of a replica share its link, though no launcher says so, and sum among
    themselves first."""
    report = tmp_path / "report"
    with Reducers(1) as reducers:
        environ = with_reducers(reducers.addresses, **{variables.REPORT_FILE: str(report)})
        environ[variables.NODE_FIRST] = node_first
        ended = run_ranks(torch_python, "spawned.py", 2, environment(site, **environ))
    assert [(rank.status, rank.output) for rank in ended] == [(0, "ok\n")] * 2
    notes = {note["id"]: note["text"] for note in json.loads(report.read_text())["notes"]}
    assert "1 reducer" in notes["mode"]
    assert ("after a sum within each of 2 nodes" in notes["mode"]) is (node_first == "1")
    assert "idle" not in notes


@pytest.mark.soak  # What is decided: packages/trainshed-reduction/tests/reduction/unit/test_choice.py.
def test_reducers_that_are_switched_off_are_told_of(
    torch_python: Path, torch_nursery: Nursery, site: Path, tmp_path: Path
) -> None:
    """spec/reduction#frameworks: never silently idle, for the reducers can only say that nobody comes."""
    report = tmp_path / "report"
    environ = with_reducers((("127.0.0.1", 1),), **{variables.REPORT_FILE: str(report)})
    environ[variables.MODE] = "off"
    ended = run_one(torch_python, ["imports.py"], environment(site, **environ), torch_nursery)
    assert (ended.status, ended.errors) == (0, "")
    (note,) = json.loads(report.read_text())["notes"]
    assert note["text"] == "native all-reduce is used: TRAINSHED_REDUCTION is off"
