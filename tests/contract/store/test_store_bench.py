"""The benchmark of the store measures a store as the service leaves it."""

import asyncio
from pathlib import Path

from bench import control_plane, history

from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.store.port import JobQuery, open_store


def test_what_is_filled_in_can_be_read_and_led_on(tmp_path: Path) -> None:
    history.fill(tmp_path / "filled", finished=30, queued=10)
    store = open_store("sqlite", tmp_path / "filled")

    async def look() -> None:
        live = await store.ledger.load_live()
        assert [each.job.uid for each in live] == list(range(31, 41))
        page = await store.reader.jobs(JobQuery("research", None, None, after=31))
        assert [job.uid for job, _ in page] == list(range(30, 0, -2))
        assert all(job.state is JobState.SUCCEEDED for job, _ in page)
        first, _ = page[0]
        assert (await store.reader.job(first.name))[0] == first
        assert len(await store.reader.timeline(JobUid(30))) == 6
        assert len(await store.reader.timeline(JobUid(31))) == 1

    asyncio.run(look())
    store.close()


def test_every_call_is_compared(tmp_path: Path) -> None:
    compared = control_plane.measure(tmp_path, finished=(20, 40), queued=10, rounds=10)
    assert list(compared) == list(control_plane.CALLS)
    rows = control_plane.rows(compared)
    assert len(rows) == 2 * len(compared)
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
