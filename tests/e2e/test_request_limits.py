"""Resource limits of callers: endless heads (slowloris), idle connections, slow requests, and too many
requests.
"""

import contextlib
import http.client
import json
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from tests.e2e.processes import children
from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, container_job, start

ENDLESS = 64 << 20
"""Bytes of an endless head: more than any head may have."""
GROWTH = ENDLESS // 2
"""Maximum growth of the service in bytes, including its other work on a busy machine."""
HALVES = 1_100
FILES = 1_024
REQUEST_TIMEOUT = 60.0
HALF = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: "
QUICK = 0.1
"""Maximum CPU seconds for which such a request may block the service."""
ML_JOBS = f"/v1/projects/{PROJECT}/jobs"
PLACES = ("rest", "storage", "programs")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that may open 1,024 files, the default of many systems."""
    shell = ("/bin/sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"')
    started = start(tmp_path_factory.mktemp("narrow") / "data", prefix=shell)
    # The modules for the first request of a public API are loaded with it, or a second after the start.
    started.call("GET", CUSTOM_JOBS)
    yield started
    started.terminate()


def connect(service: Service, place: str) -> socket.socket:
    """Connect to the service's API, its storage, or the socket for programs' endpoints."""
    if place == "programs":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(service.data / "programs.sock"))
    else:
        parts = urlsplit(str(service.extra[place]))
        connection = socket.create_connection((parts.hostname or "", parts.port or 0))
    connection.settimeout(30)
    return connection


def memory_by_process(service: Service) -> dict[int, int]:
    """Return the memory in bytes of the service and of each of its processes, by process ID."""
    held: dict[int, int] = {}
    for pid in (service.pid, *children(service.pid)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has exited.
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            held[pid] = pages * resource.getpagesize()
    return held


def send_until_blocked(connection: socket.socket, begin: bytes, more: bytes) -> tuple[int, int, str]:
    """Send `begin` and then `more` until the peer stops reading. Return the response's status, the number of
    sent bytes, and the message.
    """
    connection.sendall(begin)
    sent = len(begin)
    block = more * (65536 // len(more))
    with contextlib.suppress(ConnectionError):
        while sent < ENDLESS:
            sent += connection.send(block)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if connection.recv(1, socket.MSG_PEEK):
                    break
            connection.settimeout(30)
    connection.settimeout(30)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    # Storage answers with XML outside its JSON API.
    if answer.headers.get_content_type() == "application/xml":
        message = ElementTree.fromstring(answer.read()).findtext("Message")
        assert message
    else:
        message = json.loads(answer.read())["error"]["message"]
    return answer.status, sent, message


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("begin", "more", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n", b"x-more: 1\r\n", 431, id="headers"),
        pytest.param(b"GET / HTTP/1.1\r\nx-long: ", b"a", 431, id="one-header"),
        pytest.param(b"GET /", b"a", 414, id="request-line"),
        pytest.param(b"\r\n", b"\r\n", 431, id="blank-lines"),
        pytest.param(
            b"POST /shell/ticket HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            b"x-more: 1\r\n",
            400,
            id="trailers",
        ),
    ],
)
def test_endless_request_head_is_rejected_and_not_buffered(
    narrow: Service, place: str, begin: bytes, more: bytes, status: int
) -> None:
    assert status_of(narrow, "storage") == 200  # The bucket process starts with the first call.
    with contextlib.closing(connect(narrow, place)) as connection:
        send_until_blocked(connection, begin, more)  # Modules loaded by the first one stay.
    before = memory_by_process(narrow)
    with contextlib.closing(connect(narrow, place)) as connection:
        answered, sent, message = send_until_blocked(connection, begin, more)
    # A process started in the meantime is unaffected, and counts as tens of megabytes.
    grown = sum(size - before[pid] for pid, size in memory_by_process(narrow).items() if pid in before)
    print(f"{place}: {answered} after {sent >> 10} KiB, grown by {grown >> 10} KiB: {message}")
    # Storage rejects the caller after the head, and skips the body.
    assert answered == status or (place == "storage" and answered == 401)
    assert sent < 8 << 20
    assert grown < GROWTH


@pytest.mark.parametrize("place", PLACES)
def test_incomplete_requests_do_not_block_other_requests(narrow: Service, place: str) -> None:
    """More connections than the service may have open files. A dropped client waits until the newest
    connection has ended.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as attack:
        for _ in range(HALVES):
            # Older connections were dropped for this one, the newest.
            attack.enter_context(contextlib.closing(connect(narrow, place))).sendall(HALF)
        port = "rest" if place == "programs" else place
        for _ in range(5):
            newest = attack.enter_context(contextlib.closing(connect(narrow, place)))
            newest.sendall(HALF)
            assert status_of(narrow, port) == 200
            newest.setblocking(False)
            with pytest.raises(BlockingIOError):
                newest.recv(1)


def status_of(service: Service, place: str) -> int:
    """Time of a small call with the service's token."""
    path = "/trainshed/v1/status" if place == "rest" else "/storage/v1/b?project=trainshed"
    return service.ask("GET", path, place=place, seconds=REQUEST_TIMEOUT).status


def test_idle_connection_is_closed_for_a_new_connection(narrow: Service) -> None:
    """Connections that are idle after one response."""
    with contextlib.ExitStack() as attack:
        for _ in range(HALVES):
            idle = attack.enter_context(contextlib.closing(connect(narrow, "rest")))
            idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert idle.recv(12) == b"HTTP/1.1 200"
        assert status_of(narrow, "rest") == 200


def test_connections_of_one_caller_do_not_block_other_callers(narrow: Service) -> None:
    """Regression: with the maximum number of streams a program blocked all other clients of the API and the
    console.
    """
    jobs = f"POST {CUSTOM_JOBS} HTTP/1.1\r\nHost: localhost\r\n"
    more = f"Authorization: Bearer {narrow.token}\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    with contextlib.ExitStack() as attack:
        for _ in range(FILES // 4):
            stream = attack.enter_context(contextlib.closing(connect(narrow, "rest")))
            stream.sendall((jobs + more).encode())
            assert stream.recv(12) == b"HTTP/1.1 100"
        assert status_of(narrow, "rest") == 200


def with_labels(job: dict[str, Any], count: int) -> dict[str, Any]:
    return {**job, "labels": {f"label-{n}": "x" for n in range(count)}}


def lists(field: str, megabytes: int = 10) -> bytes:
    """A job with a field of empty lists."""
    many = b",".join([b"[]"] * ((megabytes << 20) // 3 - 100))
    return b'{"displayName": "x", "%b": [%b]}' % (field.encode(), many)


def with_arguments(count: int, text: str) -> dict[str, Any]:
    job = container_job("pass")
    (pool,) = job["jobSpec"]["workerPoolSpecs"]
    pool["containerSpec"]["args"] = [text] * count
    return job


CASES = {
    "labels": (CUSTOM_JOBS, partial(with_labels, container_job("pass"), 100_000), "", "50000"),
    "lists": (CUSTOM_JOBS, partial(lists, "jobSpec"), "", "50000"),
    "arguments": (CUSTOM_JOBS, partial(with_arguments, 10_000, "x" * 900), "args", "100000"),
    "unknown-fields": (
        CUSTOM_JOBS,
        lambda: {f"unknown{n}": 1 for n in range(20_000)},
        "Cannot find field",
        "And 19900 more faults",
    ),
    "labels-of-the-older-api": (ML_JOBS, partial(with_labels, {"jobId": "x"}, 9_000), "labels", "at most 64"),
}


@pytest.mark.parametrize(("path", "body", "field", "limit"), CASES.values(), ids=CASES)
def test_requests_with_many_small_parts_are_rejected_without_blocking(
    narrow: Service, path: str, body: Callable[[], Any], field: str, limit: str
) -> None:
    """No caller waits long, because the service's loop parses it in small steps. Measured in CPU time,
    because wall time includes parallel tests.
    """
    before = narrow.call("GET", "/trainshed/v1/status")["eventLoop"]["computed"]
    refusal = narrow.ask("POST", path, body())
    assert refusal.status == 400
    assert field in refusal.message and limit in refusal.message
    assert refusal.message.count("\n") < 110
    loop = narrow.call("GET", "/trainshed/v1/status")["eventLoop"]
    assert loop["computed"] <= max(before, QUICK), loop


def test_body_without_a_token_is_not_read(narrow: Service) -> None:
    """Rejected before the body has arrived."""
    parts = urlsplit(narrow.rest)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest("POST", CUSTOM_JOBS)
        connection.putheader("Content-Length", "9000000")
        connection.endheaders()
        assert connection.getresponse().status == 401


def test_form_without_a_token_is_limited_in_size(narrow: Service) -> None:
    form = b"a=" + b"x" * 5_000_000
    refusal = narrow.ask("POST", "/oauth2/token", form, place="storage", token=None)
    assert refusal.status == 400
    assert b"16384" in refusal.body
