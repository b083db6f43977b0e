"""What charts of the console are drawn from: bars of attempts, parallel coordinates, fronts."""

from trainshed.console.pages.jobs import telling
from trainshed.console.pages.searches import Metric, Search, best_so_far, front, parallel
from trainshed.console.pages.studies import search_of
from trainshed.console.pages.timelines import WIDTH, chart
from trainshed.console.rendering import (
    bytes_text,
    clean,
    folder_address,
    nanos,
    seconds_text,
)
from trainshed.wire.trainshed_v1.jobs import JobDescription, Trial
from trainshed.wire.trainshed_v1.timeline import (
    Attempt,
    Incarnation,
    IncarnationExit,
    ReplicaHistory,
    Timeline,
    TimelineEntry,
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
    assert found.ticks[0] == (0.0, "0")


def test_a_drill_is_marked_on_the_row_of_its_replica() -> None:
    story = Timeline(
        entries=(
            TimelineEntry(at=at(5), kind="drill_ordered", message="ordered"),
            TimelineEntry(
                at=at(50), kind="drill_fired", message="killed", details={"replica": "b"}
            ),
        ),
        attempts=(
            Attempt(
                attempt=1,
                start_time=at(1),
                replicas=(
                    ReplicaHistory(
                        id="b", task="ps-0", incarnations=(Incarnation(start_time=at(1)),)
                    ),
                ),
            ),
            Attempt(
                attempt=2,
                start_time=at(60),
                verdicts=(Verdict(at=at(60), message="retried"),),
            ),
        ),
    )
    job = JobDescription(create_time=at(0), start_time=at(1), end_time=at(60))
    found = chart(story, job, 0)
    whole, row = found.rows
    assert [(mark.title, mark.is_drill) for mark in row.marks] == [("killed", True)]
    assert [mark.title for mark in whole.marks] == ["retried"]
    assert [(mark.after, mark.task) for mark in found.marks] == [("50s", "ps-0"), ("1m 00s", "")]
    assert [number for _, number in found.attempts] == [1, 2]


def test_of_the_last_lines_those_are_shown_that_tell_why() -> None:
    steps = [f"step {n}" for n in range(50)]
    traced = [*steps, "Traceback (most recent call last):", '  File "x"', "KeyError: 1"]
    assert telling("\n".join(traced)).splitlines() == traced[47:]
    assert telling("\n".join(steps)).splitlines() == steps[-20:]
    assert telling("") == ""


def test_the_best_so_far_follows_the_goal() -> None:
    assert best_so_far([3, 1, 2, 5], True) == [3, 3, 3, 5]
    assert best_so_far([3, 1, 2, 5], False) == [3, 1, 1, 1]


def test_lines_cross_all_axes_and_the_best_is_drawn_last() -> None:
    trials = [
        Trial(number=1, parameters={"rate": 0.001, "kind": "sgd"}, value=0.5),
        Trial(number=2, parameters={"rate": 0.1, "kind": "adam"}, value=0.9),
        Trial(number=3, parameters={"rate": 0.01}, value=0.7),
    ]
    axes, lines = parallel(trials, Search(trials, (Metric("accuracy", True),), frozenset({2})))
    assert [(axis.name, axis.low, axis.high) for axis in axes] == [
        ("rate", "0.001", "0.1"),
        ("kind", "adam", "sgd"),
        ("accuracy", "0.5", "0.9"),
    ]
    assert [line.number for line in lines] == [1, 3, 2]
    assert lines[-1].is_best
    # A rate that spans decades is drawn by decades: a hundredth is half way.
    assert lines[1].points == "40.0,130.0 960.0,130.0"


def test_a_front_goes_by_the_goals_of_both_metrics() -> None:
    def between(*goals: bool | None) -> list[int]:
        trials = [
            Trial(number=n, value=value, metrics={"cost": cost})
            for n, value, cost in ((1, 0.9, 9.0), (2, 0.5, 1.0), (3, 0.4, 2.0), (4, 0.8, 8.0))
        ]
        metrics = tuple(map(Metric, ("accuracy", "cost"), goals))
        drawn = front(trials, Search(trials, metrics, frozenset()))
        return sorted(dot.number for dot in drawn.dots if dot.is_front)

    assert between(True, False) == [1, 2, 4]
    assert between(True, None) == [1, 2, 4], "more of one, less of what nobody says"
    assert between(True, True) == [1]
    assert between(False, False) == [2, 3]


def test_a_study_is_drawn_as_a_tuning_job_is() -> None:
    spec = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}, {"metricId": "size"}]}
    measured = {"metrics": [{"metricId": "loss"}, {"metricId": "size", "value": 7}]}
    trials = [
        {"id": "1", "state": "ACTIVE", "parameters": [{"parameterId": "rate", "value": 0.1}]},
        {
            "id": "2",
            "state": "SUCCEEDED",
            "finalMeasurement": measured,
            "measurements": [
                {"stepCount": str(n), "metrics": [{"metricId": "loss", "value": 1000 - n}]}
                for n in range(1000)
            ],
        },
    ]
    search = search_of(spec, trials, frozenset({2}), "2")
    first, second = search.trials
    assert (first.value, first.parameters) == (None, {"rate": 0.1})
    assert (second.value, second.metrics["size"]) == (0.0, 7.0)
    assert search.chosen is second
    assert len(second.curve) <= 61
    assert (second.curve[0], second.curve[-1]) == ((0, 1000.0), (999, 1.0))


def test_names_in_buckets_lead_to_where_they_lie() -> None:
    assert folder_address("gs://b/runs/one/model") == "/buckets/b?prefix=runs%2Fone%2Fmodel%2F"
    assert folder_address("gs://b/data/train.csv") == "/buckets/b?prefix=data%2F"
    assert folder_address("gs://b/data/2024-*/x") == "/buckets/b?prefix=data%2F"
    assert folder_address("gs://b") == "/buckets/b"
    assert folder_address("javascript:alert(1)") == folder_address("gs://") == ""


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
