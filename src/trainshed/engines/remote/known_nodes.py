"""What nodes have told of themselves, kept over restarts of the service: programs may be started there before
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
    """`path`: the file that holds them, made when there is something to keep. Whatever goes wrong with it is
    no more than a slower start. `apart`: each agent has an address of its own, which says nothing of the
    node's."""

    def __init__(self, path: Path, *, apart: bool = False) -> None:
        self._path = path
        self._apart = apart
        #: What nodes were sent as long as this process runs, by node.
        self._content: dict[str, set[Unit]] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._wanted = asyncio.Event()
        self._tasks = Crew()

    async def load(self) -> None:
        """What was known before; from now on changes are written down."""
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
        """None = its programs wait for its agent."""
        return self._facts.get(node)

    def learn(self, node: str, facts: NodeFacts) -> None:
        """Of a node's agent."""
        if self._apart:
            facts = replace(facts, address="")
        if self._facts.get(node) != facts:
            self._facts[node] = facts
            self._wanted.set()

    def forget(self, node: str) -> None:
        """Something was lost there: it may be another one by now."""
        self._content.pop(node, None)
        if self._facts.pop(node, None) is not None:
            self._wanted.set()

    def has(self, node: str, units: Iterable[Unit]) -> bool:
        """Whether a node was sent all of that, and most likely still has it."""
        return self._content.get(node, set()).issuperset(units)

    def learn_content(self, node: str, units: Iterable[Unit]) -> None:
        """It has all of that."""
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
