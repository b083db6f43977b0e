"""Keeps over restarts what nodes have told of themselves, by which programs may be started there before
agents have loaded (`first_start`)."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from trainshed.engines.remote.content.manifest import Unit
from trainshed.engines.remote.messages import NodeFacts
from trainshed.eventloop.background import Crew
from trainshed.replica.system import durable

log = logging.getLogger(__name__)


class KnownNodes:
    """The facts about nodes. `path`: their file, made when there is something to keep. If it is lost or
    damaged, starts are only slower. `apart`: each agent has its own address, which is not the node's."""

    def __init__(self, path: Path, *, apart: bool = False) -> None:
        self._path = path
        self._apart = apart
        #: Units that nodes were sent since this process began, by node.
        self._content: dict[str, set[Unit]] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._wanted = asyncio.Event()
        self._tasks = Crew()

    async def load(self) -> None:
        """Read what was known before; from now on changes are written down."""
        try:
            data = await asyncio.to_thread(self._path.read_bytes)
            self._facts = msgspec.json.decode(data, type=dict[str, NodeFacts])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s is not used: %s", self._path, error)
        self._tasks.keep(self._save, "writing down what nodes are")

    async def close(self) -> None:
        await self._tasks.close()

    def of(self, node: str) -> NodeFacts | None:
        """Return the facts about a node; None = its programs wait for its agent."""
        return self._facts.get(node)

    def learn(self, node: str, facts: NodeFacts) -> None:
        """Note facts that a node's agent has told."""
        if self._apart:
            facts = replace(facts, address="")
        if self._facts.get(node) != facts:
            self._facts[node] = facts
            self._wanted.set()

    def forget(self, node: str) -> None:
        """Forget a node on which something was lost, because it may have changed."""
        self._content.pop(node, None)
        if self._facts.pop(node, None) is not None:
            self._wanted.set()

    def has(self, node: str, units: Iterable[Unit]) -> bool:
        """Whether a node was sent all of those units, and most likely still has them."""
        return self._content.get(node, set()).issuperset(units)

    def learn_content(self, node: str, units: Iterable[Unit]) -> None:
        """Note that a node has those units."""
        self._content.setdefault(node, set()).update(units)

    async def _save(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            text = msgspec.json.encode(self._facts)
            try:
                await asyncio.to_thread(durable.write, str(self._path), text, sync=False)
            except OSError as error:
                log.warning("%s is not written: %s", self._path, error)
