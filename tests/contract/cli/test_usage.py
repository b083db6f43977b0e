"""`trainshed jobs top`, and what `jobs describe` says of what was used (spec/program#usage)."""

import json
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, exited, job, replica
from trainshed.cli.jobs import usage

JOBS = "/trainshed/v1/jobs"
USAGE = f"{JOBS}/7/usage"
GIB = 1 << 30
SEEN = "2026-11-20T06:00:57.000000Z"


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_LOOK_AGAIN", 0)


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


def answer(*replicas: dict[str, Any], state: str = "RUNNING", hints: Any = ()) -> dict[str, Any]:
    return {
        "name": "projects/p/locations/us-central1/customJobs/7",
        "state": state,
        "attempt": 1,
        "replicas": list(replicas),
        "hints": list(hints),
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


@pytest.fixture(autouse=True)
def _there_is_a_job(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/7", job("7"))


def test_top_shows_what_replicas_use(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", USAGE, answer(used(), used("workerpool1-0", sampleTime="", points=[])))
    result = trainshed("jobs", "top", "7")
    assert result.exit_code == 0, result.stderr
    header, first, second, note = result.stdout.splitlines()
    assert header.split() == (
        "REPLICA STATE CPU MEAN OF MEMORY PEAK OF DISK CPU LATELY".split()  # noqa: SIM905 - as it is shown
    )
    assert first.split("  ")[0] == "workerpool0-0"
    assert "25%" in first and "12%" in first and "▁" in first and "█" in first
    assert "1.0 GiB  2.0 GiB  27.0 GiB  3.0 GiB" in first
    assert second.split()[:4] == ["workerpool1-0", "RUNNING", "–", "–"]
    assert note == "as of 3.0s ago"
    assert service.asked[-1].query["points"] == "24"


def test_gpus_have_columns_where_there_are_some(trainshed: Invoke, service: FakeService) -> None:
    both = used(gpus=[gpu(), gpu(None)])
    service.on("GET", USAGE, answer(both, used("workerpool1-0")))
    header, first, second, _ = trainshed("jobs", "top", "7").stdout.splitlines()
    assert "GPU" in header and "GPU MEMORY" in header
    assert "97% –" in first and "10.0 GiB of 32.0 GiB" in first
    assert "GiB of" not in second


def test_what_went_over_the_network_is_shown_where_it_is_counted(
    trainshed: Invoke, service: FakeService
) -> None:
    counted = used(sentBytes=3_400_000_000, receivedBytes=0)
    service.on("GET", USAGE, answer(counted, used("workerpool1-0")))
    header, first, second, _ = trainshed("jobs", "top", "7").stdout.splitlines()
    assert "DISK    SENT  RECEIVED  CPU LATELY" in header
    assert "3.0 GiB  3.4 GB       0 B  ▁" in first
    assert "3.0 GiB       –         –  ▁" in second


def test_of_a_replica_that_is_over_only_means_and_peaks_are_shown(
    trainshed: Invoke, service: FakeService
) -> None:
    over = used(over=True, state="EXITED", gpus=[gpu()])
    service.on("GET", USAGE, answer(over, state="SUCCEEDED"))
    _, line = trainshed("jobs", "top", "7").stdout.splitlines()
    assert line.split()[:5] == ["workerpool0-0", "EXITED", "–", "12%", "8"]
    assert "97%" not in line and "2.0 GiB" in line


def test_a_service_that_measures_no_disks_is_understood(
    trainshed: Invoke, service: FakeService
) -> None:
    older = {name: value for name, value in used().items() if not name.startswith("disk")}
    service.on("GET", USAGE, answer(older))
    assert "27.0 GiB     –  " in trainshed("jobs", "top", "7").stdout.splitlines()[1]


def test_nothing_is_known_yet(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", USAGE, answer(used(sampleTime="", points=[])))
    assert "Nothing is known yet" in trainshed("jobs", "top", "7").stdout
    service.on("GET", USAGE, answer(used(sampleTime="", points=[]), state="SUCCEEDED"))
    assert "deleted with its log" in trainshed("jobs", "top", "7").stdout


def test_an_earlier_attempt_is_asked_for(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", USAGE, answer(used(state="")))
    result = trainshed("jobs", "top", "7", "--attempt", "1")
    assert service.asked[-1].query["attempt"] == "1"
    assert result.stdout.splitlines()[1].split()[1] == "–"


def test_json_is_what_the_service_says(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", USAGE, answer(used()))
    result = trainshed("jobs", "top", "7", "--format", "json")
    assert json.loads(result.stdout) == answer(used())


def test_watch_goes_on_until_the_job_is_over(trainshed: Invoke, service: FakeService) -> None:
    """Where nothing can be drawn a table is printed whenever there is something new."""
    first = answer(used(points=[]))
    later = answer(used(sampleTime="2026-11-20T06:00:59.000000Z", cpus=8.0))
    last = answer(used(over=True, state="EXITED"), state="SUCCEEDED")
    service.on("GET", USAGE, first, first, later, last)
    result = trainshed("jobs", "top", "7", "--watch")
    assert result.exit_code == 0, result.stderr
    blocks = result.stdout.strip().split("\n\n")
    assert ["25%" in blocks[0], "100%" in blocks[1], "EXITED" in blocks[2]] == [True] * 3
    assert len(blocks) == 3


def test_watch_does_not_go_with_what_does_not_change(trainshed: Invoke) -> None:
    result = trainshed("jobs", "top", "7", "--watch", "--format", "json")
    assert (result.exit_code, "--watch" in result.stderr) == (2, True)


def test_describe_ends_with_what_was_used_and_what_would_save_money(
    trainshed: Invoke, service: FakeService
) -> None:
    ran = replica("workerpool0-0", "EXITED", exit=exited(0))
    service.on("GET", f"{JOBS}/7", job("7", "SUCCEEDED", replicas=[ran]))
    hint = "It asked for n1-standard-8 and used next to nothing."
    service.on("GET", USAGE, answer(used(over=True, gpus=[gpu()]), hints=[hint]))
    lines = trainshed("jobs", "describe", "7").stdout.splitlines()
    header, row, _, told = lines[-4:]
    assert header.split("  ")[0] == "USED BY"
    assert "1.00 of 8" in row and "2.0 GiB of 27.0 GiB" in row
    assert "97%" in row and "6.0 GiB of 16.0 GiB" in row
    assert told == hint
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
