"""What `jobs describe` shows of a job's reduction (spec/reduction#reports)."""

from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, job, replica
from tests.contract.cli.test_usage import JOBS, SEEN, USAGE, answer, used
from trainshed.cli.reduction_table import size, waited
from trainshed.cli.text.moments import local_moment, parse_moment


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


@pytest.fixture(autouse=True)
def _there_is_a_job(service: FakeService) -> None:
    running = replica("workerpool0-0", startTime=SEEN)
    service.on("GET", f"{JOBS}/7", job("7", replicas=[running]))
    service.on("GET", USAGE, gang())


def test_describe_shows_what_reducers_do_and_whom_they_wait_for(trainshed: Invoke) -> None:
    """The slowest rank is named; who has not reported has no row."""
    result = trainshed("jobs", "describe", "7")
    assert result.exit_code == 0, result.stderr
    header, worker, reducer, *notes = result.stdout.split("\n\n")[-1].splitlines()
    assert header.split("  ")[0] == "REDUCTION"
    assert worker.split() == "workerpool0-0 24.1 MB/s 950 B/s 64.0 MB 64.0 MB – 1 0 3.5s".split()  # noqa: SIM905 - as it is shown
    assert "256.0 MB" in reducer and reducer.endswith("12       4         1  12s, 11s for rank 1")
    assert notes == [
        "workerpool0-0 and 1 other: pure: 1 reducer",
        "workerpool2-0: rank 1 is late",
    ]


def test_describe_shows_the_mode(trainshed: Invoke) -> None:
    result = trainshed("jobs", "describe", "7")
    assert result.exit_code == 0, result.stderr
    assert "workerpool0-0 and 1 other: pure: 1 reducer" in result.stdout.splitlines()


def test_of_what_is_over_totals_are_shown_alone(trainshed: Invoke, service: FakeService) -> None:
    over = part(over=True, sent_bytes=5, chunks_in_flight=0)
    service.on("GET", USAGE, answer(used(over=True, reduction=over), state="SUCCEEDED"))
    line = trainshed("jobs", "describe", "7").stdout.splitlines()[-1]
    assert line.split() == ["workerpool0-0", "–", "–", "0", "B", "5", "B", "–", "–", "0", "–"]


@pytest.mark.parametrize(
    ("now", "line"),
    [
        ({}, "pure: 3 reducers"),
        ({"lostReducers": 2}, "pure: 3 reducers (since {} without 2 of them)"),
        ({"isNative": True, "text": "no store"}, "no store"),
        (
            {"isNative": True, "wasReduced": True, "text": "all reducers are lost"},
            "native since {}: all reducers are lost",
        ),
    ],
)
def test_the_mode_is_what_is_true_now(
    trainshed: Invoke, service: FakeService, now: dict[str, Any], line: str
) -> None:
    """spec/reduction#losses: after reducers were given up, too; what was true before is not said any more."""
    mode: dict[str, Any] = {
        "since": SEEN,
        "severity": "INFO",
        "text": "pure: 3 reducers",
        "isNative": False,
        "wasReduced": False,
        "lostReducers": 0,
        "lostSince": SEEN,
    }
    found = part(mode=mode | now, sent_bytes=5)
    found["notes"] = [
        {"at": SEEN, "name": name, "severity": "INFO", "text": name}
        for name in ("mode", "lost it", "native")
    ]
    service.on("GET", USAGE, answer(used("workerpool0-0", reduction=found)))
    clock = local_moment(parse_moment(SEEN)).split()[1]
    lines = trainshed("jobs", "describe", "7").stdout.splitlines()
    assert lines[-2:] == [f"workerpool0-0: {line.format(clock)}", "workerpool0-0: lost it"]


def test_a_job_without_reducers_has_no_such_table(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", USAGE, answer(used()))
    assert "REDUCTION" not in trainshed("jobs", "describe", "7").stdout


@pytest.mark.parametrize(
    ("waits", "text"),
    [
        ((), ""),
        ((0.01, 0.02), ""),
        ((0.5,), "0.50s, 0.50s for rank 0"),
        ((1.0, 61.0, 2.0), "1m 04s, 1m 01s for rank 1"),
        (0, ""),
        (2.5, "2.5s"),
    ],
)
def test_who_was_waited_for_most(waits: float | tuple[float, ...], text: str) -> None:
    assert waited(waits) == text


def test_sizes_are_in_powers_of_ten() -> None:
    assert [size(n) for n in (0, 999, 1000, 25e9, 3.2e13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "25.0 GB",
        "32.0 TB",
    ]
