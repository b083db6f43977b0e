"""A backup taken while jobs print and objects are written, restored at another path next to the original."""

import json
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e import fork_server
from tests.e2e.processes import find_marked, new_mark
from tests.e2e.running import PROJECT, REGION, Service, container_job, environment, running, submit
from tests.isolation import needs_view
from trainshed.store.sqlite.database import open_database

BUCKET = "trainshed"
VERSIONED = "kept-versions"
COUNTS = """
import os, time
# {mark}
os.makedirs("/gcs/trainshed/{place}", exist_ok=True)
for number in range({count}):
    print(number, flush=True)
    if number % 10 == 0:
        with open(f"/gcs/trainshed/{place}/{{number}}", "w") as file:
            file.write(str(number) * 1000)
    time.sleep({pause})
"""


def put(service: Service, name: str, content: bytes, bucket: str = BUCKET) -> None:
    """Create an object with metadata in one multipart request."""
    about = json.dumps(
        {"name": name, "contentType": "text/x-test", "metadata": {"of": name}, "cacheControl": "no-store"}
    ).encode()
    body = b"".join(
        (
            b"--cut\r\nContent-Type: application/json\r\n\r\n", about,
            b"\r\n--cut\r\nContent-Type: text/x-test\r\n\r\n", content, b"\r\n--cut--\r\n",
        )
    )  # fmt: skip
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"
    kind = {"Content-Type": "multipart/related; boundary=cut"}
    assert service.ask("POST", path, body, headers=kind).status == 200


def objects(service: Service) -> dict[str, dict[str, Any]]:
    by_name: dict[str, dict[str, Any]] = {}
    token = ""
    while True:
        page = service.call("GET", f"/storage/v1/b/{BUCKET}/o?maxResults=500&pageToken={token}")
        by_name |= {item["name"]: without_addresses(item) for item in page.get("items", [])}
        if not (token := page.get("nextPageToken", "")):
            return by_name


def without_addresses(resource: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a resource except addresses, which contain the service's host."""
    return {key: value for key, value in resource.items() if not key.endswith("Link")}


def generations(service: Service) -> list[tuple[str, bytes]]:
    """Return the versions of an object in a versioned bucket, each with its content."""
    listed = service.call("GET", f"/storage/v1/b/{VERSIONED}/o?versions=true")["items"]
    numbers = [item["generation"] for item in listed]
    return [(number, service.read(VERSIONED, "x", number)) for number in numbers]


@contextmanager
def written_all_the_time(service: Service) -> Generator[None]:
    """Write objects continuously during the block, all of them once before it starts."""
    over = threading.Event()

    def write(numbers: range) -> None:
        for number in numbers:
            put(service, f"busy/{number % 50}", str(number).encode() * 100)
            if over.wait(0.05):
                return

    write(range(50))
    writer = threading.Thread(target=write, args=(range(50, 1_000_000),))
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def until(lines: Iterator[str], wanted: str, times: int) -> list[str]:
    seen: list[str] = []
    while seen.count(wanted) < times:
        seen.append(next(lines))
    return seen


def trainshed(*arguments: str | Path, data: Path) -> subprocess.CompletedProcess[bytes]:
    words = ["-m", "trainshed", *map(str, arguments), "--data", str(data)]
    return fork_server.services().run(words, environment(data))


def write_curve(service: Service) -> str:
    """Create a time series with three points; return its path."""
    place = f"/v1/projects/{PROJECT}/locations/{REGION}"
    board = service.call("POST", f"{place}/tensorboards", {"displayName": "board"})
    experiment = f"/v1/{board['response']['name']}/experiments"
    service.call("POST", f"{experiment}?tensorboardExperimentId=e", {})
    run = f"{experiment}/e/runs"
    service.call("POST", f"{run}?tensorboardRunId=r", {})
    series = service.call("POST", f"{run}/r/timeSeries", {"displayName": "loss", "valueType": "SCALAR"})
    data = {
        "tensorboardTimeSeriesId": series["name"].rpartition("/")[2],
        "values": [{"step": str(step), "scalar": {"value": step / 4}} for step in (1, 2, 3)],
    }
    service.call("POST", f"{run}/r:write", {"timeSeriesData": [data]})
    return f"/v1/{series['name']}"


@needs_view
def test_backup_under_load_can_be_restored_next_to_the_original(data: Path, tmp_path: Path) -> None:
    mark = new_mark()
    with running(data) as original:
        done = submit(
            original, container_job(COUNTS.format(mark="", place="quiet/by-job", count=100, pause=0))
        )
        assert original.finish(done)["state"] == "SUCCEEDED"
        curve = write_curve(original)
        put(original, "quiet/a", b"hello")
        put(original, "quiet/a/b", b"in the shadow")
        sparse = f"buckets/{BUCKET}/quiet/sparse"
        with (data / sparse).open("wb") as file:
            file.truncate(1 << 24)
        versioned = {"name": VERSIONED, "versioning": {"enabled": True}}
        original.call("POST", f"/storage/v1/b?project={PROJECT}", versioned)
        for content in (b"one", b"two", b"three"):
            put(original, "x", content, VERSIONED)
        quiet = {n: blob for n, blob in objects(original).items() if n.startswith("quiet/")}
        busy = submit(
            original, container_job(COUNTS.format(mark=mark, place="busy-job", count=100_000, pause=0.02))
        )
        assert any(line == "40" for line in original.follow(busy))
        programs = find_marked(mark)
        assert programs
        with written_all_the_time(original):
            taken = trainshed("backup", tmp_path / "backup", data=data)
        assert taken.returncode == 0, taken.stderr
        before = original.lines(busy)
        restored = trainshed("restore", tmp_path / "backup", data=tmp_path / "restored")
        assert restored.returncode == 0, restored.stderr
        assert busy in restored.stdout.decode()
        with running(tmp_path / "restored") as twin:
            assert twin.token == original.token
            # Objects: bytes and metadata.
            here, there = objects(twin), objects(original)
            assert {name: blob for name, blob in here.items() if name.startswith("quiet/")} == quiet
            # The restored job restarts and writes its files again during the comparison.
            same = [
                name for name in here if here[name] == there.get(name) and not name.startswith("busy-job/")
            ]
            for name in same[:10]:
                assert twin.read(BUCKET, name) == original.read(BUCKET, name)
            assert any(name.startswith("busy/") for name in here)
            for name, blob in here.items():
                if name.startswith("busy/"):
                    assert blob["metadata"] == {"of": name}
                    assert blob["contentType"] == "text/x-test"
            assert generations(twin) == generations(original)
            assert [content for _, content in generations(twin)] == [b"one", b"two", b"three"]
            # Regression: a sparse file of a program filled the disk with zeros.
            copies = [(tmp_path / name / sparse).stat() for name in ("backup", "restored")]
            assert all(copy.st_blocks << 9 < copy.st_size == 1 << 24 for copy in copies)
            points = twin.call("GET", f"{curve}:read")["timeSeriesData"]["values"]
            assert [point["scalar"]["value"] for point in points] == [0.25, 0.5, 0.75]
            # Jobs and logs, at that time.
            path = f"/trainshed/v1/jobs/{done}"
            assert twin.call("GET", path) == original.call("GET", path)
            assert twin.lines(done) == original.lines(done) == [str(n) for n in range(100)]
            # The running job: it restarts here, but was not affected there.
            lines = until(twin.follow(busy), "40", times=2)
            assert lines[:40] == [str(n) for n in range(40)] == before[:40]
            assert set(programs) <= set(find_marked(mark))
            # A line may be visible before that.
            next(view for view in twin.watch(busy, 60) if view["state"] == "RUNNING")
            fresh = submit(twin, container_job("print('new')"))
            assert twin.finish(fresh)["state"] == "SUCCEEDED"
        # The other service has stopped, with its jobs.
        assert set(programs) <= set(find_marked(mark))
        assert original.call("GET", f"/trainshed/v1/jobs/{busy}")["state"] == "RUNNING"


def test_interrupted_or_changed_backup_is_rejected(data: Path, tmp_path: Path) -> None:
    """A backup that was changed is rejected too. None of this needs a service."""
    open_database(data).close()
    (data / "jobs.key").write_text("what signs the tokens of programs")
    endless = data / "buckets" / BUCKET / "large"
    endless.parent.mkdir(parents=True)
    with endless.open("wb") as file:
        file.truncate(1 << 40)
    target = tmp_path / "backup"
    words = ("-m", "trainshed", "backup", str(target), "--data", str(data))
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = fork_server.services().fork(words, environment(data), stdout=1, stderr=2)
        while not (target / "buckets").exists():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) != 0
        assert not (target / "MANIFEST").exists()
        assert target.exists() == (number == signal.SIGKILL)
    refused = trainshed("restore", target, data=tmp_path / "restored")
    assert refused.returncode == 1
    assert b"has no file MANIFEST" in refused.stderr
    endless.unlink()
    changed, config = tmp_path / "changed", tmp_path / "mounted.toml"
    (tmp_path / "real.toml").write_text("")
    config.symlink_to("real.toml")  # As Kubernetes mounts it.
    assert trainshed("backup", changed, "--config", config, data=data).returncode == 0
    assert not (changed / "settings.toml").read_bytes()
    assert not list(data.glob(".backup-*")), "what the killed one has left"
    key = changed / "jobs.key"
    key.write_bytes(key.read_bytes()[::-1])
    refused = trainshed("restore", changed, data=tmp_path / "restored")
    assert b"The checksum of jobs.key is wrong" in refused.stderr
    assert not (tmp_path / "restored").exists()
