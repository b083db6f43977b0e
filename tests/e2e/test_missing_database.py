"""A data directory without its database, and one from which it is removed under a running service
(spec/invariants#a-missing-database): no program is ended, nothing is acknowledged that would be gone, and all
comes back."""

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.processes import leftovers, marked, new_mark
from tests.e2e.running import CUSTOM_JOBS, Service, container_job, running, submit, trainshed
from tests.e2e.stories import at, make_pipe, until

PATIENCE = 60.0


def begun(service: Service, gate: Path, mark: str) -> str:
    """A job whose program waits at the gate."""
    program = f"print('begun', flush=True)\n{at(gate)}\nprint('on', flush=True)\n# {mark}"
    job_id = submit(service, container_job(program))
    until(service.follow(job_id), "begun")
    return job_id


def refusal(data: Path) -> str:
    (line,) = trainshed(
        "up", "--port", "0", "--data", str(data), data=data, status=1
    ).stderr.splitlines()
    return line


def until_there(path: Path) -> None:
    """The service saves its database by itself; nobody asks it for anything."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def expect_taken_over(data: Path, job_id: str, gate: Path) -> None:
    with running(data) as service:
        gate.write_text("go")
        view = service.finish(job_id, PATIENCE)
        assert (view["state"], view["attempt"]) == ("SUCCEEDED", 1)
        assert view["replicas"][0]["incarnation"] == 1
        assert service.lines(job_id, "workerpool0-0")[-2:] == ["begun", "on"]
    assert not leftovers(data)


def test_a_start_without_the_database_ends_no_program(
    data: Path, commons: Path, tmp_path: Path
) -> None:
    gate, mark = make_pipe(commons / "gate"), new_mark()
    with running(data) as service:
        job_id = begun(service, gate, mark)
        service.kill()
    programs = marked(mark)
    for path in data.glob("trainshed.*"):  # With the lock that says that there was one.
        path.replace(tmp_path / path.name)
    for _ in range(2):
        message = refusal(data)
        assert message.startswith(
            f"Error: the job database {data}/trainshed.db is gone; slots/ of 1 job"
        )
        assert f"mv {data} {data}.old" in message
    assert programs and marked(mark) == programs
    report = trainshed("doctor", "--data", str(data), "--format", "json", data=data, status=1)
    (finding,) = [row for row in json.loads(report.stdout) if row["about"] == "database"]
    assert finding["verdict"] == "bad" and "is gone" in finding["text"]
    for path in tmp_path.glob("trainshed.*"):
        path.replace(data / path.name)
    expect_taken_over(data, job_id, gate)


@pytest.mark.parametrize("removed", ["trainshed.db", "trainshed.db-wal"])
def test_a_database_that_is_removed_under_the_service_loses_nothing(
    data: Path, commons: Path, removed: str
) -> None:
    gate, mark = make_pipe(commons / "gate"), new_mark()
    with running(data) as service:
        job_id = begun(service, gate, mark)
        programs = marked(mark)
        (data / removed).unlink()
        if removed == "trainshed.db":
            until_there(data / "trainshed-rescued.db")
        answer = service.call("POST", CUSTOM_JOBS, container_job("pass"), expect=503)
        message = answer["error"]["message"]
        assert service.call("GET", f"/trainshed/v1/jobs/{job_id}")["state"] == "RUNNING"
        assert marked(mark) == programs
        service.kill()
    stop, *put_back, start = message[message.index("kill ") :].split("; ")
    assert (stop, start.rstrip(".")) == (f"kill {service.pid}", f"trainshed up --data {data}")
    for command in put_back:
        subprocess.run(["/bin/sh", "-c", command], check=True, timeout=PATIENCE)
    assert marked(mark) == programs
    expect_taken_over(data, job_id, gate)
