"""`trainshed jobs curves`, and what `jobs describe` says of curves (facts/experiments#curves)."""

import json
from typing import Any

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, job

JOBS = "/trainshed/v1/jobs"
CURVES = f"{JOBS}/7/curves"
AT = "2026-11-21T06:00:00.000000Z"


def curve(tag: str, *values: float | str, **more: Any) -> dict[str, Any]:
    points = [{"step": step * 10, "at": AT, "value": value} for step, value in enumerate(values)]
    found = {"job": "j", "trial": 0, "run": "", "tag": tag, "count": len(values)}
    return found | {"points": points} | more


def laid(fake: FakeService, *curves: dict[str, Any], more: bool = False, logs: str = "") -> None:
    fake.on("GET", f"{JOBS}/7", job("7"))
    fake.on("GET", CURVES, {"job": "j", "logDirectory": logs, "curves": list(curves), "more": more})


def test_curves_are_a_table_with_their_course(trainshed: Invoke, service: FakeService) -> None:
    laid(service, curve("loss", 4.0, 2.0, 1.0), curve("acc", 0.5, "NaN", run="eval"), more=True)
    lines = trainshed("jobs", "curves", "7", "--tag", "loss", "--tag", "acc").output.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["RUN", "CURVE", "STEP", "LAST", "MIN", "MAX", "COURSE"],
        [".", "loss", "20", "1", "1", "4", "█▃▁"],
        ["eval", "acc", "10", "NaN", "0.5", "0.5", "▄·"],
    ]
    assert "--run or --tag" in lines[3]
    (asked,) = (asked for asked in service.asked if asked.path == CURVES)
    assert asked.query == {"tag": "acc", "points": "32"}


def test_json_is_the_answer_as_it_is(trainshed: Invoke, service: FakeService) -> None:
    laid(service, curve("loss", 4.0))
    answer = json.loads(trainshed("jobs", "curves", "7", "--format", "json").output)
    assert answer["curves"] == [curve("loss", 4.0)]


def test_a_job_without_curves_is_told_how_to_have_some(
    trainshed: Invoke, service: FakeService
) -> None:
    laid(service)
    assert "base output directory" in trainshed("jobs", "curves", "7").stderr
    laid(service, logs="gs://b/out/logs")
    assert "below gs://b/out/logs." in trainshed("jobs", "curves", "7").stderr
    assert "no such curve" in trainshed("jobs", "curves", "7", "--tag", "x").stderr


def test_a_description_shows_the_first_curves(trainshed: Invoke, service: FakeService) -> None:
    laid(service, *(curve(f"tag{number}", 1.0, 2.0) for number in range(20)))
    said = trainshed("jobs", "describe", "7").output
    assert "tag11" in said and "tag12" not in said
    assert "8 more: trainshed jobs curves 7" in said
