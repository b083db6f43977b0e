"""The benchmark of the Reduction Server: its verdicts and its tables."""

from dataclasses import replace
from typing import Any

import pytest
from bench.reduction import tables
from bench.reduction.cases import MIB, Case, Task
from bench.reduction.faults import Finding
from bench.reduction.figures import Comparison, comparisons
from bench.reduction.measuring import Sample, Series
from bench.reduction.processes import SideFailed
from bench.reduction.running import Results
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
