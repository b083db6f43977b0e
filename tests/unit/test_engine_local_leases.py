"""Leases are counted in questions without an answer. No clock, no processes."""

import asyncio
import itertools
import socket
from collections.abc import Callable
from pathlib import Path

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import findings
from trainshed.engines.local.reconciler import Leases
from trainshed.engines.local.slot_handle import TABLE, Event, SlotHandle, State
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
        job_uid=JobUid(1),
        attempt=1,
        slot=slot,
        directory=Path("/nowhere"),
        emit=emit,
        unclear=unclear,
    )
    made.begin(1)
    return made


async def test_an_answer_ends_the_silence_and_a_new_incarnation_begins_without_one() -> None:
    ours, theirs = socket.socketpair()
    heard = asyncio.Event()
    subject = slot_handle("a", emit=lambda _: heard.set())
    subject.attach(ours)
    assert [subject.ask() for _ in range(4)] == [0, 1, 2, 3]
    orders = protocol.Lines().feed(theirs.recv(4096))
    assert [order["o"] for order in orders] == ["ping"] * 4
    for message in ({"e": "pong", "n": 3}, {"e": "lines", "n": 1}):
        theirs.sendall(protocol.encode(message))
    await asyncio.wait_for(heard.wait(), 60)
    assert [subject.ask(), subject.ask()] == [0, 1]
    subject.begin(2)
    assert subject.ask() == 0
    theirs.close()


async def test_the_timer_runs_while_anything_lives_and_tells_whose_lease_is_over() -> None:
    silent, other, over = slot_handle("a"), slot_handle("a", 1), slot_handle("b")
    other.wants_room = True
    over.lose("gone")
    late: asyncio.Queue[SlotHandle] = asyncio.Queue()
    unborn: list[None] = []
    handles = [silent, other, over]
    leases = Leases(0.003, lambda: iter(handles), late.put_nowait, lambda: unborn.append(None))
    leases.watch()
    assert await asyncio.wait_for(late.get(), 60) is silent
    assert late.empty() and len(unborn) == 1
    leases.close()


def test_what_follows_in_each_state_from_each_event_is_a_total_table() -> None:
    """An end stays an end until the next incarnation begins, and nobody is called twice."""
    assert {state: set(row) for state, row in TABLE.items()} == {
        state: set(Event) for state in State
    }
    for state in State:
        assert TABLE[state][Event.BEGUN] is State.UNKNOWN
        assert TABLE[state][Event.ENDED] is State.ENDED
        if state is not State.ENDED:
            assert TABLE[state][Event.CONNECTED] is State.ATTACHED
            assert TABLE[state][Event.DISCONNECTED] is State.UNKNOWN
    assert {TABLE[State.ENDED][event] for event in set(Event) - {Event.BEGUN}} == {State.ENDED}
    assert TABLE[State.ATTACHED][Event.FOUND_HELD] is State.ATTACHED


async def test_a_slot_goes_through_its_table() -> None:
    """Every three events: the state is the table's, each end is told once, and who is not connected is looked
    into."""
    for events in itertools.product(Event, repeat=3):
        events_told: list[EngineEvent] = []
        unclear: list[SlotHandle] = []
        subject = slot_handle("a", emit=events_told.append, unclear=unclear.append)
        expected, ends, looks, incarnation = subject.state, 0, 0, 1
        others: list[socket.socket] = []
        for event in events:
            before, expected = expected, TABLE[expected][event]
            ends += before is not State.ENDED and expected is State.ENDED
            match event:
                case Event.BEGUN:
                    incarnation += 1
                    subject.begin(incarnation)
                case Event.FOUND_HELD:
                    subject.settle(incarnation, findings.Held())
                case Event.CONNECTED:
                    ours, theirs = socket.socketpair()
                    others.append(theirs)
                    subject.settle(incarnation, findings.Alive(ours))
                case Event.DISCONNECTED:
                    # Only a connection breaks, and only who is held is called.
                    if before is State.ATTACHED:
                        others[-1].close()
                        await asyncio.sleep(0.001)
                        looks += 1
                    elif before is State.HELD:
                        subject.call()
                        looks += 1
                case Event.ENDED:
                    subject.settle(incarnation, findings.Over({"lost": "x", "by_service": False}))
            assert subject.state is expected
        assert (len(events_told), len(unclear)) == (ends, looks)
        subject.close()
