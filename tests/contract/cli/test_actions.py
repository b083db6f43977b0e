"""What commands that change something print for programs: one list, whatever the command."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.cli.conftest import Invoke, write_service_file
from tests.contract.cli.fake_service import JOBS, FakeService, job, listed
from tests.contract.cli.test_buckets import stored
from tests.contract.cli.test_nodes import NODES, node


def done(kind: str, name: str, outcome: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "id": name, "outcome": outcome} | more


@pytest.fixture
def answering(service: FakeService) -> FakeService:
    """A service that does what it is asked."""
    service.on("GET", f"{JOBS}/7", job())
    service.on("POST", f"{JOBS}/7:cancel", {})
    service.on("DELETE", f"{JOBS}/7", {})
    service.on("POST", "/trainshed/v1/quotas:set", QUOTA)
    service.on("POST", "/trainshed/v1/quotas:clear", QUOTA)
    service.on("POST", f"{NODES}/node-1:drain", node())
    service.on("POST", f"{NODES}/node-1:undrain", node())
    service.on("GET", NODES, {"nodes": [node()]})
    service.on("POST", "/trainshed/v1/secrets", SECRET)
    service.on("DELETE", "/trainshed/v1/secrets/db", {})
    service.on("POST", "/trainshed/v1/secrets:rotateKey", KEY)
    service.on("GET", "/storage/v1/b/b/o", {"items": [stored("a/1")]})
    service.on("DELETE", "/storage/v1/b/b/o/a/1", {})
    service.on("POST", "/login/link", {"uri": "http://h/login"})
    service.on("POST", f"{JOBS}/7:drill", DRILL)
    return service


QUOTA = {"project": "p", "region": "r", "metric": "cpus", "limit": 2, "used": 1}
SECRET = {"project": "p", "name": "db", "version": 3, "created": ""}
KEY: dict[str, Any] = {"key": "1a2b", "sealed": 1, "left": []}
DRILL = {"number": 1, "kind": "kill", "task": "workerpool0-0"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("jobs cancel 7", done("job", "7", "cancelling", record=job())),
        ("jobs delete 7", done("job", "7", "deleted")),
        ("quotas set cpus 2", done("quota", "cpus", "set", record=QUOTA)),
        ("nodes drain node-1", done("node", "node-1", "drained", record=node())),
        ("nodes drain node-1 --wait", done("node", "node-1", "free", record=node())),
        ("nodes undrain node-1", done("node", "node-1", "undrained", record=node())),
        ("secrets set db --from-env HOME", done("secret", "db", "stored", record=SECRET)),
        ("secrets delete db@2", done("secret", "db@2", "deleted")),
        ("secrets rotate-key", done("key", "1a2b", "rotated", record=KEY)),
        ("buckets rm -r gs://b/a", done("object", "gs://b/a/1", "deleted")),
        ("console", done("link", "http://h/login", "made")),
    ],
)
def test_what_was_done_is_a_list(
    trainshed: Invoke, answering: FakeService, words: str, text: dict[str, Any]
) -> None:
    result = trainshed(*words.split(), "--format", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == [text]


def test_one_that_fails_stands_among_the_others(trainshed: Invoke, answering: FakeService) -> None:
    answering.on("GET", JOBS, listed())
    result = trainshed("jobs", "cancel", "nope", "7", "--format", "yaml")
    failed, cancelled = yaml.safe_load(result.stdout)
    assert (result.exit_code, failed["id"], failed["outcome"]) == (1, "nope", "failed")
    assert failed["why"].startswith("There is no job 'nope'.")
    assert cancelled["outcome"] == "cancelling"
    answering.refuse("POST", "/trainshed/v1/quotas:set", 403, "Not yours.")
    refused = trainshed("quotas", "set", "cpus", "2", "--format", "json")
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_a_drill_is_told_when_it_is_ordered(trainshed: Invoke, answering: FakeService) -> None:
    words = ("drill", "7", "--kind", "kill", "--no-wait", "--format", "json")
    result = trainshed(*words)
    assert result.exit_code == 0, result.stderr
    (ordered,) = json.loads(result.stdout)
    assert (ordered["kind"], ordered["id"], ordered["outcome"]) == ("drill", "7/1", "ordered")
    assert ordered["record"]["drill"]["task"] == "workerpool0-0"
    assert "resume-report 7" in result.stderr


def test_copies_are_told_one_by_one(
    trainshed: Invoke, answering: FakeService, tmp_path: Path
) -> None:
    answering.on("POST", "/upload/storage/v1/b/b/o", {})
    (tmp_path / "one").write_text("1")
    source = str(tmp_path / "one")
    result = trainshed("buckets", "cp", source, "gs://b/x/", "--format", "json")
    copied = done("object", "gs://b/x/one", "copied", record={"source": source})
    assert json.loads(result.stdout) == [copied]
    both = trainshed("buckets", "cp", "gs://b/a/1", "-", "--format", "json")
    assert (both.exit_code, "cannot both go to standard output" in both.stderr) == (2, True)


@pytest.fixture
def process(service: FakeService, tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that stands for the service's."""
    waits = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_service_file(tmp_path, service.address, pid=waits.pid)
    yield waits
    waits.kill()
    waits.communicate()


def test_the_wheel_of_the_reduction_is_written(trainshed: Invoke, tmp_path: Path) -> None:
    path = Path(trainshed("reducers", "wheel", "-o", str(tmp_path / "new")).stdout.strip())
    with zipfile.ZipFile(path) as wheel:
        assert "trainshed_reduction/__init__.py" in wheel.namelist()
