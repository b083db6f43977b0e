"""A service whose listening sockets belong to another process, like systemd's for trainshed.socket: no
connection is refused during a restart (docs/server.md).
"""

import contextlib
import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from tests.e2e.running import environment
from tests.ports import free_ports

_BECOME = """
import os, sys
handles = [int(word) for word in sys.argv[1].split(",")]
for index, handle in enumerate(handles):
    os.dup2(handle, 3 + index)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(handles))}
os.execv(sys.executable, [sys.executable, "-m", "trainshed", *sys.argv[2:]])
"""
_INTERVAL = 0.1
_RETRYABLE = {"UNAVAILABLE", "503", "ConnectionResetError", "RemoteDisconnected", "IncompleteRead"}
"""Outcomes of a read that a client may repeat. A kill can cut off the body of a response."""


class Keeper:
    """Owns the sockets of a service: REST, storage, gRPC without and with TLS, storage with TLS."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.sockets = [socket.create_server(("127.0.0.1", port)) for port in _run_of_ports()]
        self.port = self.sockets[0].getsockname()[1]
        # Different from the numbers that the service expects.
        self.handles = [fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD, 50) for listener in self.sockets]

    def popen(self, *words: str) -> "subprocess.Popen[bytes]":
        handles = ",".join(map(str, self.handles))
        options = ("up", "--data", str(self.data), "--port", str(self.port), *words)
        return subprocess.Popen(
            [sys.executable, "-c", _BECOME, handles, *options],
            env=environment(self.data),
            pass_fds=self.handles,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def close(self) -> None:
        for listener, handle in zip(self.sockets, self.handles, strict=True):
            listener.close()
            os.close(handle)


def _run_of_ports() -> list[int]:
    while True:
        [first] = free_ports(1)
        ports = list(range(first, first + 5))
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            for port in ports:
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path / "data")
    yield keeper
    keeper.close()


class Caller:
    """Calls one port ten times a second in a thread, and counts results."""

    def __init__(self, call: Callable[[], str], stop: threading.Event) -> None:
        self.outcomes = Counter[str]()
        self.is_answered = threading.Event()
        self._call, self._stop = call, stop
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            try:
                self.outcomes[self._call()] += 1
            except (OSError, http.client.HTTPException) as failure:
                self.outcomes[type(failure).__name__] += 1
            self.is_answered.set()

    def wait(self) -> None:
        """Wait for the end of the next call."""
        self.is_answered.clear()
        assert self.is_answered.wait(60), "no answer within a minute"


def _get(port: int, path: str, token: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)


def _rpc(channel: grpc.Channel, token: str) -> str:
    method: Any = cast("Any", channel).unary_unary("/google.cloud.aiplatform.v1.JobService/ListCustomJobs")
    request = b"\x0a" + bytes([len(_PARENT)]) + _PARENT
    try:
        method(request, timeout=60, metadata=(("authorization", f"Bearer {token}"),))
    except grpc.RpcError as error:
        return error.code().name  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    return "200"


_PARENT = b"projects/trainshed/locations/us-central1"


def _document(keeper: Keeper) -> dict[str, Any]:
    return json.loads((keeper.data / "service.json").read_text())


def _when_serving(keeper: Keeper) -> None:
    """Return when a request that waits in the socket has received a response."""
    assert _get(keeper.port, "/healthz", "") == "200"


def _callers(keeper: Keeper, stop: threading.Event) -> dict[str, Caller]:
    token = (keeper.data / "owner.token").read_text().strip()
    roots = (keeper.data / "tls/roots.pem").read_bytes()
    secure = grpc.ssl_channel_credentials(roots)
    plain = grpc.insecure_channel(f"127.0.0.1:{keeper.port + 2}")
    tls = grpc.secure_channel(f"localhost:{keeper.port + 3}", secure)

    def fresh() -> str:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{keeper.port + 2}", options) as channel:
            return _rpc(channel, token)

    calls: dict[str, Callable[[], str]] = {
        "rest": lambda: _get(keeper.port, "/trainshed/v1/jobs", token),
        "storage": lambda: _get(keeper.port + 1, "/storage/v1/b?project=trainshed", token),
        "gateway": lambda: _get(keeper.port, "/storage/v1/b?project=trainshed", token),
        "grpc": lambda: _rpc(plain, token),
        "grpc, new channels": fresh,
        "grpc with tls": lambda: _rpc(tls, token),
    }
    return {name: Caller(call, stop) for name, call in calls.items()}


RESTARTS = int(os.environ.get("TRAINSHED_TEST_RESTARTS", "3"))


def test_no_call_fails_while_the_service_restarts(keeper: Keeper) -> None:
    process = keeper.popen()
    _when_serving(keeper)
    document = _document(keeper)
    assert document["grpc"].endswith(f":{keeper.port + 2}")
    assert document["grpc_tls"].endswith(f":{keeper.port + 3}")
    assert document["storage"].endswith(f":{keeper.port + 1}")
    assert document["storage_tls"].endswith(f":{keeper.port + 4}")
    stop = threading.Event()
    callers = _callers(keeper, stop)
    try:
        for _ in range(RESTARTS):
            process.terminate()
            assert process.wait(60) == 0, process.stderr and process.stderr.read()
            process = keeper.popen()
            for caller in callers.values():
                caller.wait()
        restarted = {name: Counter(caller.outcomes) for name, caller in callers.items()}
        process.kill()
        process.wait()
        process = keeper.popen()
        _when_serving(keeper)
    finally:
        stop.set()
        for caller in callers.values():
            caller.thread.join()
        process.terminate()
        process.wait(60)
    assert {name: {*outcomes} for name, outcomes in restarted.items()} == {name: {"200"} for name in callers}
    after = {outcome for caller in callers.values() for outcome in caller.outcomes}
    assert after <= {"200", *_RETRYABLE}


def _refusal(process: "subprocess.Popen[bytes]") -> str:
    _, errors = process.communicate(timeout=60)
    assert process.returncode
    return errors.decode()


def test_unused_activation_socket_fails_the_start(keeper: Keeper) -> None:
    """Clients of the socket would wait forever."""
    [other] = free_ports(1)
    text = _refusal(keeper.popen("--grpc-port", str(other)))
    assert f"systemd listens on {keeper.port + 2}, which no setting uses" in text
    assert f"{keeper.port}, {keeper.port + 1}, {other}, {keeper.port + 3}" in text


def test_public_activation_socket_without_matching_settings_fails_the_start(keeper: Keeper) -> None:
    """Tokens would cross the network without TLS."""
    keeper.sockets[0].close()
    os.close(keeper.handles[0])
    open_to_all = keeper.sockets[0] = socket.create_server(("0.0.0.0", keeper.port))
    keeper.handles[0] = fcntl.fcntl(open_to_all.fileno(), fcntl.F_DUPFD, 50)
    text = _refusal(keeper.popen())
    assert f"ListenStream=127.0.0.1:{keeper.port}" in text
    assert "which other machines can reach" in text
