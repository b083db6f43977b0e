"""`trainshed demo`: a run against a service, and one that starts a service of its own."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, Stream, entry, exited, job, line, replica
from trainshed.cli.sdist import build_demo_sdist

JOBS = "/trainshed/v1/jobs"
NAME = "projects/p/locations/us-central1/customJobs/7"
OUTPUT = "demo/20261120-060100-000"

STAND_IN = """\
#!{python}
import json, os, signal, sys
arguments = dict(zip(sys.argv[5::2], sys.argv[6::2]))
assert sys.argv[1:5] == ["-P", "-m", "trainshed", "up"] and arguments["--port"] == "0", sys.argv
print("starting")
if {fails}:
    sys.exit("the port is taken")
found = {{"rest": {address!r}, "token": "tok-en", "pid": os.getpid(), "project": "p",
         "region": "us-central1", "bucket": "b"}}
with open(os.path.join(arguments["--data"], "service.json"), "w") as file:
    json.dump(found, file)
def end(*signal):
    print("ended", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
os.write(int(arguments["--ready-fd"]), json.dumps(found).encode() + b"\\n")
os.close(int(arguments["--ready-fd"]))
signal.pause()
"""


def prepare(service: FakeService, state: str = "SUCCEEDED") -> None:
    """A service on which the demo's job ends in `state`."""
    over = job(
        state=state,
        replicas=[replica("workerpool0-0", "EXITED", exit=exited())],
        error={"code": 3, "message": "It failed."} if state == "FAILED" else None,
    )
    service.on("GET", "/trainshed/v1/status", {"version": "1"})
    service.on("POST", "/upload/storage/v1/b/b/o", {"name": "x"})
    service.on("POST", "/v1/projects/p/locations/us-central1/customJobs", {"name": NAME})
    service.on("GET", f"{JOBS}/{NAME}", job(state="QUEUED"))
    service.on("GET", f"{JOBS}/7", over)
    service.on("GET", f"{JOBS}/7/watch", Stream([over]))
    service.on("GET", f"{JOBS}/7/logs", Stream([line("workerpool0-0", "epoch 1/30")]))
    entries = [entry("created", "It was created.")]
    service.on("GET", f"{JOBS}/7/timeline", {"name": NAME, "entries": entries})
    metrics = b'{"accuracy": 0.9722, "epochs": 30}'
    service.on("GET", f"/storage/v1/b/b/o/{OUTPUT}/model/metrics.json", metrics)


def test_it_submits_follows_and_tells_the_result(
    trainshed: Invoke, service: FakeService, tmp_path: Path
) -> None:
    prepare(service)
    on_disk = tmp_path / "buckets" / "b" / OUTPUT / "model"
    on_disk.mkdir(parents=True)
    result = trainshed("demo", "--workers", "1")
    assert result.exit_code == 0, result.stderr
    assert "06:00:00.000  created: It was created.\n" in result.stdout
    assert "epoch 1/30\n" in result.stdout
    assert "Accuracy  0.972 " in result.stdout
    assert f"gs://b/{OUTPUT}/model\n" in result.stdout
    assert f"{on_disk}\n" in result.stdout
    assert "gcloud ai custom-jobs list" in result.stdout

    (sent,) = service.bodies("POST", "/v1/projects/p/locations/us-central1/customJobs")
    primary, workers, servers, evaluator = json.loads(sent)["jobSpec"]["workerPoolSpecs"]
    assert (primary["replicaCount"], workers["replicaCount"], servers) == ("1", "1", {})
    assert evaluator["pythonPackageSpec"]["pythonModule"] == "trainshed_demo.task"
    (uploaded,) = [a for a in service.sent if a.path.startswith("/upload")]
    assert uploaded.body == build_demo_sdist().content
    assert f"gs://b/{uploaded.query['name']}" in primary["pythonPackageSpec"]["packageUris"]


def test_a_failed_job_is_told_and_exits_with_1(trainshed: Invoke, service: FakeService) -> None:
    prepare(service, "FAILED")
    result = trainshed("demo")
    assert result.exit_code == 1
    assert result.stderr == "FAILED after 4.0s\nIt failed.\n"


class Interrupting(list[dict[str, Any]]):
    """Lines in whose middle somebody sends a signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__([line("workerpool0-0", "one"), line("workerpool0-0", "two", 1)])
        self.number = number

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield self[0]
        os.kill(os.getpid(), self.number)
        yield self[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_ends_it_ends_the_job(
    trainshed: Invoke, service: FakeService, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    # Python takes over from who starts it that SIGINT is ignored, as a shell has it for `pytest &`.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    prepare(service, "CANCELLED")
    never = Stream([job(), job()], threading.Event())
    service.on("GET", f"{JOBS}/7/watch", never, Stream([job(state="CANCELLED")]))
    service.on("GET", f"{JOBS}/7/logs", Stream(Interrupting(number)))
    service.on("POST", f"{JOBS}/7:cancel", {})
    handler = signal.getsignal(signal.SIGTERM)
    result = trainshed("demo")
    assert result.exit_code == 130, result.output
    assert result.stdout.endswith("Cancelling the job.\nCANCELLED\n")
    assert len(service.bodies("POST", f"{JOBS}/7:cancel")) == 1
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, service: FakeService) -> Path:
    """`python -m trainshed up` is played by a script that points at the fake service."""
    (tmp_path / "service.json").unlink()
    script = tmp_path / "python"
    script.write_text(STAND_IN.format(python=sys.executable, address=service.address, fails=False))
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


@pytest.mark.usefixtures("stand_in")
def test_it_starts_a_service_and_stops_it_again(
    trainshed: Invoke, service: FakeService, tmp_path: Path
) -> None:
    prepare(service)
    result = trainshed("demo", "--data", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("No service is running; starting one")
    assert f"  trainshed up --data {tmp_path} " in result.stdout
    assert (tmp_path / "up.log").read_text() == "starting\nended\n"
