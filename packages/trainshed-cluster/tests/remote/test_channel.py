"""A conversation over a real connection: order, limits, backpressure and its ends."""

import asyncio
import signal
import sys

import msgspec
import pytest

from tests.remote.conftest import NAME, Block, Message, Place, Said
from tests.sources import ROOT
from trainshed_cluster.remote.channel import LONGEST, Channel, ChannelClosed, MessageTooLong
from trainshed_cluster.remote.credentials import SERVER_NAME, client

pytestmark = pytest.mark.anyio

NESTED = b"\x81\xa1x" + b"\x91" * 1_000_000 + b"\xc0"
"""One field that no message has, with a list in a list in a list."""

AGENT = """
import asyncio, sys, msgspec
from tests.remote.conftest import Message, Said
from trainshed_cluster.remote.credentials import Credential
from trainshed_cluster.remote.dialer import Dialer

async def main():
    channel = await Dialer(msgspec.json.decode(sys.stdin.buffer.read(), type=Credential), Message).dial()
    await channel.send(Said("alive"))
    await channel.receive()
asyncio.run(main())
"""


async def silent(channel: Channel[Message, Message]) -> None:
    await channel.closed()


async def test_messages_go_both_ways_in_order(place: Place) -> None:
    channel = await place.dialer().dial()
    sent: list[Message] = [Said("one"), Block(7, b"x" * 300_000), Said("three")]
    for message in sent:
        await channel.send(message)
    channel.post(Said("four"))
    assert [await channel.receive() for _ in range(4)] == [*sent, Said("four")]
    assert place.channels[0].peer == NAME
    channel.close()
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ChannelClosed):
        await channel.send(Said("late"))


async def test_what_was_said_before_the_end_arrives(place: Place) -> None:
    received: list[Message] = []
    served = asyncio.Event()

    async def serve(server: Channel[Message, Message]) -> None:
        try:
            while True:
                received.append(await server.receive())
        finally:
            served.set()

    place.serve = serve
    channel = await place.dialer().dial()
    for number in range(100):
        channel.post(Block(number, b"x" * 10_000))
    channel.close()
    await place.channels[-1].closed()
    await served.wait()
    assert [block.offset for block in received if isinstance(block, Block)] == [*range(100)]


async def test_a_receive_that_is_given_up_loses_nothing(place: Place) -> None:
    channel = await place.dialer().dial()
    for number in range(50):
        await channel.send(Block(number, b"x" * 100_000))
    received: list[int] = []
    while len(received) < 50:
        try:
            async with asyncio.timeout(0):
                message = await channel.receive()
        except TimeoutError:
            await asyncio.sleep(0)
            continue
        assert isinstance(message, Block)
        received.append(message.offset)
    assert received == [*range(50)]


async def raw(place: Place, data: bytes) -> None:
    """What an agent says that does not keep to the rules, which then hangs up."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.hub.port, ssl=client(place.credential()), server_hostname=SERVER_NAME
    )
    writer.write(b"control\n")
    assert await reader.readline() == b"+\n"
    writer.write(data)
    writer.close()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x00\x01\x00half of it", "in the middle of a message"),
        ((LONGEST + 1).to_bytes(4) + b"x", f"more than {LONGEST}"),
        (b"\xff\xff\xff\xff" + b"x" * 100, f"more than {LONGEST}"),
        (b"\x00\x00\x00\x03abc", "is no message"),
        (b"\x00\x00\x00\x01\xc0", "is no message"),
        (len(text := msgspec.msgpack.encode({"type": "Stop"})).to_bytes(4) + text, "is no message"),
        pytest.param(len(NESTED).to_bytes(4) + NESTED, "is no message", id="nested too deep"),
    ],
)
async def test_what_is_no_message_ends_the_conversation(
    place: Place, data: bytes, why: str
) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(channel: Channel[Message, Message]) -> None:
        try:
            await channel.receive()
        except ChannelClosed as error:
            ended.set_result(str(error))

    place.serve = serve
    await raw(place, data)
    assert why in await ended


async def test_the_longest_message_arrives_and_a_longer_one_is_not_sent(place: Place) -> None:
    channel = await place.dialer().dial()
    with pytest.raises(MessageTooLong):
        await channel.send(Block(0, bytes(LONGEST)))
    longest = Block(1, bytes(LONGEST - 100))
    await channel.send(longest)
    assert await channel.receive() == longest


async def test_who_does_not_listen_holds_the_sender_and_little_memory(place: Place) -> None:
    place.serve = silent
    channel = await place.dialer().dial()
    block, sent = Block(0, bytes(256 << 10)), 0

    async def flood() -> None:
        nonlocal sent
        while True:
            await channel.send(block)
            sent += len(block.data)

    task = asyncio.ensure_future(flood())
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.2)
    # Most of it is in the kernel's buffers.
    assert sent < 16 << 20
    assert not task.done()
    for _ in range(2 * before // len(block.data)):
        await place.channels[0].receive()
    assert sent > before
    task.cancel()


async def test_many_senders_take_turns(place: Place) -> None:
    """One that sends all the time does not keep another from it."""
    channel = await place.dialer().dial()

    async def flood() -> None:
        while True:
            await channel.send(Block(0, bytes(256 << 10)))

    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear() -> None:
        while True:
            if isinstance(message := await channel.receive(), Said):
                heard.put_nowait(message.text)

    tasks = [asyncio.ensure_future(work()) for work in (hear, flood, flood, flood)]
    for _ in range(20):
        await channel.send(Said("beside"))
        assert await heard.get() == "beside"
    given_up = asyncio.ensure_future(channel.send(Said("never")))
    given_up.cancel()
    await channel.send(Said("after"))
    assert await heard.get() == "after"
    for task in tasks:
        task.cancel()


async def test_a_killed_agent_is_noticed_at_once(place: Place) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    alive = asyncio.Event()

    async def serve(channel: Channel[Message, Message]) -> None:
        assert await channel.receive() == Said("alive")
        alive.set()
        try:
            await channel.receive()
        except ChannelClosed:
            ended.set_result("")

    place.serve = serve
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, stdin=-1, cwd=ROOT)
    assert agent.stdin is not None
    agent.stdin.write(msgspec.json.encode(place.credential()))
    agent.stdin.close()
    await alive.wait()
    agent.send_signal(signal.SIGKILL)
    async with asyncio.timeout(60):
        await ended
    await agent.wait()


async def test_a_conversation_that_is_given_up_ends_the_tunnels_of_its_side(place: Place) -> None:
    """Those with unsent bytes would not notice for long that their cable is cut."""
    place.serve = silent
    listening = await asyncio.start_unix_server(
        lambda _reader, _writer: None, place.sockets["rest"]
    )
    for giving_up in ("agent", "service"):
        dialer = place.dialer()
        channel = await dialer.dial()
        path = place.directory / f"{giving_up}.sock"
        await dialer.listen("rest", path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"into the void")
        expected = place.hub.expect(NAME, giving_up, Message)
        held = await dialer.converse(giving_up, Message)
        theirs = await expected
        (channel if giving_up == "agent" else place.channels[-1]).give_up()
        for end in (channel, held, theirs):
            with pytest.raises(ChannelClosed):
                await end.receive()
        assert await ended(reader)
    listening.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
