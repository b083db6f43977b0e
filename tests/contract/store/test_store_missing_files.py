"""A missing or damaged database, and database files removed or replaced while a service runs
(spec/invariants#a-missing-database, docs/adr/0044)."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.commands import running
from tests.contract.store.store_samples import make_job
from tests.waiting import until
from trainshed.core.errors import NotFound, Unavailable
from trainshed.core.names import JobUid
from trainshed.store.port import NewWork, StoreUnreadable
from trainshed.store.sqlite.database import DATABASE_FILE, LOCK_FILE, Store, open_database
from trainshed.store.sqlite.presence import RESCUED


async def assert_jobs_exist(store: Store, *uids: int) -> None:
    for uid in uids:
        assert (await store.reader.job_by_uid(JobUid(uid)))[0].uid == uid


async def with_jobs(directory: Path, *uids: int) -> Store:
    store = open_database(directory)
    for uid in uids:
        await store.intake.create(NewWork(make_job(uid)))
    return store


def commands(text: str) -> list[str]:
    """Return the commands in a message, without the stop and the start of the service."""
    words = text[text.index("kill ") :].split("; ")
    assert words[0].startswith("kill ") and words[-1].startswith("trainshed up --data ")
    return words[1:-1]


def run(words: list[str]) -> None:
    for word in words:
        subprocess.run(["/bin/sh", "-c", word], check=True, timeout=60)


@pytest.mark.parametrize("left", ["lock", "slots", "logs"])
async def test_missing_database_is_not_replaced_by_an_empty_database(tmp_path: Path, left: str) -> None:
    (await with_jobs(tmp_path, 1)).close()
    (tmp_path / DATABASE_FILE).unlink()
    if left != "lock":
        (tmp_path / LOCK_FILE).unlink()
        (tmp_path / left / "7529846868474925823").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(StoreUnreadable) as refusal:
            open_database(tmp_path)
        text = str(refusal.value)
        assert f"{tmp_path / DATABASE_FILE} no longer exists" in text
        assert "trainshed restore BACKUP --data NEW" in text
        assert f"mv {tmp_path} {tmp_path}.old" in text
        assert left == "lock" or f"{left}/ of 1 job remains" in text
        assert not (tmp_path / DATABASE_FILE).exists()


async def test_directories_without_a_database_do_not_prevent_a_start(tmp_path: Path) -> None:
    """Examples are buckets, and a volume for logs."""
    for name in ("buckets/mine", "logs/lost+found", "slots/.trash"):
        (tmp_path / name).mkdir(parents=True)
    open_database(tmp_path).close()


_CHILD = """
import asyncio, os, sys
from pathlib import Path
from tests.contract.store.store_samples import make_job
from tests.waiting import until
from trainshed.core.errors import NotFound, Unavailable
from trainshed.store.port import NewWork
from trainshed.store.sqlite.database import open_database

async def main():
    store = open_database(Path(sys.argv[1]))
    await store.ledger.acquire("child")
    first = int(sys.argv[2])
    for uid in (first, first + 1):
        try:
            await store.intake.create(NewWork(make_job(uid)))
            print("stored", flush=True)
        except Unavailable as refusal:
            print(refusal, flush=True)
        if not sys.stdin.readline():
            break
    store.close()

asyncio.run(main())
"""


@contextlib.contextmanager
def child_with_a_job(directory: Path, uid: int) -> Generator["subprocess.Popen[str]"]:
    """A process that has stored a job, and stores another one for each input line. It is killed at
    the end."""
    with running(
        *(sys.executable, "-c", _CHILD, str(directory), str(uid)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout and child.stdout.readline() == "stored\n"
        yield child


@pytest.mark.parametrize("starts", [1, 2])
async def test_missing_write_ahead_log_after_a_kill_fails_the_start(tmp_path: Path, starts: int) -> None:
    """The log of a new database contains everything, the log of an older one the latest changes."""
    for uid in range(1, starts):
        (await with_jobs(tmp_path, uid)).close()
    with child_with_a_job(tmp_path, 9):
        pass
    kept = tmp_path.with_name("kept-wal")
    (tmp_path / f"{DATABASE_FILE}-wal").rename(kept)
    with pytest.raises(StoreUnreadable, match="-wal"):
        open_database(tmp_path)
    kept.rename(tmp_path / f"{DATABASE_FILE}-wal")
    store = open_database(tmp_path)
    await assert_jobs_exist(store, 9, *range(1, starts))
    store.close()


async def test_older_copy_of_the_database_is_rejected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (await with_jobs(data, 1)).close()
    copy = shutil.copy(data / DATABASE_FILE, tmp_path)
    store = await with_jobs(data, 2)
    await store.ledger.acquire("a service")
    store.close()
    shutil.copy(copy, data / DATABASE_FILE)
    with pytest.raises(StoreUnreadable, match=r"older.*1 start.*rm .*trainshed\.lock") as refusal:
        open_database(data)
    text = str(refusal.value)
    run([text[text.index("rm ") :].partition(";")[0]])
    store = open_database(data)
    await assert_jobs_exist(store, 1)
    store.close()


def answer(child: "subprocess.Popen[str]") -> str:
    assert child.stdin and child.stdout
    child.stdin.write("try another\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


REMOVALS = {
    "unlinked wal": ["rm {db}-wal"],
    "unlinked shm": ["rm {db}-shm"],
    "unlinked database": ["rm {db}"],
    "all unlinked": ["rm {db} {db}-wal {db}-shm"],
    "replaced file": ["mv {db} {db}.away", "cp {db}.away {db}"],
}


@pytest.mark.parametrize("case", REMOVALS)
@pytest.mark.parametrize("end", ["killed", "closed", "killed while somebody reads"])
async def test_acknowledged_writes_survive_removed_database_files(
    tmp_path: Path, case: str, end: str
) -> None:
    """The next write is rejected. The commands of its message restore all acknowledged writes, even
    after a kill."""
    (await with_jobs(tmp_path, 1)).close()
    reader = sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)
    if "reads" in end:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()
    with child_with_a_job(tmp_path, 2) as child:
        run([word.format(db=tmp_path / DATABASE_FILE) for word in REMOVALS[case]])
        text = answer(child)
        if end == "closed":
            child.communicate(timeout=30)
    assert "nothing was stored" in text and "Programs continue" in text and f"kill {child.pid}" in text
    run(commands(text))
    store = open_database(tmp_path)
    await assert_jobs_exist(store, 1, 2)
    with pytest.raises(NotFound):
        await store.reader.job_by_uid(JobUid(3))
    await store.intake.create(NewWork(make_job(4)))
    store.close()
    reader.close()


async def test_store_accepts_writes_again_after_its_database_file_is_restored(tmp_path: Path) -> None:
    store = await with_jobs(tmp_path, 1)
    database, away = tmp_path / DATABASE_FILE, tmp_path / "away"
    database.rename(away)
    with pytest.raises(Unavailable):
        await store.intake.create(NewWork(make_job(2)))
    away.rename(database)
    await store.intake.create(NewWork(make_job(2)))
    await assert_jobs_exist(store, 1, 2)
    store.close()


async def test_removed_database_file_is_detected_without_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.store.sqlite.database._WATCH_EVERY", 0.01)
    store = await with_jobs(tmp_path, 1)
    watching = asyncio.create_task(store.watch())
    (tmp_path / DATABASE_FILE).unlink()
    await until((tmp_path / RESCUED).exists)
    watching.cancel()
    store.close()
    with pytest.raises(StoreUnreadable, match="saved its content") as refusal:
        open_database(tmp_path)
    text = str(refusal.value)
    run(text[text.index("rm -f") :].partition(". Or")[0].split("; "))
    store = open_database(tmp_path)
    await assert_jobs_exist(store, 1)
    store.close()


async def test_content_of_a_removed_database_is_saved_to_another_file_when_the_store_closes(
    tmp_path: Path,
) -> None:
    store = await with_jobs(tmp_path, 1)
    (tmp_path / DATABASE_FILE).unlink()
    store.close()
    assert (tmp_path / RESCUED).stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreUnreadable, match="saved its content"):
        open_database(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"this is no database " * 1000])
async def test_damaged_database_is_rejected(tmp_path: Path, content: bytes | None) -> None:
    """The damage is in the middle, where only a complete check finds it, or at the beginning."""
    store, database = await with_jobs(tmp_path, *range(1, 200)), tmp_path / DATABASE_FILE
    lock = (tmp_path / LOCK_FILE).read_bytes()
    store.close()
    (tmp_path / LOCK_FILE).write_bytes(lock)  # The service that used it was killed.
    if content is None:
        whole = database.read_bytes()
        half = len(whole) // 2
        content = whole[: half // 2] + os.urandom(half) + whole[half // 2 + half :]
    database.write_bytes(content)
    with pytest.raises(StoreUnreadable, match=r"is damaged.*trainshed restore BACKUP"):
        open_database(tmp_path)
    assert database.read_bytes() == content


async def test_database_is_checked_completely_only_if_the_store_was_not_closed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []

    def look(_: object, path: Path) -> None:
        looked.append(path)

    monkeypatch.setattr("trainshed.store.sqlite.database.require_sound", look)
    for _ in range(2):
        open_database(tmp_path).close()
    assert looked == []
    with child_with_a_job(tmp_path, 9):
        pass
    open_database(tmp_path).close()
    assert looked == [tmp_path / DATABASE_FILE]
