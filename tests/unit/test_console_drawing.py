"""What charts of the console are drawn from: bars of attempts, parallel coordinates, fronts."""

from trainshed.console.pages.timelines import WIDTH, chart
from trainshed.console.pages.tuning import best_so_far, parallel
from trainshed.console.rendering import bytes_text, clean, nanos, seconds_text
from trainshed.wire.trainshed_v1.jobs import JobDescription, Trial, Tuning
from trainshed.wire.trainshed_v1.timeline import (
    Attempt,
    Incarnation,
    IncarnationExit,
    ReplicaHistory,
    Timeline,
    Verdict,
)


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000000Z"


def test_bars_are_to_scale_and_say_how_each_life_ended() -> None:
    lives = (
        Incarnation(
            incarnation=1,
            start_time=at(20),
            end_time=at(60),
            exit=IncarnationExit(exit_code=1),
            verdict=Verdict(at=at(60), message="restart 1 of 3", drill=1),
        ),
        Incarnation(incarnation=2, start_time=at(70)),
    )
    story = Timeline(
        attempts=(
            Attempt(
                attempt=1,
                start_time=at(20),
                replicas=(ReplicaHistory(id="a", task="worker-0", incarnations=lives),),
            ),
        )
    )
    job = JobDescription(create_time=at(0), start_time=at(20), state="RUNNING")
    found = chart(story, job, 1767225600 + 100)
    whole, row = found.rows
    assert [(bar.x, bar.width, bar.tone) for bar in whole.bars] == [
        (0, 200.0, "wait"),
        (200.0, WIDTH - 200, "run"),
    ]
    assert [(bar.x, bar.width, bar.tone) for bar in row.bars] == [
        (200.0, 400.0, "bad"),
        (700.0, 300.0, "run"),
    ]
    assert row.bars[0].title.endswith("exit code 1")
    assert [(mark.x, mark.is_drill) for mark in row.marks] == [(600.0, True)]
    assert found.ticks[0] == (0.0, "0.0s")


def test_the_best_so_far_follows_the_goal() -> None:
    assert best_so_far([3, 1, 2, 5], "MAXIMIZE") == [3, 3, 3, 5]
    assert best_so_far([3, 1, 2, 5], "MINIMIZE") == [3, 1, 1, 1]


def test_lines_cross_all_axes_and_the_best_is_drawn_last() -> None:
    trials = [
        Trial(number=1, parameters={"rate": 0.001, "kind": "sgd"}, value=0.5),
        Trial(number=2, parameters={"rate": 0.1, "kind": "adam"}, value=0.9),
        Trial(number=3, parameters={"rate": 0.01}, value=0.7),
    ]
    axes, lines = parallel(trials, Tuning(metric="accuracy", goal="MAXIMIZE", best=2))
    assert [(axis.name, axis.low, axis.high) for axis in axes] == [
        ("rate", "0.001", "0.1"),
        ("kind", "adam", "sgd"),
        ("accuracy", "0.5", "0.9"),
    ]
    assert [line.number for line in lines] == [1, 3, 2]
    assert lines[-1].is_best
    # A rate that spans decades is drawn by decades: a hundredth is half way.
    assert lines[1].points == "40.0,130.0 960.0,130.0"


def test_texts_of_programs_move_nothing() -> None:
    assert clean("a\x1b[2Jb\x07\u202ec\r\n\td") == "ab\ufffd\ufffdc\n\td"


def test_sizes_and_durations_have_few_digits() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 200 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "200 MiB",
        "3.0 TiB",
    ]
    assert [seconds_text(n) for n in (0.25, 59, 61, 3600, 90000)] == [
        "0.2s",
        "59s",
        "1m 01s",
        "1h 00m",
        "1d 01h",
    ]


def test_nanoseconds_survive() -> None:
    assert nanos("2026-01-01T00:00:00.123456789Z") == 1767225600123456789
    assert nanos("2026-01-01T00:00:00Z") == 1767225600 * 10**9
