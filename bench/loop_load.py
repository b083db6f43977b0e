"""Load for the service's event loop, and a process that sends requests to the service during the load.
`bench/loop.py` uses them."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.e2e.packages import package_job, source_package, upload
from tests.e2e.processes import children
from tests.e2e.running import CUSTOM_JOBS, ROOT, SKLEARN, Service, container_job, submit

GANG = 200
OBJECTS = 100_000
_FLOOD = "import sys\nfor n in range({lines}): sys.stdout.write('%d ' % n + 'x' * 90 + '\\n')"
_CALL_INTERVAL = 0.005


class Caller:
    """A process that requests the service's status, in turn with requests to its own echo server, until it is
    stopped."""

    def __init__(self, service: Service) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.loop_load", service.rest, service.token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # The process has started.

    def stop(self) -> tuple[list[float], list[float]]:
        """Return the seconds of each request to the service and to the echo server."""
        output, _ = self._process.communicate()
        calls, echoes = json.loads(output)
        return calls, echoes


@contextlib.contextmanager
def calling(service: Service) -> Generator[list[list[float]]]:
    """Send requests during the block. At its end, add the seconds of the requests and of the echoes to the
    lists."""
    series: list[list[float]] = []
    caller = Caller(service)
    try:
        yield series
    finally:
        series += caller.stop()


def start_gang(service: Service, count: int = GANG) -> None:
    """Run a gang of sleepers: submit it, wait until all replicas have started, cancel it, and wait until all
    replicas have ended."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "containerSpec": {"imageUri": SKLEARN, "command": ["sleep", "300"]},
    }
    pools = [pool | {"replicaCount": "1"}, pool | {"replicaCount": str(count - 1)}]
    job = submit(service, {"displayName": "gang", "jobSpec": {"workerPoolSpecs": pools}})
    for view in service.watch(job, 300):
        if view["state"] == "RUNNING":
            break
    service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    service.finish(job, 120)


def build(service: Service) -> None:
    """Run a job with a new package whose setup computes for a while."""
    setup = (
        "import time\nend = time.time() + 1.0\nwhile time.time() < end: pass\n"
        "from setuptools import setup; setup(name='pkg', version='1.0', packages=['trainer'])"
    )
    content = source_package(f"print({time.time_ns()})", setup)
    uri = upload(service, f"loop/pkg-{time.time_ns()}.tar.gz", content)
    service.finish(submit(service, package_job(uri)), 300)


def flood(service: Service, lines: int = 150_000) -> None:
    """Run two programs that print as fast as their output is read, and a client that follows the log of one
    program."""
    jobs = [submit(service, container_job(_FLOOD.format(lines=lines))) for _ in range(2)]
    request = urllib.request.Request(
        f"{service.rest}/trainshed/v1/jobs/{jobs[0]}/logs?follow=true",
        headers={"Authorization": f"Bearer {service.token}"},
    )
    with urllib.request.urlopen(request, timeout=180) as response:
        while response.read(1 << 16):
            pass
    for job in jobs:
        service.finish(job, 180)


def fill(service: Service, objects: int = OBJECTS) -> None:
    """Create objects for `list_objects`. They are empty files in the default bucket."""
    for block in range(objects // 1000):
        directory = Path(service.data, "buckets", "trainshed", "many", f"{block:03d}")
        directory.mkdir(parents=True)
        for number in range(1000):
            (directory / f"{number:03d}").touch()


def list_objects(service: Service, pages: int = 10) -> None:
    """List `pages` pages of the objects through the service's main port."""
    token = ""
    for _ in range(pages):
        query = urllib.parse.urlencode({"prefix": "many/", "pageToken": token})
        page: dict[str, Any] = service.call("GET", f"/storage/v1/b/trainshed/o?{query}")
        assert len(page["items"]) == 1000
        token = page["nextPageToken"]


def hang_zygote(service: Service, count: int = 40) -> None:
    """Stop the zygote, and then run a gang."""
    (zygote,) = (
        pid for pid in children(service.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == "ts-zygote"
    )
    os.kill(zygote, signal.SIGSTOP)
    start_gang(service, count)


# --- the process of a caller ---


async def _call(rest: str, token: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Echo, "127.0.0.1", 0)
    address = urllib.parse.urlsplit(rest)
    ours = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    theirs = await asyncio.open_connection(address.hostname, address.port)
    ask = (
        "GET /trainshed/v1/status HTTP/1.1\r\n"
        f"Host: {address.netloc}\r\n"
        f"Authorization: Bearer {token}\r\n"
        "\r\n"
    ).encode()
    calls: list[float] = []
    echoes: list[float] = []
    stop = loop.run_in_executor(None, sys.stdin.read)
    print("begun", flush=True)
    while not stop.done():
        calls.append(await _measure(*theirs, ask))
        echoes.append(await _measure(*ours, ask))
        await asyncio.sleep(_CALL_INTERVAL)
    print(json.dumps([calls, echoes]))
    server.close()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _measure(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: bytes) -> float:
    begun = time.perf_counter()
    writer.write(ask)
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/"):
        assert b" 200 " in head.partition(b"\r\n")[0], head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
    return time.perf_counter() - begun


if __name__ == "__main__":
    asyncio.run(_call(*sys.argv[1:]))
