"""A record that cannot be read, met by a real service; damaged databases: `tests/contract/store`."""

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests.e2e import running as services
from tests.e2e.processes import marked, new_mark, wait_until_gone
from tests.e2e.running import container_job, running, start, submit
from tests.e2e.stories import until
from trainshed.store.sqlite.database import DATABASE_FILE

FOREVER = "import time\n# {mark}\nprint('up', flush=True)\ntime.sleep(600)"


def trainshed(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return services.trainshed(*arguments, "--data", str(data), data=data, status=None)


def test_one_bad_job_is_stopped_and_others_run_on(data: Path) -> None:
    marks = new_mark(), new_mark()
    service = start(data)
    bad, good = (submit(service, container_job(FOREVER.format(mark=mark))) for mark in marks)
    for job in (bad, good):
        until(service.follow(job), "up")
    programs = [marked(mark) for mark in marks]
    assert all(programs)
    assert service.terminate() == 0
    with closing(sqlite3.connect(data / DATABASE_FILE)) as connection, connection:
        cut = "UPDATE jobs SET record = substr(record, 1, 99) WHERE job_id = ?"
        assert connection.execute(cut, [bad]).rowcount == 1
    with running(data) as service:
        log = (data / "service.log").read_text()
        assert "table jobs of trainshed.db cannot be read" in log
        # Nobody would ever end it, so it is ended; the other one was never touched.
        wait_until_gone(programs[0])
        assert marked(marks[1]) == programs[1]
        described = trainshed(data, "jobs", "describe", bad)
        assert described.returncode == 1
        assert "table jobs of trainshed.db cannot be read" in described.stderr
        listed = service.call("GET", "/trainshed/v1/jobs?project=-")
        assert good in str(listed)
        assert bad not in str(listed)
        fresh = submit(service, container_job("print('new')"))
        assert service.finish(fresh)["state"] == "SUCCEEDED"
        printed = trainshed(data, "doctor").stdout
        assert f"without them: jobs {bad}" in printed
        assert "trainshed restore" in printed
