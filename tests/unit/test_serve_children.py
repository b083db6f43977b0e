"""Tests of the keeper that starts the bucket process at the first connection, and retries without memory or
processes."""

import asyncio
import errno
import logging
import os
import socket
import subprocess
from pathlib import Path

import pytest

from trainshed.buckets.listeners import Listeners
from trainshed.buckets.setup import BucketSetup
from trainshed.serve import children
from trainshed.serve.children import BucketKeeper


def setup_in(of: Path) -> BucketSetup:
    return BucketSetup(f"{of}/buckets", f"{of}/gateway.sock", f"{of}/replicas", f"{of}/tokens")


def call(setup: BucketSetup) -> socket.socket:
    """Connect, whether or not a process accepts the connection."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(setup.gateway)
    return connection


class Spawning:
    """A replacement of `spawn_buckets`, which fails some times before it succeeds."""

    def __init__(self, refusals: list[OSError]) -> None:
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self.spawned: list[subprocess.Popen[bytes]] = []
        #: Set when a start is requested.
        self.asked = asyncio.Event()

    def __call__(self, setup: BucketSetup, listeners: Listeners) -> "subprocess.Popen[bytes]":
        if not self._refusals:
            self.spawned.append(subprocess.Popen(["sleep", "60"]))
        self._loop.call_soon_threadsafe(self.asked.set)
        if self._refusals:
            raise self._refusals.pop(0)
        return self.spawned[-1]


async def test_failed_start_of_the_bucket_process_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A temporary lack of memory or processes must not end all access to buckets."""
    setup = setup_in(tmp_path)
    with caplog.at_level(logging.WARNING):
        spawning = Spawning([OSError(errno.ENOMEM, "Cannot allocate memory"), OSError(errno.EAGAIN)])
        monkeypatch.setattr(children, "spawn_buckets", spawning)
        monkeypatch.setattr(children, "RESTART_DELAY", 0.01)
        keeper = BucketKeeper(setup, Listeners.open(setup))
        keeper.start()
        async with asyncio.timeout(60):
            with call(setup):
                while not spawning.spawned:
                    spawning.asked.clear()
                    await spawning.asked.wait()
            await keeper.close()
        (process,) = spawning.spawned
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert "Cannot allocate memory; restarted after 0.01 s" in caplog.text
    assert "restarted after 0.02 s" in caplog.text


async def test_service_stop_does_not_wait_for_the_restart_delay_of_the_bucket_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setup = setup_in(tmp_path)
    spawning = Spawning([OSError(errno.EAGAIN)])
    monkeypatch.setattr(children, "spawn_buckets", spawning)
    monkeypatch.setattr(children, "RESTART_DELAY", 3600.0)
    keeper = BucketKeeper(setup, Listeners.open(setup))
    keeper.start()
    async with asyncio.timeout(60):
        with call(setup):
            await spawning.asked.wait()
        await keeper.close()
