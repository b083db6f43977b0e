"""A record that cannot be read, and databases that are damaged, met by a real service."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e import running as services
from tests.e2e.processes import marked, new_mark, wait_until_gone
from tests.e2e.running import Service, container_job, running, start, submit
from trainshed.store.sqlite.database import DATABASE_FILE

FOREVER = "import time\n# {mark}\nprint('up', flush=True)\ntime.sleep(600)"


def trainshed(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return services.trainshed(*arguments, "--data", str(data), data=data, status=None)


def up(service: Service, job_id: str) -> None:
    assert any(line == "up" for line in service.follow(job_id))


def spoil(data: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(data / DATABASE_FILE)) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


def test_one_bad_job_is_set_aside_and_stopped_and_others_run_on(data: Path) -> None:
    marks = new_mark(), new_mark()
    service = start(data)
    bad, good = (submit(service, container_job(FOREVER.format(mark=mark))) for mark in marks)
    up(service, bad)
    up(service, good)
    programs = [marked(mark) for mark in marks]
    assert all(programs)
    assert service.terminate() == 0
    spoil(data, "UPDATE jobs SET record = substr(record, 1, 99) WHERE job_id = ?", bad)
    with running(data) as service:
        log = (data / "service.log").read_text()
        assert "1 record set aside:" in log
        assert f"job {bad}" in log
        # Nobody would ever end it, so it is ended; the other one was never touched.
        wait_until_gone(programs[0])
        assert marked(marks[1]) == programs[1]
        described = trainshed(data, "jobs", "describe", bad)
        assert described.returncode == 1
        assert "It was set aside" in described.stderr
        listed = service.call("GET", "/trainshed/v1/jobs?project=-")
        assert good in str(listed)
        assert bad not in str(listed)
        fresh = submit(service, container_job("print('new')"))
        assert service.finish(fresh)["state"] == "SUCCEEDED"
        printed = trainshed(data, "doctor").stdout
        assert f"1 record set aside: job {bad}" in printed
        assert "trainshed restore" in printed


def refused(data: Path) -> str:
    done = trainshed(data, "up", "--port", "0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Error:"))
    assert "is damaged" in line
    assert "trainshed restore BACKUP" in line
    return line


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with jobs in its database, whose service was killed."""
    data = tmp_path_factory.mktemp("killed") / "data"
    service = start(data)
    for number in range(8):
        body = container_job("print('x')", name=f"job {number}")
        body["labels"] = {f"label{at}": "x" * 60 for at in range(60)}
        submit(service, body)
    service.kill()
    return data


@pytest.fixture
def used(killed: Path, data: Path) -> Path:
    """A copy of it: of its own."""
    data.mkdir()
    for file in killed.iterdir():
        if file.is_file():
            shutil.copy2(file, data)
    return data


def test_a_database_that_is_damaged_in_its_middle_is_refused(used: Path) -> None:
    # The log into the file first, as a service does from time to time.
    with closing(sqlite3.connect(used / DATABASE_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = (used / DATABASE_FILE).stat().st_size
    with (used / DATABASE_FILE).open("r+b") as file:
        for place in range(size // 4, size * 3 // 4, 4096 * 2):
            file.seek(place // 4096 * 4096)
            file.write(os.urandom(4096))
    refused(used)
    assert "!!  database" in trainshed(used, "doctor").stdout


@pytest.mark.parametrize("content", [b"", b"this is no database " * 1000])
def test_a_database_that_is_none_is_refused(used: Path, content: bytes) -> None:
    for end in ("-wal", "-shm"):
        (used / f"{DATABASE_FILE}{end}").unlink(missing_ok=True)
    (used / DATABASE_FILE).write_bytes(content)
    refused(used)
    assert (used / DATABASE_FILE).read_bytes() == content


def test_only_a_database_that_was_not_closed_is_looked_through(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainshed.store.sqlite import database
    from trainshed.store.sqlite.database import open_database

    looked: list[Path] = []

    def look(_: sqlite3.Connection, path: Path) -> None:
        looked.append(path)

    monkeypatch.setattr(database, "require_sound", look)
    open_database(data).close()
    open_database(data).close()
    assert looked == []
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os, pathlib; from trainshed.store.sqlite.database import open_database; "
            f"store = open_database(pathlib.Path({str(data)!r})); os._exit(9)",
        ],
        check=False,
    )
    open_database(data).close()
    assert looked == [data / DATABASE_FILE]
