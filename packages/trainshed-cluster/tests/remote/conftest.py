"""A hub (the server for agents) on the loopback interface with a real authority, and agents that connect to
it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from trainshed.httpd.connections import Limits
from trainshed_cluster.remote.channel import Channel
from trainshed_cluster.remote.credentials import Credential, Issuer
from trainshed_cluster.remote.dialer import Dialer
from trainshed_cluster.remote.hub import Hub

NAME = "trainshed-abc-7-0-0/node-1"
OTHER = "trainshed-abc-8-0-0/node-1"


class Text(msgspec.Struct, tag=True):
    text: str


class Block(msgspec.Struct, tag=True):
    offset: int
    data: bytes


Message = Text | Block


async def echo(channel: Channel[Message, Message]) -> None:
    while True:
        await channel.send(await channel.receive())


class HubLab:
    """A hub (the server for agents), the sockets of its service, and the names of admitted agents."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.issuer = Issuer.open(directory / "remote")
        self.admitted = {NAME, OTHER}
        self.serve: Callable[[Channel[Message, Message]], Awaitable[None]] = echo
        self.preambles: dict[str, set[bytes]] = {}
        self.channels: list[Channel[Message, Message]] = []
        self.services: list[asyncio.Server] = []
        self.sockets = {name: directory / f"{name}.sock" for name in ("buckets", "rest", "grpc")}
        self.hub: Hub[Message, Message] = self.new_hub()
        self._dialers: list[Dialer[Message, Message]] = []

    def new_hub(self, port: int = 0, head_seconds: float = 5) -> Hub[Message, Message]:
        return Hub(
            self.issuer,
            host="127.0.0.1",
            port=port,
            received=Message,
            sockets=self.sockets,
            is_admitted=lambda name: name in self.admitted,
            serve=self._serve,
            has_preamble=lambda name, line: line in self.preambles.get(name, ()),
            limits=Limits(connections=8, head_seconds=head_seconds),
        )

    async def _serve(self, channel: Channel[Message, Message]) -> None:
        self.channels.append(channel)
        with contextlib.suppress(ConnectionError):
            await self.serve(channel)

    def credential(self, name: str = NAME, seconds: float = 60) -> Credential:
        return self.hub.issue(name, time.time() + seconds)

    def dialer(self, credential: Credential | None = None) -> Dialer[Message, Message]:
        made: Dialer[Message, Message] = Dialer(credential or self.credential(), Message)
        self._dialers.append(made)
        return made

    async def close(self) -> None:
        for dialer in self._dialers:
            await dialer.close()
        await self.hub.close()
        for service in self.services:
            service.close()


@pytest.fixture
async def hub_lab(tmp_path: Path) -> AsyncGenerator[HubLab]:
    made = HubLab(tmp_path)
    await made.hub.start()
    async with asyncio.timeout(60):
        yield made
        await made.close()
