"""Child processes of the service end with it, even if they are stopped or busy. The processes are real."""

import asyncio
import contextlib
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import children as children_of
from tests.e2e.processes import command_line, wait_until_gone
from trainshed.buckets.listeners import Listeners
from trainshed.buckets.setup import BucketSetup
from trainshed.serve import children
from trainshed.serve.children import BucketKeeper

SPAWNED = """
import http.client, sys, time
from trainshed.buckets.listeners import Listeners
from trainshed.buckets.setup import BucketSetup
from trainshed.serve.children import spawn_buckets
setup = BucketSetup.decode(sys.argv[1])
listeners = Listeners.open(setup)
pid = spawn_buckets(setup, listeners).pid
if sys.argv[2] == "serving":
    connection = http.client.HTTPConnection("127.0.0.1", listeners.ports()[0])
    connection.request("GET", "/storage/v1/b")
    connection.getresponse()
print(pid, flush=True)
time.sleep(600)
"""
ADVISED = """
import asyncio
from trainshed.studies import advisor_client
async def main():
    process = await advisor_client.start()
    print(process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def orphan_child(script: str, *arguments: str, hold: signal.Signals) -> int:
    """Return the child of a service that was killed while `hold` was sent to the child."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        child = int(service.stdout.readline())
        os.kill(child, hold)
        service.kill()
    return child


def setup_in(root: Path, **more: Any) -> BucketSetup:
    """Return the setup of buckets with a TCP port."""
    paths = f"{root}/buckets", f"{root}/gateway", f"{root}/replicas", f"{root}/access.json"
    return BucketSetup(*paths, host="127.0.0.1", **more)


def ask(setup: BucketSetup, listeners: Listeners) -> tuple[int, int]:
    """Send an anonymous request to the TCP port, and return the response's status and the process that sent
    it."""
    port, _ = listeners.ports()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/storage/v1/b?project=p")
        status = connection.getresponse().status
        # This process may have other children, for example of tests whose services were killed.
        (process,) = (pid for pid in children_of(os.getpid()) if setup.root in command_line(pid))
    return status, process


@contextlib.asynccontextmanager
async def running_keeper(setup: BucketSetup) -> AsyncGenerator[Listeners]:
    """Return the listeners while a keeper runs the bucket process."""
    listeners = Listeners.open(setup)
    keeper = BucketKeeper(setup, listeners)
    keeper.start()
    async with asyncio.timeout(90):
        yield listeners
        await keeper.close()


@pytest.mark.parametrize(("state", "hold"), [("serving", signal.SIGSTOP), ("beginning", signal.SIGCONT)])
def test_bucket_process_ends_with_a_killed_service(tmp_path: Path, state: str, hold: signal.Signals) -> None:
    """The child may be busy in an endless computation, or just starting."""
    child = orphan_child(SPAWNED, setup_in(tmp_path).encode(), state, hold=hold)
    wait_until_gone([child])


async def test_bucket_process_is_started_by_the_first_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ADR 22: the first call waits for the process, as does the first call after its end. Calls in
    between reach the same process."""
    setup = setup_in(tmp_path)
    seen: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING):
        async with running_keeper(setup) as listeners:
            for _ in range(2):
                seen += [await asyncio.to_thread(ask, setup, listeners) for _ in range(2)]
                os.kill(seen[-1][1], signal.SIGTERM)
                await asyncio.to_thread(wait_until_gone, [seen[-1][1]])
    assert [status for status, _ in seen] == [401] * 4
    first, again, second, last = (pid for _, pid in seen)
    assert first == again != second == last
    assert not caplog.records


def test_closing_listeners_keeps_sockets_of_a_new_service(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    first, second = Listeners.open(setup), Listeners.open(setup)
    first.close()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(setup.gateway)
    second.close()
    assert not Path(setup.gateway).exists()


def test_process_that_computes_suggestions_ends_with_a_killed_service() -> None:
    child = orphan_child(ADVISED, hold=signal.SIGCONT)
    wait_until_gone([child])


async def test_hanging_bucket_process_is_killed_at_the_services_close(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(children, "STOP_TIMEOUT", 0.3)
    setup = setup_in(tmp_path)
    async with running_keeper(setup) as listeners:
        _, pid = await asyncio.to_thread(ask, setup, listeners)
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
