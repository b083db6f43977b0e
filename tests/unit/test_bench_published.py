"""Behind a published target stands on how many machines and days it held."""

from pathlib import Path

from bench import published, report
from bench.measures import Row
from bench.published import Run, judged, key
from bench.report import Section

ROW = Row("first line", "20 ms", "10 ms", 2.0, "≤ 1.7×", held=False)


def run(day: str, machine: str, *, held: bool, row: Row = ROW) -> Run:
    return Run("main", day, machine, "abc", {key(row): held})


def test_a_machine_and_a_day_count_where_all_their_runs_held() -> None:
    runs = [
        run("2026-11-21", "a", held=True),
        run("2026-11-22", "a", held=False),
        run("2026-11-22", "b", held=True),
    ]
    assert judged(runs, "main", ROW) == "1 of 2 machines, 1 of 2 days"
    assert judged(runs, "restarts", ROW) == ""
    sterner = Row("first line", "20 ms", "10 ms", 2.0, "≤ 1.5×", held=False)
    assert judged(runs, "main", sterner) == ""


def test_what_is_published_is_noted_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "published.json"
    published.save([run("2026-11-21", "a", held=True)], file)
    assert published.load(file) == [run("2026-11-21", "a", held=True)]
    section = Section("main", "Trainshed", "floor", (ROW, Row("other", "1", "–")), 0.5)
    mine = report.as_run(section)
    assert mine.held == {key(ROW): False}
    table = report.table(section, [*published.load(file), mine])
    assert "≤ 1.7× MISSED (1 of 2 machines, 1 of 2 days) |" in table
    assert "(" not in report.table(section).split("MISSED")[1].partition("\n")[0]


def test_the_runs_that_were_published_can_be_read() -> None:
    runs = published.load()
    assert {run.part for run in runs} >= {"main", "lists", "control-plane"}
    assert runs == sorted(runs, key=lambda run: run.day)
