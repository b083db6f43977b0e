"""Child processes that are started without a copy of the service's memory tables."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from trainshed.eventloop.children import spawn

_ENV = {"PATH": "/usr/bin:/bin"}


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["pidfd", "thread"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")


async def test_what_it_writes_and_how_it_ends_is_told() -> None:
    child = await spawn(shell("echo out; echo err >&2; exit 7"), env=_ENV)
    assert await child.communicate() == (b"out\n", b"err\n")
    assert (child.returncode, await child.wait()) == (7, 7)
    child.send_signal(signal.SIGKILL)


async def test_a_signal_ends_it_in_a_session_of_its_own() -> None:
    child = await spawn(shell("echo up; exec sleep 60"), env=_ENV, cwd="/")
    assert await child.stdout.readline() == b"up\n"
    assert child.returncode is None and os.getsid(child.pid) == child.pid
    child.send_signal(signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM


async def test_nothing_is_left_open() -> None:
    counts: list[int] = []
    with pytest.raises(FileNotFoundError):
        await spawn(["/no/such/program"], env=_ENV, feeds=True)
    for _ in range(4):
        child = await spawn(["/bin/true"], env=_ENV, feeds=True)
        await child.communicate()
        for _ in range(5):
            await asyncio.sleep(0)  # The loop closes sockets in its next turns.
        counts.append(handles())
    assert counts[0] == counts[-1]
