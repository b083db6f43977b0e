"""Tests of leases, which count unanswered pings, and of the events about a slot's end. They use no clock and
no processes."""

import asyncio
import itertools
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.engine import Reconciler
from trainshed.engines.local.slot_handle import Over, SlotHandle, Unclear
from trainshed.engines.port import EngineEvent, Slot
from trainshed.replica import protocol


def slot_handle(
    node: str,
    index: int = 0,
    emit: Callable[[EngineEvent], None] = lambda _: None,
    unclear: Callable[[SlotHandle], None] = lambda _: None,
) -> SlotHandle:
    replica = ReplicaId(1, index)
    slot = Slot(replica, node, "h", "h", "127.64.0.1", 2222)
    made = SlotHandle(
        job_uid=JobUid(1), attempt=1, slot=slot, directory=Path("/nowhere"), emit=emit, unclear=unclear
    )
    made.start_incarnation(1)
    return made


async def test_message_from_a_shim_or_a_new_incarnation_resets_the_unanswered_ping_count() -> None:
    ours, theirs = socket.socketpair()
    heard = asyncio.Event()
    subject = slot_handle("a", emit=lambda _: heard.set())
    subject.attach(ours)
    assert [subject.ping() for _ in range(4)] == [0, 1, 2, 3]
    orders = protocol.Lines().feed(theirs.recv(4096))
    assert [order["o"] for order in orders] == ["ping"] * 4
    for message in ({"e": "pong", "n": 3}, {"e": "lines", "n": 1}):
        theirs.sendall(protocol.encode(message))
    await asyncio.wait_for(heard.wait(), 60)
    assert [subject.ping(), subject.ping()] == [0, 1]
    subject.start_incarnation(2)
    assert subject.ping() == 0
    theirs.close()


async def test_lease_timer_runs_while_replicas_are_alive_and_reports_expired_leases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent, over = slot_handle("a"), slot_handle("b")
    over.lose("gone")
    late: asyncio.Queue[SlotHandle] = asyncio.Queue()
    unborn: list[None] = []
    count = partial(unborn.append, None)
    reconciler = Reconciler(lambda: iter((silent, over)), lambda _: asyncio.sleep(0), count, 0.003)

    def evict(handle: SlotHandle) -> None:
        late.put_nowait(handle)
        handle.lose("late")

    monkeypatch.setattr(reconciler, "evict", evict)
    reconciler.watch()
    assert await asyncio.wait_for(late.get(), 60) is silent
    assert late.empty() and len(unborn) == 1
    await reconciler.close()


async def test_each_incarnation_end_is_reported_once_and_disconnected_replicas_are_checked() -> None:
    """An end is final until the next incarnation starts, however often it is detected."""
    for events in itertools.product(("begin", "connect", "break", "end"), repeat=3):
        ends: list[EngineEvent] = []
        unclear: list[SlotHandle] = []
        subject = slot_handle("a", emit=ends.append, unclear=unclear.append)
        reported, looks, incarnation, is_live = 0, 0, 1, True
        other: socket.socket | None = None
        for event in events:
            match event:
                case "begin":
                    incarnation, is_live, other = incarnation + 1, True, None
                    subject.start_incarnation(incarnation)
                case "connect":
                    ours, theirs = socket.socketpair()
                    other = theirs if is_live else None
                    subject.apply(incarnation, ours)
                case "break" if other is not None:
                    other.close()
                    await asyncio.sleep(0.001)
                    looks, other = looks + 1, None
                case "break":
                    subject.apply(incarnation, Unclear.CHANGING)
                    looks += is_live
                case _:
                    subject.apply(incarnation, Over({"lost": "x", "by_service": False}))
                    reported, is_live, other = reported + is_live, False, None
            assert subject.is_live is is_live
            assert (len(ends), len(unclear)) == (reported, looks), events
        subject.close()
