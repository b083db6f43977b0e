"""Who is let in by the hub, for how long, and what others hear there."""

import asyncio
import os
import ssl
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.remote.conftest import NAME, OTHER, Message, Place, Said
from tests.waiting import until
from trainshed_cluster.remote import hub
from trainshed_cluster.remote.channel import Channel, ChannelClosed
from trainshed_cluster.remote.credentials import SERVER_NAME, Credential, Issuer, client
from trainshed_cluster.remote.greeting import NotAdmitted, Refused

pytestmark = pytest.mark.anyio


async def heard(place: Place, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """All that the hub answers to a stranger, up to the end that it makes."""
    name = SERVER_NAME if context else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.hub.port, ssl=context, server_hostname=name
    )
    try:
        writer.write(data)
        return await reader.read()
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.transport.abort()


def stranger(place: Place) -> ssl.SSLContext:
    """Believes the hub, and shows nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=place.issuer.authority)
    return context


async def test_who_shows_no_certificate_hears_nothing(place: Place) -> None:
    assert await heard(place, b"control\n", stranger(place)) == b""
    assert b"HTTP" not in await heard(place, b"GET / HTTP/1.1\r\n\r\n")
    assert await heard(place, b"") == b""
    assert place.channels == []


async def test_nobody_is_lent_its_port_while_it_is_away(place: Place) -> None:
    """A service that starts again could not listen there, and agents of jobs that run call nowhere else."""
    lent = await asyncio.to_thread(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text)
    first, last = lent.split()
    assert not int(first) <= place.hub.port <= int(last)


async def test_a_port_that_somebody_has_for_a_moment_is_waited_for(place: Place) -> None:
    """A process, say, that a service was about to start when it was killed."""
    port = place.hub.port
    other = place.made(port)
    starting = asyncio.create_task(other.start())
    await asyncio.sleep(0)
    assert not starting.done()
    await place.hub.close()
    await starting
    place.hub = other
    assert other.port == port


async def test_older_tls_is_not_spoken(place: Place) -> None:
    context = client(place.credential())
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        await asyncio.open_connection(
            "127.0.0.1", place.hub.port, ssl=context, server_hostname=SERVER_NAME
        )


async def test_an_agent_of_another_authority_is_nobody(place: Place, tmp_path: Path) -> None:
    other = Issuer.open(tmp_path / "other")
    certificate, key = other.issue(NAME, time.time() + 60)
    mine = place.credential()
    forged = Credential(NAME, mine.host, mine.port, mine.authority, certificate, key)
    with pytest.raises(OSError):
        await place.dialer(forged).dial()
    assert place.channels == []


async def test_a_hub_that_is_not_ours_is_told_nothing(place: Place, tmp_path: Path) -> None:
    """One of another authority, and an agent that plays the hub with what it has."""
    mine = place.credential()
    impostors = [Issuer.open(tmp_path / "other").server()]
    agent = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = tmp_path / "agent.pem"
    pem.write_text(mine.key + mine.certificate)
    agent.load_cert_chain(pem)
    impostors.append(agent)
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())

    for context in impostors:
        server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
        port: int = server.sockets[0].getsockname()[1]
        credential = Credential(NAME, mine.host, port, mine.authority, mine.certificate, mine.key)
        with pytest.raises(ssl.SSLCertVerificationError):
            await place.dialer(credential).dial()
        server.close()
    assert not any(heard)


async def test_a_certificate_ends_and_with_it_what_was_begun_by_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError):
        await place.dialer(place.credential(seconds=-1)).dial()
    dialer = place.dialer(place.hub.issue(NAME, ends := time.time() + 60))
    # So each connection is begun in time, however busy the machine is.
    monkeypatch.setattr(hub, "time", Mock(time=lambda: ends - 2))
    channel = await dialer.dial()
    expected = place.hub.expect(NAME, "s", Message)
    held = await dialer.converse("s", Message)
    stream = await expected
    for cut in (channel, held, stream):
        with pytest.raises(ChannelClosed):
            await cut.receive()
    assert not (await place.dialer().dial()).is_closed


@pytest.mark.parametrize("node", ["node 1", "a/b", "knöten", "x" * 300, "%2f;=\n"])
async def test_any_name_of_a_node_is_recognised(place: Place, node: str) -> None:
    name = f"trainshed-abc-7-0-0/{node}"
    place.admitted.add(name)
    channel = await place.dialer(place.credential(name)).dial()
    await channel.send(Said("here"))
    await channel.receive()
    assert place.channels[0].peer == name


async def test_who_is_not_expected_is_told_so_and_let_in_no_more(place: Place) -> None:
    dialer = place.dialer()
    channel = await dialer.dial()
    waiting = place.hub.expect(NAME, "never", Message)
    place.admitted.discard(NAME)
    place.hub.drop(NAME)
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ConnectionResetError):
        await waiting
    for destination in ("control", "rest", "stream:x"):
        with pytest.raises(NotAdmitted):
            await (dialer.dial() if destination == "control" else dialer.open(destination))
    assert not (await place.dialer(place.credential(OTHER)).dial()).is_closed


async def test_a_newer_conversation_ends_the_older_and_waits_for_it(place: Place) -> None:
    events: list[str] = []

    async def serve(channel: Channel[Message, Message]) -> None:
        number = len(place.channels)
        events.append(f"{number} begins")
        try:
            await channel.receive()
        finally:
            await asyncio.sleep(0)
            events.append(f"{number} ends")

    place.serve = serve
    dialer = place.dialer()
    first = await dialer.dial()
    second = await dialer.dial()
    with pytest.raises(ChannelClosed):
        await first.receive()
    await second.send(Said("x"))
    with pytest.raises(ChannelClosed):
        await second.receive()
    assert events == ["1 begins", "1 ends", "2 begins", "2 ends"]


async def test_tunnels_lead_where_the_service_has_said(place: Place) -> None:
    dialer = place.dialer()
    place.hub.expect(OTHER, "theirs", Message)
    for destination in ("stream:unknown", "stream:theirs", "cellar"):
        with pytest.raises(Refused):
            await dialer.open(destination)
    with pytest.raises(Refused, match="nobody answers"):
        await dialer.open("rest")
    given_up = place.hub.expect(NAME, "given up", Message)
    given_up.cancel()
    await asyncio.sleep(0)
    with pytest.raises(Refused):
        await dialer.open("stream:given up")


async def test_strangers_who_say_nothing_take_nobodys_place(place: Place) -> None:
    """The hub of these tests lets eight wait."""
    await place.hub.close()
    place.hub = place.made(head_seconds=60)
    await place.hub.start()
    silent = [await asyncio.open_connection("127.0.0.1", place.hub.port) for _ in range(30)]
    async with asyncio.timeout(60):
        channel = await place.dialer().dial()
        await channel.send(Said("here"))
        assert await channel.receive() == Said("here")
    for _, writer in silent:
        writer.transport.abort()


async def test_an_agent_that_never_says_what_it_wants_is_hung_up_on(place: Place) -> None:
    context = client(place.credential())
    assert await heard(place, b"contr", context) == b""
    assert await heard(place, b"x" * 200_000, context) == b""
    assert b"there is no destination 'nowhere'" in await heard(place, b"nowhere\n", context)


async def test_an_agent_has_so_many_connections(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_MOST_OF_AGENT", 3)
    dialer = place.dialer()
    channel = await dialer.dial()
    held: list[object] = []
    for name in ("a", "b"):
        expected = place.hub.expect(NAME, name, Message)
        held += [await dialer.converse(name, Message), await expected]
    place.hub.expect(NAME, "c", Message)
    with pytest.raises(Refused, match="3 connections already"):
        await dialer.open("stream:c")
    assert not channel.is_closed
    assert not (await dialer.dial()).is_closed
    assert not (await place.dialer(place.credential(OTHER)).dial()).is_closed


async def test_nothing_stays_of_connections_that_have_ended(place: Place) -> None:
    """However they ended: files, tasks and what is known of agents."""
    service = await asyncio.start_unix_server(
        lambda _, writer: writer.close(), place.sockets["rest"]
    )

    async def all_kinds() -> None:
        dialer = place.dialer()
        (await dialer.dial()).close()
        (await dialer.dial()).give_up()
        reader, writer = await dialer.open("rest")
        await reader.read()
        writer.close()
        expected = place.hub.expect(NAME, "s", Message)
        stream = await dialer.converse("s", Message)
        (await expected).give_up()
        stream.close()
        with pytest.raises(Refused):
            await dialer.open("cellar")
        with pytest.raises(OSError):
            await place.dialer(place.credential(seconds=-1)).dial()
        assert await heard(place, b"", stranger(place)) == b""
        _, writer = await asyncio.open_connection("127.0.0.1", place.hub.port)
        writer.write(b"\x16\x03\x01")
        writer.transport.abort()
        await dialer.close()

    def kept() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())  # noqa: PTH208 - numbers

    await all_kinds()
    before = kept()
    for _ in range(3):
        await all_kinds()
    await until(lambda: all(now <= most for now, most in zip(kept(), before, strict=True)))
    service.close()


def test_the_authority_stays_and_is_its_owners_alone(tmp_path: Path) -> None:
    first = Issuer.open(tmp_path / "r")
    assert Issuer.open(tmp_path / "r").authority == first.authority
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "r").iterdir()} == {0o600}
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700
    (tmp_path / "r" / "authority.key").unlink()
    with pytest.raises(ValueError, match=r"No such file.*authority\.key"):
        Issuer.open(tmp_path / "r")
    (tmp_path / "r" / "authority.key").write_text("nonsense")
    with pytest.raises(ValueError, match="are no authority"):
        Issuer.open(tmp_path / "r")
