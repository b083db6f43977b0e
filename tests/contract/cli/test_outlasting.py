"""Followers outlast the service: they say so once, and go on where they were (spec/logs#durability)."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.contract.cli.conftest import write_service_file
from tests.contract.cli.fake_service import Asked, FakeService, Reply, Stream, job, line, serving
from trainshed.cli.jobs import follow

JOBS = "/trainshed/v1/jobs"
LINES = [line("workerpool0-0", f"line {n}", n) for n in range(4)]
OTHER = line("workerpool1-0", "another", 1)
GONE = "does not answer; the job continues"


def followed(service: FakeService, *first: Any) -> None:
    """A job whose followers see it running, and over once they ask again."""
    service.on("GET", f"{JOBS}/7", job(), job(state="SUCCEEDED"))
    service.on(
        "GET", f"{JOBS}/7/watch", *(first or [Stream([job()])]), Stream([job(state="SUCCEEDED")])
    )


def test_lines_go_on_where_the_service_left_them(service: FakeService) -> None:
    followed(service)
    service.on(
        "GET",
        f"{JOBS}/7/logs",
        Stream([*LINES[:2], OTHER], broken=True),
        # What was seen comes again from services that know no places.
        Stream([LINES[1], *LINES[2:]]),
    )
    result = service.cli("jobs", "logs", "-f", "7", "--format", "json")
    assert result.exit_code == 0, result.stderr
    output = [json.loads(text)["message"] for text in result.stdout.splitlines()]
    assert output == ["line 0", "line 1", "another", "line 2", "line 3"]
    assert result.stderr.count(GONE) == 1
    queries = [request.query for request in service.sent if request.path.endswith("/logs")]
    assert queries[:2] == [{}, {"after": "workerpool0-0/1/1,workerpool1-0/1/1"}]


def test_a_proxy_whose_service_is_away_is_waited_for(service: FakeService) -> None:
    followed(service)
    path = f"{JOBS}/7/logs"
    broken = (200, Stream(LINES[:2], broken=True))
    service.replies["GET", path] = [broken, (502, b""), (200, Stream(LINES[2:]))]
    result = service.cli("jobs", "logs", "-f", "7")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("words", [("--since", "10m"), ("--tail", "5")])
def test_who_began_late_gets_nothing_older(service: FakeService, words: tuple[str, str]) -> None:
    followed(service)
    service.on("GET", f"{JOBS}/7/logs", Stream(LINES[:1], broken=True), Stream(LINES[1:]))
    assert service.cli("jobs", "logs", "-f", "7", *words).exit_code == 0
    (_, again, *_) = (sent.query for sent in service.sent if sent.path.endswith("/logs"))
    assert again["since"] == LINES[0]["at"] and "tail" not in again


def test_a_follower_gives_up_at_last(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OUTAGE_TIMEOUT", 0.3)
    service.on("GET", f"{JOBS}/7", job())
    service.on("GET", f"{JOBS}/7/watch", Stream([job()]))
    service.on("GET", f"{JOBS}/7/logs", Stream(LINES[:1], broken=True))
    result = service.cli("jobs", "logs", "-f", "7")
    assert (result.exit_code, result.stdout) == (1, "workerpool0-0  line 0\n")
    assert result.stderr.count(GONE) == 1
    assert "When the service is back: trainshed jobs logs -f 7" in result.stderr


def test_a_service_that_comes_back_at_another_address_is_found(
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

    def moving(request: Asked) -> tuple[int, Reply]:
        if request.path.endswith("/logs"):
            write_service_file(tmp_path, moved.address)
        return answer(request)

    monkeypatch.setattr(service, "answer", moving)
    with serving(moved):
        result = service.cli("jobs", "logs", "-f", "7")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "".join(f"workerpool0-0  line {n}\n" for n in range(4))


def test_a_watch_goes_on_and_tells_nothing_twice(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the service is away, if not for longer than a minute."""
    clock = Mock(side_effect=range(0, 4000, 40))
    monkeypatch.setattr(follow, "time", Mock(monotonic=clock))
    followed(service, *[Stream([job()], broken=True)] * 2)
    result = service.cli("jobs", "watch", "7", "--format", "json")
    assert result.exit_code == 0, result.stderr
    states = [json.loads(text)["state"] for text in result.stdout.splitlines()]
    assert states == ["RUNNING", "SUCCEEDED"]
    assert result.stderr.count(GONE) == 2
