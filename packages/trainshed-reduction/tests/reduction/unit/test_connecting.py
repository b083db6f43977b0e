"""Tests of connections between workers and reducers: socket options (spec/reduction#flow-control), names in
messages, and errors and reports about unreachable or silent reducers."""

import functools
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from trainshed_reduction import proof
from trainshed_reduction.client.lanes import Dial, Lane
from trainshed_reduction.client.losses import report_silence
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.process import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.sockets import set_options
from trainshed_reduction.wire import GROUP, Accept, Hello


def test_unresponsive_reducer_host_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction: The message contains the reducer's address. The worker may retry."""
    monkeypatch.setattr(proof, "connect", functools.partial(proof.connect, seconds=0.05))
    news = threading.Event()
    dial = Dial(Settings((), b"token"), news.set)
    hello = Hello(bytes(GROUP), 1, 0, 2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        lane = Lane(frozen.getsockname()[:2])
        assert lane.connect(dial, lambda _: hello, time.monotonic()) is None
        assert news.wait(60)
        due = lane.connect(dial, lambda _: hello, 0.0)
    assert lane.cause == "it does not respond"
    assert due is not None  # A retry may succeed.


def test_worker_does_not_reconnect_after_a_rejection_without_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/reduction: A retry would fail again."""

    def connect(*_: object) -> None:
        raise proof.WorkerRejected("")

    monkeypatch.setattr(proof, "connect", connect)
    news = threading.Event()
    dial = Dial(Settings((), b"token"), news.set)
    hello = Hello(bytes(GROUP), 1, 0, 2)
    lane = Lane(("10.0.0.2", 2222))
    lane.connect(dial, lambda _: hello, time.monotonic())
    assert news.wait(60)
    with pytest.raises(ReductionFailed, match=r"10\.0\.0\.2:2222 rejects this worker"):
        lane.connect(dial, lambda _: hello, time.monotonic())


def test_tcp_connection_uses_reno_instead_of_cubic_congestion_control() -> None:
    """spec/reduction#flow-control: A full window uses the link over long distances and after a pause, which
    cubic's slow start prevents. Other configured algorithms remain."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for chosen, used in (("cubic", "reno"), ("reno", "reno"), ("bbr", "bbr")):
            with socket.create_connection(listener.getsockname()) as client:
                try:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, chosen.encode())
                except OSError:
                    assert chosen != "reno", "every Linux has it"
                    continue
                set_options(client, 60.0)
                congestion = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert congestion.rstrip(b"\0").decode() == used


def test_tcp_options_detect_a_vanished_host_within_30_seconds() -> None:
    """spec/reduction#losses: This includes a host that no longer accepts data."""
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        set_options(client, 20.0)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count, limit = (client.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    assert idle + between * count <= 30
    assert limit == 20_000


def test_error_of_a_reducer_connection_describes_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction#reports: A reducer that has accepted the worker is connected, even if it has not
    reported the missing ranks."""
    lane = Lane(("10.0.0.2", 2222))
    assert lane.complaint() == "no connection to reducer 10.0.0.2:2222: it does not respond"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())

        def connect(*_: object) -> tuple[socket.socket, Accept]:
            return connection, Accept(1)

        monkeypatch.setattr(proof, "connect", connect)
        news = threading.Event()
        hello = Hello(bytes(GROUP), 1, 0, 2)
        lane.connect(Dial(Settings((), b"token"), news.set), lambda _: hello, time.monotonic())
        assert news.wait(60)
        assert lane.complaint() == "reducer 10.0.0.2:2222: it has not reported the missing ranks yet"
        lane.record_frame(time.monotonic(), "waiting 2 s for rank 1")
        assert lane.complaint() == "reducer 10.0.0.2:2222: waiting 2 s for rank 1"
        lane.close()


def test_unresponsive_reducer_with_several_connections_is_reported_once(tmp_path: Path) -> None:
    """spec/reduction#losses: The timeline shows why a job waits."""
    report = tmp_path / "report"
    first = ("10.0.0.2", 2222)
    for thread in range(2):
        report_silence(Reports(str(report)), Lane(first, thread))
    (note,) = json.loads(report.read_text())["notes"]
    assert note == {
        "id": "silent 10.0.0.2:2222",
        "severity": "WARNING",
        "text": "reducer 10.0.0.2:2222 does not respond; the worker reconnects to it",
    }
