"""Sparklines, tables of trials, the panel of a tuning job: what the command line shows of a search
(spec/tuning#trials)."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import pytest
from rich.console import Console

from trainshed.cli.jobs.log_text import labelled
from trainshed.cli.jobs.views import JobView, LogLine, TimelineView
from trainshed.cli.jobs.watch import Board, live
from trainshed.cli.text.colours import trial_colour, trial_number_colour
from trainshed.cli.text.moments import parse_moment
from trainshed.cli.text.tables import best_so_far, grouped, spark
from trainshed.cli.trial_table import BEST, Line, chosen, panel, ranked, terminal_text, trial_table
from trainshed.cli.tuning_views import TrialView, TuningView, assignment, shown
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.study.records import TrialState
from trainshed.core.study.spec import Goal

SECOND = 10**9
NOON = parse_moment("2026-11-20T12:00:00Z")
SEARCH = TuningView(
    metric="accuracy",
    goal=Goal.MAXIMIZE,
    algorithm="DEFAULT",
    most=12,
    parallel=4,
    first=1,
    succeeded=0,
    infeasible=0,
    running=0,
    best=0,
    exhausted=False,
    stopping="",
)


def trial(number: int, value: float | None = None, **changes: Any) -> TrialView:
    """One that is over if it has a value, else one that runs."""
    over = value is not None
    return replace(
        TrialView(
            number=number,
            state=TrialState.SUCCEEDED if over else TrialState.ACTIVE,
            parameters=(("learning-rate", 0.01 * number), ("units", 8)),
            value=value,
            reached=value,
            step=12 if over else 0,
            started=NOON,
            ended=NOON + 3 * SECOND if over else 0,
            job_state=JobState.SUCCEEDED if over else JobState.RUNNING,
            curve=(0.1, value) if value is not None else (),
        ),
        **changes,
    )


def infeasible(number: int, reason: str = "no metric") -> TrialView:
    return trial(number, state=TrialState.INFEASIBLE, ended=NOON + SECOND, reason=reason)


def search(*trials: TrialView, goal: Goal = Goal.MAXIMIZE) -> JobView:
    tuning = replace(
        SEARCH,
        goal=goal,
        succeeded=sum(t.value is not None for t in trials),
        infeasible=sum(t.state is TrialState.INFEASIBLE for t in trials),
        running=sum(not t.state.is_over for t in trials),
    )
    best = next(iter(ranked(tuning, trials)), None)
    return JobView(
        id="7",
        uid="7",
        api=Api.VERTEX,
        name="projects/p/locations/l/hyperparameterTuningJobs/7",
        display_name="digits",
        state=JobState.RUNNING,
        created=NOON,
        started=NOON,
        ended=0,
        kind="tuning",
        tuning=replace(tuning, best=best.number if best else 0),
        trials=trials,
    )


def text(lines: list[Line]) -> list[str]:
    return [click.unstyle(terminal_text(line)) for line in lines]


def pieces(lines: list[Line], style: str) -> list[str]:
    return [found.strip() for line in lines for found, given in line if given == style]


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([None], "·"),
        ([5.0], "▄"),
        ([0.0, 7.0, None, 3.0], "▁█·▄"),
        # One that is far off does not make the others look alike.
        ([1.0, 2.0, 3.0, 4.0, 1000.0], "▁▂▃▄█"),
        ([-1000.0, 1.0, 1.0, 1.0], "▁███"),
    ],
)
def test_sparks(values: list[float | None], drawn: str) -> None:
    assert spark(values) == drawn


def test_the_best_so_far_and_groups() -> None:
    values = [None, 3.0, 5.0, None, 4.0, 1.0]
    assert best_so_far(values, max) == [None, 3, 5, 5, 5, 5]
    assert best_so_far(values, min) == [None, 3, 3, 3, 3, 1]
    assert grouped(values, 6, max) == values
    assert grouped(values, 4, max) == [None, 5, None, 4]
    assert grouped([None, None, 2.0], 2, max) == [None, 2]
    assert grouped([], 2, max) == []
    many = [float(number) for number in range(1000)]
    assert grouped(many, 48, max)[-1] == 999
    assert len(grouped(many, 48, max)) == 48


def test_values_and_assignments() -> None:
    assert [shown(value) for value in (0.123456, 64.0, 7, "relu", 1e12)] == [
        "0.1235",
        "64",
        "7",
        "relu",
        "1e+12",
    ]
    assert assignment((("lr", 0.5), ("kind", "a"))) == "lr=0.5, kind=a"


def test_every_state_of_trials_has_a_colour() -> None:
    assert all(trial_colour(state) for state in TrialState)
    assert trial_colour(TrialState.ACTIVE, JobState.QUEUED) != trial_colour(TrialState.ACTIVE)
    assert trial_number_colour(1) != trial_number_colour(2)


def test_a_table_marks_the_best_and_says_why_others_have_no_result() -> None:
    why = "It exited with 1. \nTraceback\nValueError: too deep\n\nSee the logs: https://x"
    trials = (trial(1, 0.5), infeasible(2, why), trial(3, 0.75), trial(4, job_state=None))
    lines = trial_table("accuracy", trials, {3}, NOON + 5 * SECOND, None)
    assert text(lines) == [
        "TRIAL  STATE       accuracy  STEP  TIME  CURVE       learning-rate  units  NOTE",
        "    1  SUCCEEDED        0.5    12  3.0s  ▁█                   0.01      8",
        "    2  INFEASIBLE         –     –  1.0s                       0.02      8  ValueError: too deep",
        "  ★ 3  SUCCEEDED       0.75    12  3.0s  ▁█                   0.03      8",
        "    4  ACTIVE             –     –  5.0s                       0.04      8",
    ]
    assert "★ 3" in pieces(lines, BEST)
    assert pieces(lines, "red") == ["INFEASIBLE", "ValueError: too deep"]


@pytest.mark.parametrize(
    ("room", "header"),
    [
        (84, "TRIAL  STATE       accuracy  STEP  TIME  CURVE       learning-rate  units  NOTE"),
        (80, "TRIAL  STATE       accuracy  STEP  TIME  CURVE       learnin…  units  NOTE"),
        (75, "TRIAL  STATE       accuracy  STEP  TIME  learning-rate  units  NOTE"),
        (68, "TRIAL  STATE       accuracy  STEP  TIME  learnin…  units  NOTE"),
    ],
)
def test_a_table_gives_way_column_by_column(room: int, header: str) -> None:
    trials = (trial(1, 0.5), infeasible(2, "no metric"))
    titles, *rows = text(trial_table("accuracy", trials, {1}, NOON, room))
    assert titles.split() == header.split()
    assert max(map(len, [titles, *rows])) <= room


def test_where_nothing_fits_parameters_share_a_column() -> None:
    many = tuple((f"parameter-{n}", 0.123456) for n in range(9))
    trials = (trial(1, 0.5, parameters=many),)
    header, row = text(trial_table("accuracy", trials, {1}, NOON, 80))
    assert header.split()[-1] == "PARAMETERS"
    assert "parameter-0=0.1235, parameter-1=" in row
    assert row.endswith("…")
    assert len(row) == 80


def test_conditional_parameters_are_absent_where_they_are_not_active() -> None:
    trials = (trial(1, 0.5), trial(2, 0.6, parameters=(("units", 8), ("dropout", 0.5))))
    _, first, second = text(trial_table("accuracy", trials, (), NOON, None))
    assert first.split()[-3:] == ["0.01", "8", "–"]
    assert second.split()[-3:] == ["–", "8", "0.5"]


def test_of_many_trials_the_running_the_best_and_the_newest_are_shown() -> None:
    """spec/tuning#trials: a search of thousands of trials still fits a terminal."""
    # Trial 17 is the best, then 33, 50, ...: the values go up and down.
    over = [trial(number, (number * 13 % 100) / 100) for number in range(1, 97)]
    trials = (*over, *(trial(number) for number in range(97, 101)))
    job = search(*trials)
    assert job.tuning is not None
    rows = chosen(job.tuning, trials, 10)
    numbers = [each.number for each in rows]
    best = [each.number for each in ranked(job.tuning, trials)]
    assert len(numbers) == 10
    assert numbers == sorted(numbers)
    assert {97, 98, 99, 100, 96, *best[:4]} <= set(numbers)
    # More run than there are rows: the best is still there.
    few = chosen(job.tuning, trials, 3)
    assert [each.number for each in few] == sorted([best[0], 99, 100])


@pytest.mark.parametrize(
    ("goal", "first"), [(Goal.MAXIMIZE, [2, 4, 1]), (Goal.MINIMIZE, [1, 2, 4])]
)
def test_ranks_follow_the_goal_and_the_earlier_of_equals(goal: Goal, first: list[int]) -> None:
    trials = [trial(1, 0.1), trial(2, 0.5), infeasible(3), trial(4, 0.5)]
    assert [t.number for t in ranked(replace(SEARCH, goal=goal), trials)] == first


def test_the_panel_tells_progress_trend_and_best() -> None:
    trials = (trial(1, 0.5), trial(2, 0.25), infeasible(3), trial(4, 0.75), trial(5))
    lines = panel(search(*trials), NOON + 5 * SECOND, 80)
    bar, trend, so_far, best, empty, *table = text(lines)
    assert bar == f"trials    {'━' * 24}  4 of 12 done, 1 running, 1 without a result"
    assert trend == "accuracy  ▅▁·█  0.25 to 0.75"
    assert so_far == "so far    ▅▅▅█"
    assert best == "best      trial 4: accuracy 0.75 at step 12  learning-rate=0.04, units=8"
    assert (empty, len(table)) == ("", 6)
    assert "█" in pieces(lines, BEST)
    assert "·" in pieces(lines, "red")


def test_the_panel_fits_its_height_and_says_what_it_leaves_out() -> None:
    trials = tuple(trial(number, number / 100) for number in range(1, 61))
    lines = text(panel(search(*trials), NOON, 80, height=18))
    assert len(lines) == 18
    assert lines[-1] == "… and 49 more: trainshed jobs describe 7"
    assert any(line.startswith(" ★ 60") for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_search_that_has_not_begun_is_a_bar() -> None:
    assert text(panel(search(), NOON, 80)) == [f"trials    {'━' * 24}  0 of 12 done"]


def drawn(updates: list[JobView | TimelineView], clock: Callable[[], int]) -> list[str]:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=80, height=24)
    live(updates, clock, console, lines=False)
    return screen.getvalue().rstrip("\x1b[?25h\n").splitlines()


def test_the_live_table_of_a_search() -> None:
    began = TimelineView(NOON, "trial_began", "Trial 1 of 12: learning-rate=0.01.")
    failed = TimelineView(NOON, "trial_infeasible", "Trial 2 has no result: no metric")
    job = search(trial(1, 0.5), infeasible(2), trial(3))
    lines = drawn([began, failed, job], lambda: NOON + 9 * SECOND)
    whole = "\n".join(lines)
    assert "trial_infeasible: Trial 2 has no result: no metric" in whole
    # What the table shows is not told above it as well.
    assert "Trial 1 of 12" not in whole
    assert lines[-1].split()[:2] == ["3", "RUNNING"]
    assert any("digits  RUNNING  9.0s  maximize accuracy" in line for line in lines)


def test_the_live_table_of_a_pipeline_is_that_of_its_job() -> None:
    child = search(trial(1, 0.5))
    pipeline = replace(
        child, display_name="pipe", kind="pipeline", tuning=None, trials=(), child=child
    )
    lines = drawn([pipeline], lambda: NOON + 9 * SECOND)
    assert any("pipe  RUNNING  9.0s  maximize accuracy" in line for line in lines)
    assert lines[-1].split()[:3] == ["★", "1", "SUCCEEDED"]


def test_the_board_says_what_the_first_trial_waits_for() -> None:
    job = replace(
        search(), state=JobState.QUEUED, waits=("Waiting for the next trial suggestion.",)
    )
    assert Board().after(job).note == "Waiting for the next trial suggestion."


def test_lines_of_trials_are_labelled_with_them() -> None:
    job = search()
    line = LogLine(NOON, "workerpool1-0", "INFO", "hello", trial=3, task="workerpool1-0")
    assert click.unstyle(labelled(line, job)) == "trial  3  hello"
    assert job.tuning is not None
    several = replace(job, tuning=replace(job.tuning, replicas=2))
    assert click.unstyle(labelled(line, several)) == "trial  3  workerpool1-0  hello"
