"""Programs, their logs and stored data survive a killed service, a missing database and a damaged record
(spec/invariants#one-incarnation, spec/invariants#durability, spec/invariants#last-lines-first,
spec/invariants#a-missing-database): nothing is lost, duplicated or left behind. `tests/contract/store` tests
the store with such databases.
"""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.e2e.processes import children, command_line, find_marked, leftovers, new_mark, wait_until_gone
from tests.e2e.running import Service, container_job, running, submit, trainshed
from tests.isolation import needs_view
from trainshed.serve.doctor import examine
from trainshed.serve.settings import Settings
from trainshed.store.sqlite.database import DATABASE_FILE


def counter_lines(service: Service, job_id: str) -> list[str]:
    """Return the lines that the program printed. The primary's log starts with notices of the service."""
    return [line for line in service.lines(job_id, "workerpool0-0") if line.isdigit()]


def first_line(service: Service, job_id: str, wanted: str) -> None:
    assert any(line == wanted for line in service.follow(job_id))


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
    time.sleep(0.1)
"""


FOREVER = "import time\n# {mark}\nprint('up', flush=True)\ntime.sleep(600)"


def database_of(data: Path) -> str:
    """Return the findings of `trainshed doctor` about it."""
    findings = examine(Settings(data=data, cache=data.parent))
    return next(finding.text for finding in findings if finding.about == "database")


@needs_view
def test_programs_survive_faults_of_service_database_and_bucket_process(data: Path, tmp_path: Path) -> None:
    """Each restart of the service uses another port. All data of the program is still available."""
    mark, other_mark = new_mark(), new_mark()
    with running(data) as service:
        job_id = submit(service, container_job(STORES.replace("{mark}", mark)))
        bad = submit(service, container_job(FOREVER.replace("{mark}", other_mark)))
        first_line(service, job_id, "1")
        first_line(service, bad, "up")
        programs, unreadable = find_marked(mark), find_marked(other_mark)
        assert unreadable
        # A file that cannot be removed blocks no end, and neither does a disk that became read-only.
        document = data / "service.json"
        document.unlink()
        document.mkdir()
        assert service.terminate() == 0
        assert "Traceback" not in (data / "service.log").read_text()
        document.rmdir()
    with closing(sqlite3.connect(data / DATABASE_FILE)) as connection, connection:
        cut = "UPDATE jobs SET record = substr(record, 1, 99) WHERE job_id = ?"
        assert connection.execute(cut, [bad]).rowcount == 1
    assert f"without them: jobs {bad}" in database_of(data)
    with running(data) as service:
        problem = "table jobs of trainshed.db cannot be read"
        assert problem in (data / "service.log").read_text()
        # No record of it remains, so it is ended. The other one was never affected.
        wait_until_gone(unreadable)
        described = trainshed("jobs", "describe", bad, data=data, status=1)
        assert problem in described.stderr
        listed = str(service.call("GET", "/trainshed/v1/jobs?project=-"))
        assert job_id in listed and bad not in listed
        fresh = submit(service, container_job("print('new')"))
        assert service.finish(fresh)["state"] == "SUCCEEDED"
        service.kill()
    # A service that starts without its database ends no program.
    for path in data.glob("trainshed.*"):  # With the lock that records its earlier existence.
        path.replace(tmp_path / path.name)
    (message,) = trainshed("up", "--port", "0", data=data, status=1).stderr.splitlines()
    assert message.startswith(f"Error: the job database {data}/trainshed.db no longer exists; slots/ of")
    assert f"mv {data} {data}.old" in message
    assert "no longer exists" in database_of(data)
    for path in tmp_path.glob("trainshed.*"):
        path.replace(data / path.name)
    assert programs and find_marked(mark) == programs
    with running(data) as service:
        seen = len(counter_lines(service, job_id))
        first_line(service, job_id, str(seen + 3))
        below = children(service.pid)
        (buckets,) = (pid for pid in below if "trainshed.buckets" in command_line(pid))
        os.kill(buckets, signal.SIGKILL)
        first_line(service, job_id, str(seen + 6))
        service.put("trainshed", "stop", b"")
        view = service.finish(job_id)
        assert (view["state"], view["attempt"]) == ("SUCCEEDED", 1)
        assert view["replicas"][0]["incarnation"] == 1
        lines = counter_lines(service, job_id)
        assert lines == [str(i) for i in range(len(lines))]
        stored: list[str] = []
        token = ""
        while True:
            page = service.call("GET", f"/storage/v1/b/trainshed/o?prefix=n/&pageToken={token}")
            stored += [item["name"] for item in page["items"]]
            if not (token := page.get("nextPageToken", "")):
                break
        assert stored == [f"n/{i:05}" for i in range(len(lines))]
    assert not leftovers(data)
