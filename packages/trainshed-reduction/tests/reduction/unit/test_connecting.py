"""Connections between workers and reducers: what they are like (spec/reduction#flow-control), what messages
call who is at their end, and what a worker says of a reducer that it cannot connect to. What a worker reports
of reducers that fall silent."""

import functools
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from trainshed_reduction import proof
from trainshed_reduction.client.lanes import Dial, Lane
from trainshed_reduction.client.losses import tell_silence
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.process import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.sockets import set_options
from trainshed_reduction.wire import GROUP, Accept, Hello


def test_a_host_that_takes_connections_and_is_frozen_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/reduction: whoever reads it wants to know who it was that took too long."""
    monkeypatch.setattr(proof, "connect", functools.partial(proof.connect, seconds=0.05))
    news = threading.Event()
    dial = Dial(Settings((), b"token"), news.set)
    hello = Hello(bytes(GROUP), 1, 0, 2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        lane = Lane(frozen.getsockname()[:2])
        assert lane.connect(dial, lambda _: hello, time.monotonic()) is None
        assert news.wait(60)
        due = lane.connect(dial, lambda _: hello, 0.0)
    assert lane.cause == "it does not answer"
    assert due is not None  # Trying again may help.


def test_a_refusal_without_a_word_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction: trying again would be of no use, whatever the reducer says."""

    def connect(*_: object) -> None:
        raise proof.Refused("")

    monkeypatch.setattr(proof, "connect", connect)
    news = threading.Event()
    dial = Dial(Settings((), b"token"), news.set)
    hello = Hello(bytes(GROUP), 1, 0, 2)
    lane = Lane(("10.0.0.2", 2222))
    lane.connect(dial, lambda _: hello, time.monotonic())
    assert news.wait(60)
    with pytest.raises(ReductionFailed, match=r"10\.0\.0\.2:2222 refuses this worker"):
        lane.connect(dial, lambda _: hello, time.monotonic())


def test_how_much_is_under_way_is_not_cubic_s_to_say() -> None:
    """spec/reduction#flow-control: a window fills the link also over a long way and after a pause, which
    cubic's slow start prevents; what a system has chosen for itself otherwise stays."""
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


def test_a_host_that_vanishes_is_noticed() -> None:
    """spec/reduction#losses: within half a minute, and so is one that takes nothing any more."""
    options = (
        socket.TCP_KEEPIDLE,
        socket.TCP_KEEPINTVL,
        socket.TCP_KEEPCNT,
        socket.TCP_USER_TIMEOUT,
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        set_options(client, 20.0)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count, limit = (
            client.getsockopt(socket.IPPROTO_TCP, option) for option in options
        )
    assert idle + between * count <= 30
    assert limit == 20_000


def test_a_complaint_says_what_is_known_of_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction#reports: a reducer that has let the worker in has a connection, whether or not it has
    said for whom it waits."""
    lane = Lane(("10.0.0.2", 2222))
    assert lane.complaint() == "no connection to reducer 10.0.0.2:2222: it does not answer"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())

        def connect(*_: object) -> tuple[socket.socket, Accept]:
            return connection, Accept(1)

        monkeypatch.setattr(proof, "connect", connect)
        news = threading.Event()
        hello = Hello(bytes(GROUP), 1, 0, 2)
        lane.connect(Dial(Settings((), b"token"), news.set), lambda _: hello, time.monotonic())
        assert news.wait(60)
        assert lane.complaint() == "reducer 10.0.0.2:2222: it has not said yet whom it waits for"
        lane.heard(time.monotonic(), "waiting 2 s for rank 1")
        assert lane.complaint() == "reducer 10.0.0.2:2222: waiting 2 s for rank 1"
        lane.close()


def test_a_silent_reducer_is_reported_once(tmp_path: Path) -> None:
    """spec/reduction#losses: the timeline says why a job stands still."""
    report = tmp_path / "report"
    first = ("10.0.0.2", 2222)
    for thread in range(2):
        tell_silence(Reports(str(report)), Lane(first, thread))
    (note,) = json.loads(report.read_text())["notes"]
    assert note == {
        "id": "silent 10.0.0.2:2222",
        "severity": "WARNING",
        "text": "reducer 10.0.0.2:2222 has fallen silent: it is connected to again",
    }
