"""The current code opens databases of all releases from 0.2.0 on (`dumps/README.md`)."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.store.database_dump import contents, dump_of_new_store, fill
from tests.contract.store.store_samples import live_job, make_job, step
from tests.inline_store import open_inline
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, normalize_email
from trainshed.store.port import NewWork, StoreOfOtherVersion, StoreUnreadable
from trainshed.store.sqlite.database import DATABASE_FILE, open_database

DUMPS = {path.stem: path.read_text() for path in Path(__file__).with_name("dumps").glob("*.sql")}


@pytest.mark.parametrize("release", [*DUMPS, "today"])
async def test_data_of_an_earlier_release_is_readable_and_writable(tmp_path: Path, release: str) -> None:
    script = DUMPS.get(release) or await dump_of_new_store(tmp_path / "made")
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.executescript(script)
    store, fresh = open_database(tmp_path), open_inline()
    await fill(fresh)
    assert await contents(store) == await contents(fresh)
    epoch = await store.ledger.acquire("next release")
    live = live_job(await store.ledger.load(JobUid(1)))
    await store.ledger.commit(epoch, step(live, JobState.SUCCEEDED, "ended"))
    await store.intake.create(NewWork(make_job(99)))
    store.close()


@pytest.mark.parametrize("release", DUMPS)
def test_upgraded_database_has_the_tables_of_a_new_database(tmp_path: Path, release: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for place in (old, new):
        place.mkdir()
    with closing(sqlite3.connect(old / DATABASE_FILE)) as connection:
        connection.executescript(DUMPS[release])
    for place in (old, new):
        open_database(place).close()
    assert tables(old) == tables(new)


def test_quotas_and_jobs_of_capitalized_emails_are_converted(tmp_path: Path) -> None:
    jobs = ["Ana@x.io", "Zoë@x.io", "ÄRZTE@Ö.de", "ΣΊΣΥΦΟΣ@x.gr", "bo@x.io", ""]
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        connection.executescript(DUMPS["0.2.0"])
        connection.execute("DELETE FROM quotas")
        # A limit for the lower-case address takes precedence, then the lowest limit.
        limits = [("Ana@x.io", 4.0), ("ANA@x.io", 1.0), ("Bo@x.io", 2.0), ("bo@x.io", 3.0)]
        limits += [("ÄRZTE@Ö.de", 5.0), ("Ärzte@ö.de", 6.0), ("each", 7.0), ("", 8.0)]
        connection.executemany("INSERT INTO quotas VALUES ('p', 'global', 'jobs', ?, ?)", limits)
        label = "INSERT INTO work_labels VALUES (?, ?, ?)"
        connection.executemany(label, [(90 + at, "@person", who) for at, who in enumerate(jobs)])
        connection.execute(label, (90, "team", "Ärzte"))
        # A damaged disk can leave such a value.
        connection.execute("INSERT INTO work_labels VALUES (80, '@person', CAST(x'41ff' AS TEXT))")
        connection.commit()
    open_database(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        rows = connection.execute("SELECT person, ceiling FROM quotas ORDER BY ceiling").fetchall()
        expected = [("ana@x.io", 1.0), ("bo@x.io", 3.0), ("ärzte@ö.de", 5.0)]
        assert rows == [*expected, ("each", 7.0), ("", 8.0)]
        people = "SELECT value FROM work_labels WHERE uid >= 90 AND key = '@person' ORDER BY uid"
        assert connection.execute(people).fetchall() == [(normalize_email(who),) for who in jobs]
        teams = connection.execute("SELECT value FROM work_labels WHERE uid = 90 AND key = 'team'")
        assert teams.fetchall() == [("Ärzte",)]


def tables(place: Path) -> list[tuple[str, list[str]]]:
    with closing(sqlite3.connect(place / DATABASE_FILE)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql <> '' ORDER BY name")
        return [(name, re.sub("--.*", "", sql).split()) for name, sql in rows]


def with_old_schema(connection: sqlite3.Connection) -> None:
    connection.executescript("CREATE TABLE jobs (uid INTEGER); PRAGMA user_version = 10;")


def with_foreign_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE bookmarks (url TEXT)")


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (with_old_schema, StoreOfOtherVersion, "before release 0.2.0.*Keep the checkout .* --data DIR"),
        (with_foreign_table, StoreUnreadable, "database of another program.* --data DIRECTORY"),
    ],
)
def test_unsupported_database_is_rejected_and_not_changed(
    tmp_path: Path, made: object, error: type[Exception], text: str
) -> None:
    assert callable(made)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        made(connection)
        before = list(connection.iterdump())
        for _ in range(2):
            with pytest.raises(error, match=text):
                open_database(tmp_path)
        assert list(connection.iterdump()) == before
