"""A channel over a real connection: order, limits, backpressure, and the ways it ends."""

import asyncio
import signal
import sys

import msgspec
import pytest

from tests.remote.conftest import NAME, Block, HubLab, Message, Text
from tests.sources import ROOT
from trainshed_cluster.remote.channel import MAX_MESSAGE_BYTES, Channel, ChannelClosed, MessageTooLong
from trainshed_cluster.remote.credentials import SERVER_NAME, client

pytestmark = pytest.mark.anyio

NESTED = b"\x81\xa1x" + b"\x91" * 1_000_000 + b"\xc0"
"""One field that no message has, with a list in a list in a list."""

AGENT = """
import asyncio, sys, msgspec
from tests.remote.conftest import Message, Text
from trainshed_cluster.remote.credentials import Credential
from trainshed_cluster.remote.dialer import Dialer

async def main():
    channel = await Dialer(msgspec.json.decode(sys.stdin.buffer.read(), type=Credential), Message).dial()
    await channel.send(Text("alive"))
    await channel.receive()
asyncio.run(main())
"""


async def silent(channel: Channel[Message, Message]) -> None:
    await channel.wait_closed()


async def test_messages_arrive_in_order_in_both_directions(hub_lab: HubLab) -> None:
    channel = await hub_lab.dialer().dial()
    sent: list[Message] = [Text("one"), Block(7, b"x" * 300_000), Text("three")]
    for message in sent:
        await channel.send(message)
    channel.post(Text("four"))
    assert [await channel.receive() for _ in range(4)] == [*sent, Text("four")]
    assert hub_lab.channels[0].peer == NAME
    channel.close()
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ChannelClosed):
        await channel.send(Text("late"))


async def test_messages_sent_before_a_channel_closes_are_received(hub_lab: HubLab) -> None:
    received: list[Message] = []
    served = asyncio.Event()

    async def serve(server: Channel[Message, Message]) -> None:
        try:
            while True:
                received.append(await server.receive())
        finally:
            served.set()

    hub_lab.serve = serve
    channel = await hub_lab.dialer().dial()
    for number in range(100):
        channel.post(Block(number, b"x" * 10_000))
    channel.close()
    await hub_lab.channels[-1].wait_closed()
    await served.wait()
    assert [block.offset for block in received if isinstance(block, Block)] == [*range(100)]


async def test_cancelled_receive_loses_no_message(hub_lab: HubLab) -> None:
    channel = await hub_lab.dialer().dial()
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


async def raw(hub_lab: HubLab, data: bytes) -> None:
    """Send raw bytes as an agent that violates the protocol, and close the connection."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", hub_lab.hub.port, ssl=client(hub_lab.credential()), server_hostname=SERVER_NAME
    )
    writer.write(b"control\n")
    assert await reader.readline() == b"+\n"
    writer.write(data)
    writer.close()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x00\x01\x00half of it", "in the middle of a message"),
        ((MAX_MESSAGE_BYTES + 1).to_bytes(4) + b"x", f"the limit of {MAX_MESSAGE_BYTES}"),
        (b"\xff\xff\xff\xff" + b"x" * 100, f"the limit of {MAX_MESSAGE_BYTES}"),
        (b"\x00\x00\x00\x03abc", "invalid message"),
        (b"\x00\x00\x00\x01\xc0", "invalid message"),
        (len(text := msgspec.msgpack.encode({"type": "Stop"})).to_bytes(4) + text, "invalid message"),
        pytest.param(len(NESTED).to_bytes(4) + NESTED, "invalid message", id="nested too deep"),
    ],
)
async def test_invalid_message_closes_the_connection_between_agent_and_service(
    hub_lab: HubLab, data: bytes, why: str
) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(channel: Channel[Message, Message]) -> None:
        try:
            await channel.receive()
        except ChannelClosed as error:
            ended.set_result(str(error))

    hub_lab.serve = serve
    await raw(hub_lab, data)
    assert why in await ended


async def test_message_over_the_size_limit_is_not_sent(hub_lab: HubLab) -> None:
    channel = await hub_lab.dialer().dial()
    with pytest.raises(MessageTooLong):
        await channel.send(Block(0, bytes(MAX_MESSAGE_BYTES)))
    longest = Block(1, bytes(MAX_MESSAGE_BYTES - 100))
    await channel.send(longest)
    assert await channel.receive() == longest


async def test_slow_receiver_of_messages_blocks_the_sender_before_memory_fills_up(hub_lab: HubLab) -> None:
    hub_lab.serve = silent
    channel = await hub_lab.dialer().dial()
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
    # The kernel buffers most of it.
    assert sent < 16 << 20
    assert not task.done()
    for _ in range(2 * before // len(block.data)):
        await hub_lab.channels[0].receive()
    assert sent > before
    task.cancel()


async def test_concurrent_senders_are_not_starved(hub_lab: HubLab) -> None:
    """A sender that never pauses does not block another one."""
    channel = await hub_lab.dialer().dial()

    async def flood() -> None:
        while True:
            await channel.send(Block(0, bytes(256 << 10)))

    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear() -> None:
        while True:
            if isinstance(message := await channel.receive(), Text):
                heard.put_nowait(message.text)

    tasks = [asyncio.ensure_future(work()) for work in (hear, flood, flood, flood)]
    for _ in range(20):
        await channel.send(Text("beside"))
        assert await heard.get() == "beside"
    given_up = asyncio.ensure_future(channel.send(Text("never")))
    given_up.cancel()
    await channel.send(Text("after"))
    assert await heard.get() == "after"
    for task in tasks:
        task.cancel()


async def test_killed_agent_is_detected_at_once(hub_lab: HubLab) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    alive = asyncio.Event()

    async def serve(channel: Channel[Message, Message]) -> None:
        assert await channel.receive() == Text("alive")
        alive.set()
        try:
            await channel.receive()
        except ChannelClosed:
            ended.set_result("")

    hub_lab.serve = serve
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, stdin=-1, cwd=ROOT)
    assert agent.stdin is not None
    agent.stdin.write(msgspec.json.encode(hub_lab.credential()))
    agent.stdin.close()
    await alive.wait()
    agent.send_signal(signal.SIGKILL)
    async with asyncio.timeout(60):
        await ended
    await agent.wait()


async def test_broken_message_connection_closes_all_tunnels_of_the_agent(hub_lab: HubLab) -> None:
    """A tunnel with unsent bytes would not detect a lost connection for a long time."""
    hub_lab.serve = silent
    listening = await asyncio.start_unix_server(lambda _reader, _writer: None, hub_lab.sockets["rest"])
    for giving_up in ("agent", "service"):
        dialer = hub_lab.dialer()
        channel = await dialer.dial()
        path = hub_lab.directory / f"{giving_up}.sock"
        await dialer.listen("rest", path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"into the void")
        expected = hub_lab.hub.expect(NAME, giving_up, Message)
        held = await dialer.converse(giving_up, Message)
        theirs = await expected
        (channel if giving_up == "agent" else hub_lab.channels[-1]).give_up()
        for end in (channel, held, theirs):
            with pytest.raises(ChannelClosed):
                await end.receive()
        assert await reads_end(reader)
    listening.close()


async def reads_end(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
