"""What `jobs describe` says of what was used and logged, and of a reduction (spec/program#usage,
facts/experiments#curves, spec/reduction#reports)."""

from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, exited, job, replica

JOBS = "/trainshed/v1/jobs"
USAGE, CURVES = f"{JOBS}/7/usage", f"{JOBS}/7/curves"
GIB = 1 << 30
SEEN = "2026-11-20T06:00:57.000000Z"


def used(name: str = "workerpool0-0", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": name,
        "task": name,
        "state": "RUNNING",
        "machineType": "n1-standard-8",
        "vcpus": 8,
        "limitBytes": 27 * GIB,
        "incarnation": 1,
        "startTime": "2026-11-20T06:00:00.000000Z",
        "sampleTime": SEEN,
        "over": False,
        "processes": 3,
        "cpus": 2.0,
        "meanCpus": 1.0,
        "mostCpus": 4.0,
        "memoryBytes": GIB,
        "peakMemoryBytes": 2 * GIB,
        "diskBytes": 3 * GIB,
        "diskLimitBytes": 100 * GIB,
        "gpus": [],
        "points": [{"at": SEEN, "cpus": cpus, "memoryBytes": 1, "gpus": []} for cpus in (1, 2, 3)],
    }
    return found | more


def answer(*replicas: dict[str, Any], state: str = "RUNNING") -> dict[str, Any]:
    return {
        "name": "projects/p/locations/us-central1/customJobs/7",
        "state": state,
        "attempt": 1,
        "replicas": list(replicas),
    }


def gpu(busy: float | None = 0.97, used: int | None = 5 * GIB) -> dict[str, Any]:
    return {
        "uuid": "GPU-a",
        "type": "NVIDIA_TESLA_T4",
        "busy": busy,
        "meanBusy": busy,
        "memoryBytes": used,
        "totalMemoryBytes": 16 * GIB,
        "peakMemoryBytes": 6 * GIB,
    }


def test_describe_ends_with_what_was_used(trainshed: Invoke, service: FakeService) -> None:
    ran = replica("workerpool0-0", "EXITED", exit=exited(0))
    service.on("GET", f"{JOBS}/7", job("7", "SUCCEEDED", replicas=[ran]))
    service.on("GET", USAGE, answer(used(over=True, gpus=[gpu()])))
    lines = trainshed("jobs", "describe", "7").stdout.splitlines()
    header, row = lines[-2:]
    assert header.split("  ")[0] == "USED BY"
    assert "1.00 of 8" in row and "2.0 GiB of 27.0 GiB" in row
    assert "97%" in row and "6.0 GiB of 16.0 GiB" in row
    assert service.asked[-1].query["points"] == "0"


def test_describe_of_a_job_that_nobody_looked_at_says_no_more_than_before(
    trainshed: Invoke, service: FakeService
) -> None:
    ran = replica("workerpool0-0", "EXITED", exit=exited(0))
    service.on("GET", f"{JOBS}/7", job("7", "SUCCEEDED", replicas=[ran]))
    before = trainshed("jobs", "describe", "7")
    assert (before.exit_code, "USED" in before.stdout) == (0, False)
    service.on("GET", USAGE, answer(used(sampleTime="", points=[])))
    assert trainshed("jobs", "describe", "7").stdout == before.stdout


def curve(tag: str, *values: float | str, **more: Any) -> dict[str, Any]:
    points = [{"step": step * 10, "at": SEEN, "value": value} for step, value in enumerate(values)]
    found = {"job": "j", "trial": 0, "run": "", "tag": tag, "count": len(values)}
    return found | {"points": points} | more


def laid(fake: FakeService, *curves: dict[str, Any]) -> None:
    fake.on("GET", f"{JOBS}/7", job("7"))
    fake.on("GET", CURVES, {"job": "j", "logDirectory": "", "curves": list(curves), "more": False})


def test_curves_are_a_table(trainshed: Invoke, service: FakeService) -> None:
    laid(service, curve("loss", 4.0, 2.0, 1.0), curve("acc", 0.5, "NaN", run="eval"))
    lines = trainshed("jobs", "describe", "7").output.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["RUN", "CURVE", "STEP", "VALUE", "MIN", "MAX"],
        ["–", "loss", "20", "1", "1", "4"],
        ["eval", "acc", "10", "NaN", "0.5", "0.5"],
    ]
    (asked,) = (asked for asked in service.asked if asked.path == CURVES)
    assert asked.query == {"points": "32"}


def test_a_description_shows_the_first_curves(trainshed: Invoke, service: FakeService) -> None:
    laid(service, *(curve(f"tag{number}", 1.0, 2.0) for number in range(20)))
    said = trainshed("jobs", "describe", "7").output
    assert "tag11" in said and "tag12" not in said
    assert "8 more: trainshed describe curves 7" in said


def part(
    *notes: tuple[str, str],
    over: bool = False,
    mode: dict[str, Any] | None = None,
    restarts: int = 0,
    **metrics: Any,
) -> dict[str, Any]:
    """What it has done in all is twice what it has since its last start."""
    totals: dict[str, Any] = {
        name: value if isinstance(value, list) else 2 * value for name, value in metrics.items()
    }
    rates = {"received_bytes": 24.1e6, "sent_bytes": 950.0}
    return {
        "incarnation": 1,
        "sampleTime": SEEN if metrics else "",
        "over": over,
        "restarts": restarts,
        "metrics": metrics,
        "totals": totals if restarts else metrics,
        "mode": mode,
        "perSecond": {name: rates[name] for name in rates.keys() & metrics.keys()},
        "notes": [
            {"at": SEEN, "name": f"n{number}", "severity": severity, "text": text}
            for number, (severity, text) in enumerate(notes)
        ],
    }


def gang() -> dict[str, Any]:
    mode = ("INFO", "pure: 1 reducer")
    bytes_of_worker: dict[str, Any] = {
        "sent_bytes": 64e6,
        "received_bytes": 64e6,
        "wait_seconds": 3.5,
    }
    return answer(
        used("workerpool0-0", reduction=part(mode, **bytes_of_worker, lost_connections=1)),
        used("workerpool1-0", reduction=part(mode)),
        used(
            "workerpool2-0",
            reduction=part(
                ("WARNING", "rank 1 is late"),
                received_bytes=128e6,
                sent_bytes=128e6,
                chunks_in_flight=12,
                resets=2,
                restarts=1,
                wait_seconds=[0.2, 11.9, 0.4],
            ),
        ),
        used("workerpool3-0"),
    )


def test_describe_shows_what_reducers_do_and_whom_they_wait_for(
    trainshed: Invoke, service: FakeService
) -> None:
    """The slowest rank is named; who has not reported has no row; a note of several stands once."""
    service.on("GET", f"{JOBS}/7", job("7", replicas=[replica("workerpool0-0")]))
    service.on("GET", USAGE, gang())
    header, worker, reducer, *notes = (
        trainshed("jobs", "describe", "7").stdout.split("\n\n")[-1].splitlines()
    )
    assert header.split("  ")[0] == "REDUCTION"
    assert worker.split() == "workerpool0-0 24.1 MB/s 950 B/s 64.0 MB 64.0 MB 0 3.5s".split()  # noqa: SIM905 - as it is shown
    assert "256.0 MB" in reducer and reducer.endswith("1  12s, 11s for rank 1")
    assert notes == [
        "workerpool0-0 and 1 more: pure: 1 reducer",
        "workerpool2-0: rank 1 is late",
    ]


@pytest.mark.parametrize(
    ("now", "line"),
    [
        ({}, "pure: 3 reducers"),
        ({"lostReducers": 2}, "pure: 3 reducers (without 2 of them by now)"),
        ({"isNative": True, "text": "no store"}, "no store"),
    ],
)
def test_the_mode_is_what_is_true_now(
    trainshed: Invoke, service: FakeService, now: dict[str, Any], line: str
) -> None:
    """spec/reduction#losses: after reducers were given up, too; what was true before is not said any more."""
    mode: dict[str, Any] = {"severity": "INFO", "text": "pure: 3 reducers"}
    reduction = part(mode=mode | now, sent_bytes=5)
    reduction["notes"] = [
        {"at": SEEN, "name": name, "severity": "INFO", "text": name}
        for name in ("mode", "lost it", "native")
    ]
    service.on("GET", f"{JOBS}/7", job("7", replicas=[replica("workerpool0-0")]))
    service.on("GET", USAGE, answer(used("workerpool0-0", reduction=reduction)))
    lines = trainshed("jobs", "describe", "7").stdout.splitlines()
    assert lines[-2:] == [f"workerpool0-0: {line}", "workerpool0-0: lost it"]
