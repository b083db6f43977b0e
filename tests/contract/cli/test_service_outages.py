"""Following commands survive an outage of the service: they report it once and continue where they
were (spec/logs#durability)."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.contract.cli.conftest import write_service_file
from tests.contract.cli.fake_service import FakeService, Reply, SentRequest, Stream, job, line, serving
from trainshed.cli.jobs import follow

JOBS = "/trainshed/v1/jobs"
LINES = [line("workerpool0-0", f"line {n}", n) for n in range(4)]
OTHER = line("workerpool1-0", "another", 1)
OUTAGE_NOTICE = "does not answer; the job continues"


def prepare_job(service: FakeService, *first: Any) -> None:
    """Prepare a job that a follower first sees running, and finished after the outage."""
    service.on("GET", f"{JOBS}/7", job(), job(state="SUCCEEDED"))
    service.on("GET", f"{JOBS}/7/watch", *(first or [Stream([job()])]), Stream([job(state="SUCCEEDED")]))


def test_followed_logs_continue_after_an_outage(service: FakeService) -> None:
    prepare_job(service)
    service.on(
        "GET",
        f"{JOBS}/7/logs",
        Stream([*LINES[:2], OTHER], broken=True),
        # Services without positions in their streams send known lines again.
        Stream([LINES[1], *LINES[2:]]),
    )
    result = service.cli("jobs", "logs", "-f", "7", "--format", "json")
    assert result.exit_code == 0, result.stderr
    output = [json.loads(text)["message"] for text in result.stdout.splitlines()]
    assert output == ["line 0", "line 1", "another", "line 2", "line 3"]
    assert result.stderr.count(OUTAGE_NOTICE) == 1
    queries = [request.query for request in service.sent if request.path.endswith("/logs")]
    assert queries[:2] == [{}, {"after": "workerpool0-0/1/1,workerpool1-0/1/1"}]


def test_followed_logs_survive_an_error_of_the_proxy(service: FakeService) -> None:
    prepare_job(service)
    path = f"{JOBS}/7/logs"
    broken = (200, Stream(LINES[:2], broken=True))
    service.replies["GET", path] = [broken, (502, b""), (200, Stream(LINES[2:]))]
    result = service.cli("jobs", "logs", "-f", "7")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("words", [("--since", "10m"), ("--tail", "5")])
def test_log_request_after_an_interruption_starts_at_the_last_printed_line(
    service: FakeService, words: tuple[str, str]
) -> None:
    prepare_job(service)
    service.on("GET", f"{JOBS}/7/logs", Stream(LINES[:1], broken=True), Stream(LINES[1:]))
    assert service.cli("jobs", "logs", "-f", "7", *words).exit_code == 0
    (_, again, *_) = (sent.query for sent in service.sent if sent.path.endswith("/logs"))
    assert again["since"] == LINES[0]["at"] and "tail" not in again


def test_followed_logs_stop_after_the_outage_timeout(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "OUTAGE_TIMEOUT", 0.3)
    service.on("GET", f"{JOBS}/7", job())
    service.on("GET", f"{JOBS}/7/watch", Stream([job()]))
    service.on("GET", f"{JOBS}/7/logs", Stream(LINES[:1], broken=True))
    result = service.cli("jobs", "logs", "-f", "7")
    assert (result.exit_code, result.stdout) == (1, "workerpool0-0  line 0\n")
    assert result.stderr.count(OUTAGE_NOTICE) == 1
    assert "When the service is back: trainshed jobs logs -f 7" in result.stderr


def test_followed_logs_find_the_service_at_a_new_address(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = FakeService(service.cli)
    service.on("GET", f"{JOBS}/7", job())
    service.on("GET", f"{JOBS}/7/watch", Stream([job()]))
    service.on("GET", f"{JOBS}/7/logs", Stream(LINES[:1], broken=True))
    moved.on("GET", f"{JOBS}/7", job(state="SUCCEEDED"))
    moved.on("GET", f"{JOBS}/7/watch", Stream([job(state="SUCCEEDED")]))
    moved.on("GET", f"{JOBS}/7/logs", Stream(LINES[1:]))
    answer = service.answer

    def moving(request: SentRequest) -> tuple[int, Reply]:
        if request.path.endswith("/logs"):
            write_service_file(tmp_path, moved.address)
        return answer(request)

    monkeypatch.setattr(service, "answer", moving)
    with serving(moved):
        result = service.cli("jobs", "logs", "-f", "7")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "".join(f"workerpool0-0  line {n}\n" for n in range(4))


def test_watch_continues_after_outages_without_repetition(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outages may repeat, as long as none lasts longer than a minute."""
    clock = Mock(side_effect=range(0, 4000, 40))
    monkeypatch.setattr(follow, "time", Mock(monotonic=clock))
    prepare_job(service, *[Stream([job()], broken=True)] * 2)
    result = service.cli("jobs", "watch", "7", "--format", "json")
    assert result.exit_code == 0, result.stderr
    states = [json.loads(text)["state"] for text in result.stdout.splitlines()]
    assert states == ["RUNNING", "SUCCEEDED"]
    assert result.stderr.count(OUTAGE_NOTICE) == 2
