"""Pool of TensorBoard processes: limits, idle timeout and replacement (docs/tensorboard.md)."""

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


class FakeViewer(ViewerProcess):
    """A viewer that serves immediately. `end` terminates it."""

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

    async def wait_ended(self) -> str:
        return await asyncio.shield(self._death)

    async def close(self) -> None:
        self.end("")


class ViewerStarter:
    """A function that starts fake viewers and records them."""

    def __init__(self) -> None:
        self.made: list[FakeViewer] = []

    async def __call__(self) -> ViewerProcess:
        self.made.append(FakeViewer())
        return self.made[-1]


async def use(pool: ViewerPool, name: str, start: Callable[[], Awaitable[ViewerProcess]]) -> ViewerProcess:
    async with pool.viewer(name, start) as viewer:
        return viewer


@under_virtual_time
async def test_idle_tensorboard_is_stopped_and_started_again_on_demand() -> None:
    pool, starts = ViewerPool(2, idle=600), ViewerStarter()
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
async def test_tensorboard_with_an_open_request_is_not_idle() -> None:
    pool, starts = ViewerPool(1, idle=600), ViewerStarter()
    async with pool.viewer("7", starts) as viewer:
        await asyncio.sleep(3600)
        assert viewer.is_alive
        with pytest.raises(Unavailable, match="which is the maximum"):
            await use(pool, "8", starts)
    await pool.close()


@under_virtual_time
async def test_least_recently_used_tensorboard_is_stopped_when_too_many_tensorboards_run() -> None:
    pool, starts = ViewerPool(2, idle=0), ViewerStarter()
    for name in ("7", "8", "7", "9"):
        await use(pool, name, starts)
        await asyncio.sleep(1)
    assert [viewer.is_alive for viewer in starts.made] == [True, False, True]
    await pool.close()
    assert not any(viewer.is_alive for viewer in starts.made)


@under_virtual_time
async def test_tensorboard_with_changed_contents_is_restarted() -> None:
    pool, starts = ViewerPool(2, idle=0), ViewerStarter()
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
async def test_concurrent_requests_share_one_tensorboard() -> None:
    pool, starts = ViewerPool(1, idle=0), ViewerStarter()
    answers = await asyncio.gather(*(use(pool, "7", starts) for _ in range(5)))
    assert len(set(map(id, answers))) == len(starts.made) == 1
    await pool.close()


@under_virtual_time
async def test_crashed_tensorboard_is_started_again() -> None:
    pool, starts = ViewerPool(1, idle=0), ViewerStarter()
    await use(pool, "7", starts)
    starts.made[0].end("it took more memory")
    await use(pool, "7", starts)
    assert len(starts.made) == 2
    pool.end(lambda name: name == "7")
    await asyncio.sleep(1)
    assert not starts.made[1].is_alive

    async def bad() -> ViewerProcess:
        return FakeViewer(Unavailable("no"))

    with pytest.raises(Unavailable, match="no"):
        await use(pool, "7", bad)
    assert len(pool) == 0
    await pool.close()


async def test_tensorboard_view_of_many_jobs_has_a_short_directory_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, pool = AsyncMock(return_value=FakeViewer()), ViewerPool(1)
    monkeypatch.setattr(service, "start", start)
    viewers = LocalViewers(tmp_path, Mock(), Mock(), Mock(), pool=pool, closing=asyncio.Event())
    await viewers.open("-".join(["9" * 19] * 20), [Mock()], print)
    assert len(start.await_args_list[0].args[0].name) < 100
    await viewers.close()
