"""The benchmark of the Reduction Server: its data and checks, its theory, its verdicts, its tables and its
plot."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.reduction import __main__ as command
from bench.reduction import data, faults, plot, tables
from bench.reduction.cases import CASES, MIB, Case, Task
from bench.reduction.faults import Finding
from bench.reduction.figures import Comparison, comparisons, theory
from bench.reduction.measuring import Sample, Series
from bench.reduction.processes import SideFailed
from bench.reduction.running import Results, kept
from bench.reduction.sides import REDUCERS

TASK = Task("32 MiB fp32", 32 * MIB, target=1.45)
CASE = Case("4+4", 4, 4, 200, (TASK,), 1, wire=1.02)


def sample(seconds: float, sent: float = 1.003, **more: object) -> Sample:
    nbytes = TASK.nbytes
    plain = Sample(
        [seconds] * 3, sent * nbytes, 1.045 * sent * nbytes, 0.1, 0.2, 0.5, True, 1e-6, 1e-7, ["x"]
    )
    return replace(plain, **more)  # pyright: ignore[reportArgumentType]: fields by name


def compared(gloo: Sample, ours: Sample, case: Case = CASE) -> Comparison:
    rounds = [
        {side: {case.tasks[0].key: one}} for side, one in (("gloo", gloo), ("reducers", ours))
    ]
    joined = [{**rounds[0], **rounds[1]}]
    (found,) = comparisons(case, Results(case.name, {"machine": "m"}, joined), "reducers")
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_sum_in_the_order_of_ranks_is_known_for_every_operation(dtype: str) -> None:
    """spec/reduction#exactness: what the benchmark takes for right, against sums that are made here element
    by element."""
    world, nbytes, number = 3, 4096, 7
    inputs: list[data.Array] = []
    for rank in range(world):
        own = data.drawn(rank, nbytes, dtype)
        inputs.append(np.empty_like(own))
        data.rotate(inputs[-1], own, number)
    right = data.expected(world, nbytes, dtype)
    if dtype == "bfloat16":
        wide = [(each.astype(np.uint32) << 16).view(np.float32) for each in inputs]
        bits = (wide[0] + wide[1] + wide[2]).view(np.uint32)
        low = bits & 0xFFFF
        up = (low > 0x8000) | ((low == 0x8000) & ((bits >> 16) & 1 == 1))
        result = ((bits >> 16) + up).astype(np.uint16)
    else:
        total = inputs[0].astype(np.float32)
        for each in inputs[1:]:
            total = total + each.astype(np.float32)
        result = total.astype(inputs[0].dtype)
    found = data.compare(result, dtype, number, right)
    assert found.ordered
    assert found.largest <= right.tolerance
    # The result of another operation, one wrong element, something that is no number.
    assert data.compare(result, dtype, number + 1, right).largest > right.tolerance
    wrong = result.copy()
    wrong[len(wrong) // 2] = wrong[len(wrong) // 2 + 1]
    seen = data.compare(wrong, dtype, number, right)
    assert not seen.ordered
    wrong[-1] = np.uint16(0x7FC0) if dtype == "bfloat16" else np.nan
    assert data.compare(wrong, dtype, number, right).largest == np.inf


def test_bounds_are_those_of_the_links() -> None:
    """spec/reduction#hybrid: a ring moves 2(n-1)/n of the tensor over every link, reducers all of it once;
    hybrid is in between."""
    assert theory(replace(CASE, rate=0), TASK.nbytes) is None
    bounds = theory(CASE, TASK.nbytes)
    assert bounds is not None
    once = TASK.nbytes * 8 / (200e6 * 1448 / 1514)
    assert bounds.reducers == pytest.approx(once)
    assert bounds.ring == pytest.approx(1.5 * once)
    limits = {case.name: theory(case, MIB) for case in CASES}
    assert {name: round(found.limit, 2) for name, found in limits.items() if found} == {
        "4+4": 1.5, "types": 1.5, "training": 1.5, "sizes": 1.5, "fast": 1.5,
        "8+8": 1.75, "2+2": 1.0, "hybrid": 1.25,
    }  # fmt: skip


def test_a_verdict_needs_speed_few_bytes_and_the_same_training() -> None:
    """spec/reduction#reports: what is missed says so, and whatever is right does not hide it."""
    good = compared(sample(2.1, 1.5), sample(1.42))
    assert good.held
    assert good.ratio == pytest.approx(2.1 / 1.42)
    assert not compared(sample(2.1, 1.5), sample(1.46)).held
    assert not compared(sample(2.1, 1.5), sample(1.42, sent=1.03)).held
    training = replace(CASE, tasks=(Task("step", 32 * MIB, "", 1.42),))
    trained = sample(2.1, 1.5, losses=[0.5, 0.25], parameters=3.0)
    same = sample(1.42, losses=[0.5, 0.25 * (1 + 1e-7)], parameters=3.0)
    assert compared(trained, same, training).held
    other = compared(trained, replace(same, parameters=3.1), training)
    assert other.same_training is False
    assert not other.held


def test_tables_show_figures_limits_and_verdicts() -> None:
    """spec/reduction#reports: the published table has the ratio beside its limit and its promise."""
    found = compared(sample(2.1, 1.5), sample(1.46))
    text = tables.promised([found])
    assert "**1.438×** | 1.50 | ≥ 1.45 MISSED | 100.2% / 96.1% | 1.500 / 1.003 held" in text
    assert "| 1.438 |" in tables.costs([found])
    assert "| float32 | 1.00e-07 | 1.00e-07 |" in tables.numerics([found])
    rows = tables.faults(
        [Finding("kills", "no wrong result", True, {}), Finding("one", "2 s", None, {})]
    )
    assert "| kills | no wrong result | held |" in rows


def test_the_plot_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    """spec/reduction#reports: a picture whose text can be read and searched, and that changes only with the
    figures."""
    found = [compared(sample(2.1, 1.5), sample(1.42))]
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    plot.draw(found, found, first)
    plot.draw(found, found, second)
    assert first.read_text() == second.read_text()
    assert "1.48×" in first.read_text()
    assert "bound of a ring" in first.read_text()


def test_results_are_kept_until_the_next_run(tmp_path: Path) -> None:
    """`--report` shows them again; a file of another version is as good as none."""
    results = Results("4+4", {"machine": "m"}, [{"gloo": {TASK.key: sample(2.1)}}])
    results.keep(tmp_path)
    assert kept(tmp_path, "4+4") == results
    (tmp_path / "4+4.json").write_text('{"case": "4+4"}')
    assert kept(tmp_path, "4+4") is None
    finding = Finding("kills", "no wrong result", True, {"kills": 100})
    faults.keep(tmp_path, "kills", [finding])
    assert faults.kept(tmp_path, "kills") == [finding]
    assert faults.kept(tmp_path, "fault") == []


def test_a_case_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.arguments(["--only", "4+4,5+5"])
    assert "5+5: there are 4+4" in capsys.readouterr().err


class Told:
    """Workers that answer what a test says."""

    side = REDUCERS

    def __init__(self, *checked: dict[str, object]) -> None:
        self._checked = checked

    def ask(self, **words: object) -> list[dict[str, object]]:
        return [{"processor": 0.1, **each} for each in self._checked]

    def tell(self, **words: object) -> None:
        pass

    def answers(self, doings: object) -> list[dict[str, object]]:
        return [{"seconds": 0.1} for _ in self._checked]


@pytest.mark.parametrize(
    ("other", "first", "why"),
    [
        ("b", {}, "different results"),
        ("a", {"largest": 0.2}, "wrong by 0.2"),
        ("a", {"largest": float("nan")}, "wrong by nan"),
        ("a", {"ordered": False}, "not the sum in the order of ranks"),
    ],
)
def test_whoever_is_fast_and_wrong_has_failed(
    other: str, first: dict[str, object], why: str
) -> None:
    """spec/reduction#exactness: a wrong result ends a side's run, and the error names the operation."""
    right: dict[str, object] = {"digest": "a", "largest": 0.01, "tolerance": 0.1, "ordered": True}
    processes: Any = Told({**right, **first}, {"digest": other})
    with pytest.raises(SideFailed, match=f"reducers, 32 MiB fp32: operation 5 .*{why}"):
        Series(processes, [], TASK, 5).operation()
    processes = Told(right, {"digest": "a"})
    assert Series(processes, [], TASK, 5).operation() == pytest.approx(0.1)
