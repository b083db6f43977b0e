"""Who keeps the bucket process alive outlives what the machine cannot give for a while."""

import asyncio
import errno
import logging
import os
import signal

import pytest

from trainshed.buckets.setup import BucketRules, BucketSetup
from trainshed.serve import children
from trainshed.serve.children import BucketKeeper

SETUP = BucketSetup(root="/nowhere", replicas="", tokens="", rules=BucketRules())


def idle() -> int:
    """A process that does nothing until it is ended."""
    return os.posix_spawn("/bin/sleep", ["sleep", "60"], {})


def test_a_bucket_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No memory, or too many processes, for a moment: it once ended the keeper, and with it the buckets for
    good."""
    refusals = [OSError(errno.ENOMEM, "Cannot allocate memory"), OSError(errno.EAGAIN, "try again")]
    spawned: list[int] = []

    async def story() -> None:
        again = asyncio.Event()
        loop = asyncio.get_running_loop()

        def spawn(_: BucketSetup) -> int:
            if refusals:
                raise refusals.pop(0)
            spawned.append(idle())
            loop.call_soon_threadsafe(again.set)
            return spawned[0]

        monkeypatch.setattr(children, "spawn_buckets", spawn)
        monkeypatch.setattr(children, "RESTART_DELAY", 0.01)
        first = idle()
        keeper = BucketKeeper(SETUP, first)
        keeper.start()
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(30):
            await again.wait()
            await keeper.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    with pytest.raises(ProcessLookupError):
        os.kill(spawned[0], 0)
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "cannot be started" in line]) == 2
    assert "Cannot allocate memory; once more in 0.02 s" in caplog.text
    assert "once more in 0.04 s" in caplog.text


def test_a_keeper_that_waits_before_the_next_try_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        refused = asyncio.Event()
        loop = asyncio.get_running_loop()

        def spawn(_: BucketSetup) -> int:
            loop.call_soon_threadsafe(refused.set)
            raise OSError(errno.EAGAIN, "try again")

        monkeypatch.setattr(children, "spawn_buckets", spawn)
        monkeypatch.setattr(children, "_LONGEST_DELAY", 3600.0)
        monkeypatch.setattr(children, "RESTART_DELAY", 0.01)
        first = idle()
        keeper = BucketKeeper(SETUP, first)
        keeper.start()
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(30):
            await refused.wait()
            monkeypatch.setattr(children, "RESTART_DELAY", 3600.0)
            await keeper.close()

    asyncio.run(story())
