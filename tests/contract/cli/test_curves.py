"""What `jobs describe` says of curves (facts/experiments#curves)."""

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


def laid(fake: FakeService, *curves: dict[str, Any]) -> None:
    fake.on("GET", f"{JOBS}/7", job("7"))
    fake.on("GET", CURVES, {"job": "j", "logDirectory": "", "curves": list(curves), "more": False})


def test_curves_are_a_table_with_their_course(trainshed: Invoke, service: FakeService) -> None:
    laid(service, curve("loss", 4.0, 2.0, 1.0), curve("acc", 0.5, "NaN", run="eval"))
    lines = trainshed("jobs", "describe", "7").output.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["RUN", "CURVE", "STEP", "LAST", "MIN", "MAX", "COURSE"],
        [".", "loss", "20", "1", "1", "4", "█▃▁"],
        ["eval", "acc", "10", "NaN", "0.5", "0.5", "▄·"],
    ]
    (asked,) = (asked for asked in service.asked if asked.path == CURVES)
    assert asked.query == {"points": "32"}


def test_a_description_shows_the_first_curves(trainshed: Invoke, service: FakeService) -> None:
    laid(service, *(curve(f"tag{number}", 1.0, 2.0) for number in range(20)))
    said = trainshed("jobs", "describe", "7").output
    assert "tag11" in said and "tag12" not in said
    assert "8 more: trainshed describe curves 7" in said
