"""The benchmark of the tuning algorithms: a run, and the verdicts of its figures."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench.tuning import __main__ as command
from bench.tuning import figures, tables
from bench.tuning.runs import Result, Task

pytestmark = pytest.mark.numerical


def result(candidate: str, seed: int, *regrets: float, problem: str = "branin") -> Result:
    return Result(Task(problem, 1, candidate, seed, len(regrets)), "v", regrets, 0.1)


def test_promises_of_pitfalls_are_held_against_the_peer_named() -> None:
    def at(name: str, problem: str, regret: float) -> Result:
        return result(name, 0, regret, problem=problem)

    results = [
        at("gp-bandit", "sphere-5-outliers", 1.0),
        at("optuna-tpe", "sphere-5-outliers", 2.0),
        at("gp-bandit", "failing-edge-4", 3.0),
        at("optuna-tpe", "failing-edge-4", 2.0),
    ]
    assert [held for _, held in tables.promises(results, 1)] == [False, True]


def test_standings() -> None:
    results = [
        result(name, seed, 9.0, regret * (1 + seed / 100), problem=problem)
        for problem in ("branin", "levy-6", "sphere-8")
        for name, regret in (("random", 1.0), ("gp-bandit", 0.01), ("optuna-tpe", 5.0))
        for seed in range(5)
    ]
    rows = figures.standings(results, ["random", "gp-bandit", "optuna-tpe"], 2)
    assert [(row.candidate, row.rank) for row in rows] == [
        ("gp-bandit", 1),
        ("random", 2),
        ("optuna-tpe", 3),
    ]
    assert rows[0].ratio == pytest.approx(0.01)
    assert rows[0].low <= rows[0].ratio <= rows[0].high
    assert [(row.wins, row.losses) for row in rows] == [(3, 0), (0, 0), (0, 3)]
    assert [held for _, held in tables.verdicts(results, 2)] == [True, True, True]
    worse = [
        replace(one, regrets=(9.0, 1e3)) if one.task.candidate == "gp-bandit" else one
        for one in results
    ]
    assert [held for _, held in tables.verdicts(worse, 2)] == [False, False, False]


def test_quick_run_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "tuning.jsonl")
    options = command.arguments(
        ["--problems", "branin", "--candidates", "random", "--seeds", "1", "--trials", "4"]
    )
    wanted = list(command.tasks(options))
    results = command.work(wanted, options)
    assert [one.task for one in results] == wanted
    assert command.work(wanted, command.arguments(["--report"])) == results
    assert "| random | 1 | 1.0000" in tables.text(results, [4])
