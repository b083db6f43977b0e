"""Processes killed at any moment (spec/invariants#one-incarnation, spec/invariants#durability,
spec/invariants#last-lines-first): nothing is lost, doubled or left behind."""

import os
import signal
from pathlib import Path

from tests.e2e.processes import children, command_line, new_mark
from tests.e2e.running import Service, container_job, running, start, submit
from tests.isolation import needs_view


def counted(service: Service, job_id: str, replica: str) -> list[str]:
    """The program's own lines: the service's notices begin the primary's log."""
    return [line for line in service.lines(job_id, replica) if line.isdigit()]


def first_line(service: Service, job_id: str, wanted: str, replica: str | None = None) -> None:
    assert any(line == wanted for line in service.follow(job_id, replica))


def kill_buckets(service: Service) -> None:
    """It may be dead since the last time, or nobody has asked for an object yet."""
    for pid in children(service.pid):
        if "trainshed.buckets" in command_line(pid):
            os.kill(pid, signal.SIGKILL)


STORES = """
import http.client, os, time, urllib.error, urllib.request
# {mark}
root = os.environ["STORAGE_EMULATOR_HOST"]

def call(verb, path, data=None):
    # What storage clients do by themselves: a broken connection or answer is tried again, with patience.
    for left in (7, 6, 5, 4, 3, 2, 1, 0):
        try:
            request = urllib.request.Request(root + path, method=verb, data=data)
            return urllib.request.urlopen(request, timeout=60).read()
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException):
            if not left:
                raise
            time.sleep(0.1)

i = 0
while not os.path.exists("/gcs/trainshed/stop"):
    call("POST", "/upload/storage/v1/b/trainshed/o?uploadType=media&name=n/%05d" % i, b"%d" % i)
    assert call("GET", "/storage/v1/b/trainshed/o/n%%2F%05d?alt=media" % i) == b"%d" % i
    print(i, flush=True)
    i += 1
    time.sleep(0.01)
"""


@needs_view
def test_a_program_s_storage_survives_service_and_bucket_process(data: Path) -> None:
    """Each restart of the service is on another port; what a program stored is all there."""
    mark = new_mark()
    script = STORES.replace("{mark}", mark)
    service = start(data)
    job_id = submit(service, container_job(script))
    first_line(service, job_id, "5")
    service.kill()
    last = 5
    with running(data) as service:
        for _ in range(2):
            first_line(service, job_id, str(last + 20))
            kill_buckets(service)
            last += 20
        first_line(service, job_id, str(last + 20))
        service.put("trainshed", "stop", b"")
        assert service.finish(job_id)["state"] == "SUCCEEDED"
        lines = counted(service, job_id, "workerpool0-0")
        assert lines == [str(i) for i in range(len(lines))]
        stored: list[str] = []
        token = ""
        while True:
            page = service.call("GET", f"/storage/v1/b/trainshed/o?prefix=n/&pageToken={token}")
            stored += [item["name"] for item in page["items"]]
            if not (token := page.get("nextPageToken", "")):
                break
        assert stored == [f"n/{i:05}" for i in range(len(lines))]


def test_a_file_that_cannot_be_taken_away_spoils_no_end(tmp_path: Path) -> None:
    """Nor a disk that became read-only: the service ended with a traceback, as if it had failed."""
    service = start(tmp_path / "data")
    document = tmp_path / "data" / "service.json"
    document.unlink()
    document.mkdir()
    assert service.terminate() == 0
    assert "Traceback" not in (tmp_path / "data" / "service.log").read_text()
