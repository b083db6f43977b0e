"""How many TensorBoards run, which of them is ended for another, and when (docs/tensorboard.md)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from tests.sim.virtual import under_virtual_time
from trainshed.core.errors import Unavailable
from trainshed.httpd.messages import Lapse, Request, Response
from trainshed_tracking.viewers import service
from trainshed_tracking.viewers.process import ViewerProcess
from trainshed_tracking.viewers.service import LocalViewers, ViewerPool


class Fake(ViewerProcess):
    """A viewer that serves at once. `end` has it die."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        return not self._death.done()

    def end(self, why: str) -> None:
        if not self._death.done():
            self._death.set_result(why)

    async def ready(self) -> None:
        if self._fault is not None:
            raise self._fault

    async def forward(self, request: Request, closing: asyncio.Event, lapse: Lapse) -> Response:
        return Response()

    async def ended(self) -> str:
        return await asyncio.shield(self._death)

    async def close(self) -> None:
        self.end("")


class Starts:
    """Starts viewers, and keeps them by number."""

    def __init__(self) -> None:
        self.made: list[Fake] = []

    async def __call__(self) -> ViewerProcess:
        self.made.append(Fake())
        return self.made[-1]


async def use(
    pool: ViewerPool, name: str, start: Callable[[], Awaitable[ViewerProcess]]
) -> ViewerProcess:
    async with pool.viewer(name, start) as viewer:
        return viewer


@under_virtual_time
async def test_one_that_nobody_asks_for_is_ended_and_started_again() -> None:
    pool, starts = ViewerPool(2, idle=600), Starts()
    first = await use(pool, "7", starts)
    await asyncio.sleep(599)
    assert await use(pool, "7", starts) is first
    await asyncio.sleep(599)
    assert first.is_alive
    await asyncio.sleep(2)
    assert not first.is_alive and len(pool) == 0
    assert await use(pool, "7", starts) is not first
    await pool.close()


@under_virtual_time
async def test_one_at_work_is_not_idle() -> None:
    pool, starts = ViewerPool(1, idle=600), Starts()
    async with pool.viewer("7", starts) as viewer:
        await asyncio.sleep(3600)
        assert viewer.is_alive
        with pytest.raises(Unavailable, match="no more may run at once"):
            await use(pool, "8", starts)
    await pool.close()


@under_virtual_time
async def test_the_one_that_was_used_least_lately_makes_room() -> None:
    pool, starts = ViewerPool(2, idle=0), Starts()
    for name in ("7", "8", "7", "9"):
        await use(pool, name, starts)
        await asyncio.sleep(1)
    assert [viewer.is_alive for viewer in starts.made] == [True, False, True]
    await pool.close()
    assert not any(viewer.is_alive for viewer in starts.made)


@under_virtual_time
async def test_what_is_to_be_shown_anew_is_started_anew() -> None:
    pool, starts = ViewerPool(2, idle=0), Starts()
    async with pool.viewer("7", starts, "one trial") as first:
        assert pool.has("7")
    async with pool.viewer("7", starts, "two trials") as same:
        assert same is first
    async with pool.viewer("7", starts, "one trial", renew=True) as same:
        assert same is first
    async with pool.viewer("7", starts, "two trials", renew=True) as other:
        assert other is not first
    await asyncio.sleep(1)
    assert [viewer.is_alive for viewer in starts.made] == [False, True]
    await pool.close()
    assert not pool.has("7")


@under_virtual_time
async def test_many_who_ask_at_once_have_one() -> None:
    pool, starts = ViewerPool(1, idle=0), Starts()
    answers = await asyncio.gather(*(use(pool, "7", starts) for _ in range(5)))
    assert len(set(map(id, answers))) == len(starts.made) == 1
    await pool.close()


@under_virtual_time
async def test_one_that_died_or_never_served_is_started_again() -> None:
    pool, starts = ViewerPool(1, idle=0), Starts()
    await use(pool, "7", starts)
    starts.made[0].end("it took more memory")
    await use(pool, "7", starts)
    assert len(starts.made) == 2
    pool.end(lambda name: name == "7")
    await asyncio.sleep(1)
    assert not starts.made[1].is_alive

    async def bad() -> ViewerProcess:
        return Fake(Unavailable("no"))

    with pytest.raises(Unavailable, match="no"):
        await use(pool, "7", bad)
    assert len(pool) == 0
    await pool.close()


async def test_a_view_of_many_jobs_lies_in_a_directory_with_a_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, pool = AsyncMock(return_value=Fake()), ViewerPool(1)
    monkeypatch.setattr(service, "start", start)
    viewers = LocalViewers(tmp_path, Mock(), Mock(), Mock(), pool=pool, closing=asyncio.Event())
    await viewers.open("-".join(["9" * 19] * 20), [Mock()], print)
    assert len(start.await_args_list[0].args[0].name) < 100
    await viewers.close()
