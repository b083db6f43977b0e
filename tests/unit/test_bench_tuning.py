"""The benchmark of the tuning algorithms: its problems, its runs, its figures."""

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from bench.tuning import __main__ as command
from bench.tuning import figures, runs, tables
from bench.tuning.pitfalls import FAILING, pitfalls, rotation
from bench.tuning.problems import Problem, made
from bench.tuning.runs import Result, Task, run, to_json

from trainshed import studies
from trainshed.core.study.spec import ParameterType, Value
from trainshed.studies.random_search import RandomSearch

pytestmark = pytest.mark.numerical
_CHOSEN = ("branin", "conditional", "sphere-8", "svm-digits")
"""Problems of each kind."""


def result(candidate: str, seed: int, *regrets: float, problem: str = "branin") -> Result:
    return Result(Task(problem, 1, candidate, seed, len(regrets)), "v", regrets, 0.1)


def near(problem: Problem, point: dict[str, Value], draw: random.Random) -> dict[str, Value]:
    """A point beside it, or with one value drawn anew."""
    name = draw.choice(sorted(point))
    other = dict(RandomSearch().suggest(problem.spec, (), 1, draw.randrange(10**6)).parameters[0])
    if other.keys() != point.keys():
        return point
    one = next(each for each in problem.spec.parameters if each.id == name)
    old, new = point[name], other[name]
    if one.type is ParameterType.DOUBLE and not isinstance(old, str) and not isinstance(new, str):
        new = old + (new - old) * draw.random() ** 6
    return {**point, name: new}


@pytest.mark.parametrize(
    "problem",
    [
        problem if problem.name in _CHOSEN else pytest.param(problem, marks=pytest.mark.soak)
        for problem in made()
    ],
    ids=lambda problem: problem.name,
)
def test_known_optimum_is_a_lower_bound_that_a_search_comes_near(problem: Problem) -> None:
    draw = random.Random(1)

    def value(point: dict[str, Value]) -> float:
        found = problem.objective(1)(point)
        return math.inf if found is None else found

    drawn = [
        dict(RandomSearch().suggest(problem.spec, (), 1, seed).parameters[0]) for seed in range(200)
    ]
    values = sorted(value(point) for point in drawn)
    best = min(drawn, key=value)
    for _ in range(4000):
        best = min(best, near(problem, best, draw), key=value)
    assert values[0] >= problem.least - 1e-9
    assert value(best) >= problem.least - 1e-9
    assert value(best) - problem.least < 0.25 * (values[100] - problem.least)


@pytest.mark.parametrize("problem", made(), ids=lambda problem: problem.name)
def test_the_centre_is_not_the_answer_and_instances_differ(problem: Problem) -> None:
    if problem.name == "conditional":
        return
    centre: dict[str, Value] = {one.id: (one.low + one.high) / 2 for one in problem.spec.parameters}
    corner: dict[str, Value] = {
        one.id: one.low + (one.high - one.low) * 0.3 * (1 + index % 2)
        for index, one in enumerate(problem.spec.parameters)
    }
    assert (problem.objective(1)(centre) or 0.0) > problem.least + 0.1
    values = {round(problem.objective(seed)(corner) or 0.0, 9) for seed in range(8)}
    assert len(values) > 1


@pytest.mark.parametrize("pending", [1, 8])
def test_a_run_is_repeatable_and_its_regret_falls(pending: int) -> None:
    task = Task("conditional", pending, "random", 3, 20)
    first, second = run(task), run(task)
    assert first.regrets == second.regrets
    assert len(first.regrets) == 20
    assert list(first.regrets) == sorted(first.regrets, reverse=True)


@pytest.mark.parametrize("problem", pitfalls(), ids=lambda problem: problem.name)
def test_pitfalls_are_never_below_their_least_value(problem: Problem) -> None:
    drawn = [
        dict(RandomSearch().suggest(problem.spec, (), 1, seed).parameters[0]) for seed in range(60)
    ]
    values = [value for point in drawn if (value := problem.objective(1)(point)) is not None]
    assert min(values) >= problem.least
    assert 15 <= len(values) <= 60
    assert (len(values) < 60) is (problem.name in FAILING)


def test_axes_of_a_rotation_are_at_right_angles() -> None:
    axes = rotation(4, random.Random(1))
    for first, second in itertools.product(range(4), repeat=2):
        product = sum(a * b for a, b in zip(axes[first], axes[second], strict=True))
        assert product == pytest.approx(float(first == second), abs=1e-12)


def test_outliers_are_worse_than_the_truth_and_few() -> None:
    problem = next(one for one in pitfalls() if one.name == "sphere-5-outliers")
    draw = random.Random(1)
    told = [problem.told(1.0, draw) for _ in range(1000)]
    assert min(told) == 1.0
    assert 20 <= sum(each > 1.0 for each in told) <= 80


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


def test_noise_is_told_to_the_candidate_but_not_counted() -> None:
    plain = run(Task("hartmann-6", 1, "random", 0, 30))
    noisy = run(Task("hartmann-6-noisy", 1, "random", 0, 30))
    assert set(noisy.regrets) != set(plain.regrets)
    assert min(noisy.regrets) >= 0


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


def test_regrets_have_a_floor_and_cases_must_be_done_by_all() -> None:
    results = [
        result("random", 0, 1e-9),
        result("gp-bandit", 0, 1e-12),
        result("random", 0, 1.0, problem="levy-6"),
    ]
    (own, other) = figures.standings(results, ["random", "gp-bandit"], 1)
    assert own.ratio == other.ratio == 1
    assert own.rank == other.rank == 1.5


def test_a_value_better_than_the_best_known_is_said() -> None:
    assert "svm-digits: a value better" in tables.text(
        [result("random", 0, -0.01, problem="svm-digits")], [1]
    )


def test_broken_off_run_goes_on_where_it_was(tmp_path: Path) -> None:
    results = tmp_path / "tuning.jsonl"
    done = run(Task("branin", 1, "random", 0, 3))
    command.keep(results, done)
    with results.open("a") as file:
        file.write(to_json(done)[:40] + "\n")
    assert list(command.kept(results)) == [done]


def test_tasks_cover_every_case() -> None:
    tasks = list(command.tasks(command.arguments(["--seeds", "2"])))
    assert len(tasks) == len(set(tasks)) == (12 * 2 + len(pitfalls())) * 4 * 2


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


@pytest.mark.parametrize(
    ("candidate", "counted", "passed_over"),
    [
        ("gp-bandit", {"gp/bandit.py", "routines.py"}, {"stopping/convex.py", "advisor_client.py"}),
        ("optuna-tpe", {"engines/optuna.py"}, {"routines.py", "stopping/convex.py"}),
        ("random", {"random_search.py"}, {"gp/bandit.py", "engines/optuna.py"}),
    ],
)
def test_results_are_kept_until_code_changes_that_decides_them(
    candidate: str, counted: set[str], passed_over: set[str]
) -> None:
    roots = (Path(studies.__path__[0]), Path(runs.__file__).parent)
    assert all(any((root / name).exists() for root in roots) for name in counted | passed_over)
    deciding = {
        str(path.relative_to(root))
        for path in runs.own_code(candidate)
        for root in roots
        if path.is_relative_to(root)
    }
    assert counted <= deciding
    assert not passed_over & deciding
