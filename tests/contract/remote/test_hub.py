"""Who is let in by the hub, and what an agent says and hears there."""

import asyncio

import pytest

from tests.contract.remote.conftest import NAME, Block, Place, Said
from trainshed.engines.remote.channel import ChannelClosed

pytestmark = pytest.mark.anyio


async def test_messages_go_both_ways_in_order(place: Place) -> None:
    channel = await place.dialer().dial()
    sent = [Said("one"), Block(7, b"x" * 300_000), Said("three")]
    for message in sent:
        await channel.send(message)
    assert [await channel.receive() for _ in sent] == sent
    assert place.channels[0].peer == NAME
    channel.close()
    with pytest.raises(ChannelClosed):
        await channel.receive()


async def test_bytes_go_to_a_door_and_back(place: Place) -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    await asyncio.start_unix_server(upper, place.doors["rest"])
    dialer = place.dialer()
    reader, writer = await dialer.open("rest")
    writer.write(b"hello")
    writer.write_eof()
    assert await reader.read() == b"HELLO"
    path = place.directory / "node.sock"
    await dialer.listen("rest", path)
    assert path.stat().st_mode & 0o777 == 0o600
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"again")
    writer.write_eof()
    assert await reader.read() == b"AGAIN"


async def test_a_stream_that_is_expected_is_opened(place: Place) -> None:
    expected = place.hub.expect(NAME, "s1")
    reader, writer = await place.dialer().open("stream:s1")
    writer.write(b"from the node")
    writer.write_eof()
    theirs, back = await expected
    assert await theirs.read() == b"from the node"
    back.write(b"from the service")
    back.close()
    assert await reader.read() == b"from the service"
