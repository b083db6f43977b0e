"""Authentication and limits of the hub, the server for agents: which agents it admits, for how long, and what
it answers to other clients."""

import asyncio
import os
import ssl
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.remote.conftest import NAME, OTHER, HubLab, Message, Text
from tests.waiting import until
from trainshed_cluster.remote import hub
from trainshed_cluster.remote.channel import Channel, ChannelClosed
from trainshed_cluster.remote.credentials import SERVER_NAME, Credential, Issuer, client
from trainshed_cluster.remote.greeting import HubRefused, NotAdmitted

pytestmark = pytest.mark.anyio


async def response_to(hub_lab: HubLab, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Send bytes without a certificate, and return all bytes that the hub (the server for agents) sends
    before it closes the connection."""
    name = SERVER_NAME if context else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", hub_lab.hub.port, ssl=context, server_hostname=name
    )
    try:
        writer.write(data)
        return await reader.read()
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.transport.abort()


def anonymous_context(hub_lab: HubLab) -> ssl.SSLContext:
    """Return a TLS context that trusts the hub (the server for agents) and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=hub_lab.issuer.authority)
    return context


async def test_client_without_a_certificate_gets_no_response(hub_lab: HubLab) -> None:
    assert await response_to(hub_lab, b"control\n", anonymous_context(hub_lab)) == b""
    assert b"HTTP" not in await response_to(hub_lab, b"GET / HTTP/1.1\r\n\r\n")
    assert await response_to(hub_lab, b"") == b""
    assert hub_lab.channels == []


async def test_port_of_the_hub_is_outside_the_range_that_linux_assigns_to_programs(hub_lab: HubLab) -> None:
    """Otherwise a restarted service could not listen on it, and agents of running jobs connect only there."""
    lent = await asyncio.to_thread(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text)
    first, last = lent.split()
    assert not int(first) <= hub_lab.hub.port <= int(last)


async def test_hub_starts_as_soon_as_its_occupied_port_becomes_free(hub_lab: HubLab) -> None:
    """A process that a killed service was about to start can occupy the port."""
    port = hub_lab.hub.port
    other = hub_lab.new_hub(port)
    starting = asyncio.create_task(other.start())
    await asyncio.sleep(0)
    assert not starting.done()
    await hub_lab.hub.close()
    await starting
    hub_lab.hub = other
    assert other.port == port


async def test_old_tls_versions_are_rejected(hub_lab: HubLab) -> None:
    context = client(hub_lab.credential())
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", hub_lab.hub.port, ssl=context, server_hostname=SERVER_NAME)


async def test_certificate_of_another_authority_is_rejected(hub_lab: HubLab, tmp_path: Path) -> None:
    other = Issuer.open(tmp_path / "other")
    certificate, key = other.issue(NAME, time.time() + 60)
    mine = hub_lab.credential()
    forged = Credential(NAME, mine.host, mine.port, mine.authority, certificate, key)
    with pytest.raises(OSError):
        await hub_lab.dialer(forged).dial()
    assert hub_lab.channels == []


async def test_agent_rejects_a_hub_of_another_authority(hub_lab: HubLab, tmp_path: Path) -> None:
    """The hub (the server for agents) has a certificate of another authority, or an agent impersonates the
    hub with its own certificate."""
    mine = hub_lab.credential()
    impostors = [Issuer.open(tmp_path / "other").server()]
    agent = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = tmp_path / "agent.pem"
    pem.write_text(mine.key + mine.certificate)
    agent.load_cert_chain(pem)
    impostors.append(agent)
    response_to: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        response_to.append(await reader.read())

    for context in impostors:
        server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
        port: int = server.sockets[0].getsockname()[1]
        credential = Credential(NAME, mine.host, port, mine.authority, mine.certificate, mine.key)
        with pytest.raises(ssl.SSLCertVerificationError):
            await hub_lab.dialer(credential).dial()
        server.close()
    assert not any(response_to)


async def test_expired_certificate_ends_its_connections(
    hub_lab: HubLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError):
        await hub_lab.dialer(hub_lab.credential(seconds=-1)).dial()
    dialer = hub_lab.dialer(hub_lab.hub.issue(NAME, ends := time.time() + 60))
    # So each connection starts in time, however slow the machine is.
    monkeypatch.setattr(hub, "time", Mock(time=lambda: ends - 2))
    channel = await dialer.dial()
    expected = hub_lab.hub.expect(NAME, "s", Message)
    held = await dialer.converse("s", Message)
    stream = await expected
    for cut in (channel, held, stream):
        with pytest.raises(ChannelClosed):
            await cut.receive()
    assert not (await hub_lab.dialer().dial()).is_closed


@pytest.mark.parametrize("node", ["node 1", "a/b", "knöten", "x" * 300, "%2f;=\n"])
async def test_node_names_with_special_characters_are_accepted(hub_lab: HubLab, node: str) -> None:
    name = f"trainshed-abc-7-0-0/{node}"
    hub_lab.admitted.add(name)
    channel = await hub_lab.dialer(hub_lab.credential(name)).dial()
    await channel.send(Text("here"))
    await channel.receive()
    assert hub_lab.channels[0].peer == name


async def test_unexpected_agent_is_rejected_with_a_reason(hub_lab: HubLab) -> None:
    dialer = hub_lab.dialer()
    channel = await dialer.dial()
    waiting = hub_lab.hub.expect(NAME, "never", Message)
    hub_lab.admitted.discard(NAME)
    hub_lab.hub.drop(NAME)
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ConnectionResetError):
        await waiting
    for destination in ("control", "rest", "stream:x"):
        with pytest.raises(NotAdmitted):
            await (dialer.dial() if destination == "control" else dialer.open(destination))
    assert not (await hub_lab.dialer(hub_lab.credential(OTHER)).dial()).is_closed


async def test_new_message_connection_of_an_agent_closes_the_previous_connection(hub_lab: HubLab) -> None:
    events: list[str] = []

    async def serve(channel: Channel[Message, Message]) -> None:
        number = len(hub_lab.channels)
        events.append(f"{number} begins")
        try:
            await channel.receive()
        finally:
            await asyncio.sleep(0)
            events.append(f"{number} ends")

    hub_lab.serve = serve
    dialer = hub_lab.dialer()
    first = await dialer.dial()
    second = await dialer.dial()
    with pytest.raises(ChannelClosed):
        await first.receive()
    await second.send(Text("x"))
    with pytest.raises(ChannelClosed):
        await second.receive()
    assert events == ["1 begins", "1 ends", "2 begins", "2 ends"]


async def test_tunnels_reach_only_configured_destinations(hub_lab: HubLab) -> None:
    dialer = hub_lab.dialer()
    hub_lab.hub.expect(OTHER, "theirs", Message)
    for destination in ("stream:unknown", "stream:theirs", "cellar"):
        with pytest.raises(HubRefused):
            await dialer.open(destination)
    with pytest.raises(HubRefused, match="the socket does not respond"):
        await dialer.open("rest")
    given_up = hub_lab.hub.expect(NAME, "given up", Message)
    given_up.cancel()
    await asyncio.sleep(0)
    with pytest.raises(HubRefused):
        await dialer.open("stream:given up")


async def test_clients_that_send_nothing_do_not_prevent_agents_from_connecting(hub_lab: HubLab) -> None:
    """The hub (server for agents) of these tests allows eight pending clients."""
    await hub_lab.hub.close()
    hub_lab.hub = hub_lab.new_hub(head_seconds=60)
    await hub_lab.hub.start()
    silent = [await asyncio.open_connection("127.0.0.1", hub_lab.hub.port) for _ in range(30)]
    async with asyncio.timeout(60):
        channel = await hub_lab.dialer().dial()
        await channel.send(Text("here"))
        assert await channel.receive() == Text("here")
    for _, writer in silent:
        writer.transport.abort()


async def test_agent_that_sends_no_valid_request_line_is_disconnected(hub_lab: HubLab) -> None:
    context = client(hub_lab.credential())
    assert await response_to(hub_lab, b"contr", context) == b""
    assert await response_to(hub_lab, b"x" * 200_000, context) == b""
    assert b"destination 'nowhere' does not exist" in await response_to(hub_lab, b"nowhere\n", context)


async def test_number_of_connections_of_an_agent_is_limited(
    hub_lab: HubLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_MAX_AGENT_CONNECTIONS", 3)
    dialer = hub_lab.dialer()
    channel = await dialer.dial()
    held: list[object] = []
    for name in ("a", "b"):
        expected = hub_lab.hub.expect(NAME, name, Message)
        held += [await dialer.converse(name, Message), await expected]
    hub_lab.hub.expect(NAME, "c", Message)
    with pytest.raises(HubRefused, match="already has 3 connections"):
        await dialer.open("stream:c")
    assert not channel.is_closed
    assert not (await dialer.dial()).is_closed
    assert not (await hub_lab.dialer(hub_lab.credential(OTHER)).dial()).is_closed


async def test_closed_connections_leave_no_resources(hub_lab: HubLab) -> None:
    """No files, tasks or state of agents remain, however the connections ended."""
    service = await asyncio.start_unix_server(lambda _, writer: writer.close(), hub_lab.sockets["rest"])

    async def all_kinds() -> None:
        dialer = hub_lab.dialer()
        (await dialer.dial()).close()
        (await dialer.dial()).give_up()
        reader, writer = await dialer.open("rest")
        await reader.read()
        writer.close()
        expected = hub_lab.hub.expect(NAME, "s", Message)
        stream = await dialer.converse("s", Message)
        (await expected).give_up()
        stream.close()
        with pytest.raises(HubRefused):
            await dialer.open("cellar")
        with pytest.raises(OSError):
            await hub_lab.dialer(hub_lab.credential(seconds=-1)).dial()
        assert await response_to(hub_lab, b"", anonymous_context(hub_lab)) == b""
        _, writer = await asyncio.open_connection("127.0.0.1", hub_lab.hub.port)
        writer.write(b"\x16\x03\x01")
        writer.transport.abort()
        await dialer.close()

    def resources() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())  # noqa: PTH208 - numbers

    await all_kinds()
    before = resources()
    for _ in range(3):
        await all_kinds()
    await until(lambda: all(now <= most for now, most in zip(resources(), before, strict=True)))
    service.close()


def test_certificate_authority_of_the_hub_is_persistent_and_private(tmp_path: Path) -> None:
    first = Issuer.open(tmp_path / "r")
    assert Issuer.open(tmp_path / "r").authority == first.authority
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "r").iterdir()} == {0o600}
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700
    (tmp_path / "r" / "authority.key").unlink()
    with pytest.raises(ValueError, match=r"No such file.*authority\.key"):
        Issuer.open(tmp_path / "r")
    (tmp_path / "r" / "authority.key").write_text("nonsense")
    with pytest.raises(ValueError, match="are not a valid authority"):
        Issuer.open(tmp_path / "r")
