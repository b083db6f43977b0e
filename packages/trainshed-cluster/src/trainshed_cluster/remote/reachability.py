"""Checks whether the nodes of a gang reach each other, before slots are given out: each agent listens for a
moment and connects to all others, by the addresses that hostnames stand for."""

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

_PATIENCE = 3.0
"""Seconds that one node may take to reach another one."""
_OPEN_SECONDS = 60.0
"""For which an agent listens at most; the service asks all of them within less."""
_NAMED = 4
"""Nodes that a cause names at most."""


class Break(Struct, frozen=True):
    """A link between two nodes that failed in one direction."""

    source: str
    target: str
    why: str


class Judgement(Struct, frozen=True):
    """Which nodes, or the network, are to blame for failed links."""

    #: Why each unfit node is unfit; the others reach each other without it.
    unfit: Mapping[str, str]
    #: What is wrong with all of them alike, so that no node is to blame; "" = nothing is.
    network: str = ""


def judge(nodes: Sequence[str], breaks: Iterable[Break]) -> Judgement:
    """Blame as few nodes as it takes for the rest to reach each other: the one with the most broken links
    first; of equals the one that fewer others reach, then the last by name. Pure."""
    known = tuple(breaks)
    left: set[frozenset[str]] = {frozenset((link.source, link.target)) for link in known}
    if len(nodes) > 2 and 2 * len(left) == len(nodes) * (len(nodes) - 1):
        return Judgement(
            {},
            f"none of {_names(nodes)} reaches another one ({known[0].why} from {known[0].source} to "
            f"{known[0].target}); look at the nodes' firewalls",
        )
    unfit: dict[str, str] = {}
    while left:
        worst = max(
            {node for pair in left for node in pair},
            key=lambda node: (
                sum(node in pair for pair in left),
                sum(link.target == node for link in known),
                node,
            ),
        )
        unfit[worst] = _cause(worst, known)
        left = {pair for pair in left if worst not in pair}
    return Judgement(unfit)


def _cause(node: str, breaks: Sequence[Break]) -> str:
    inward = [link for link in breaks if link.target == node]
    outward = [link for link in breaks if link.source == node]
    if inward:
        return (
            f"it is not reached from {_names([link.source for link in inward])} ({inward[0].why})"
        )
    return f"it does not reach {_names([link.target for link in outward])} ({outward[0].why})"


def _names(nodes: Sequence[str]) -> str:
    first = sorted(nodes)[:_NAMED]
    more = len(nodes) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


class Beacon:
    """A listener that tells each peer a word that only the service's agents know, and nothing else."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None

    async def light(self, word: str) -> int:
        """Listen for a minute; return the port. Closes an earlier listener. Raises OSError."""
        self.close()

        def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(word.encode())
            writer.close()

        server = self._server = await asyncio.start_server(tell, "0.0.0.0", 0)
        asyncio.get_running_loop().call_later(_OPEN_SECONDS, server.close)
        return server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def reach(places: Sequence[tuple[str, int]], word: str) -> tuple[str, ...]:
    """Return for each (address, port) why it was not reached; "" = it was, and knew the word."""
    return tuple(await asyncio.gather(*(_reach(host, port, word) for host, port in places)))


async def _reach(host: str, port: int, word: str) -> str:
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                answer = await reader.read(len(word) + 1)
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if answer == word.encode() else "another one answers at its address"


def own_address(name: str, service: tuple[str, int]) -> str:
    """Return the IP address by which other nodes reach this one: that of its `name`; "" = the one from which
    it reaches the service. Blocks. Raises OSError."""
    if name:
        return socket.gethostbyname(name)
    # No packet is sent: connecting a UDP socket only shows the address that it would send from.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(service)
        return probe.getsockname()[0]
