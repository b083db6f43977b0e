"""Stores the news of an agent, which are its reports about its replicas, and queues the news that the service
has not received yet."""

import asyncio

from trainshed.core.names import ReplicaId
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.messages import News


class SeenNews:
    """All news about an agent's replicas: starts and ends of their runs (incarnations), notes to users,
    numbers of log lines, and measurements. The agent sends all this news again on every new connection."""

    def __init__(self) -> None:
        self._news: dict[tuple[ReplicaId, int], list[News]] = {}
        self._latest: dict[tuple[ReplicaId, type], News] = {}

    def add(self, replica: ReplicaId, incarnation: int, news: News) -> None:
        of_replica = self._news.setdefault((replica, incarnation), [])
        if news not in of_replica:
            of_replica.append(news)

    def record_latest(self, replica: ReplicaId, news: messages.Lines | messages.Metrics) -> None:
        """Record a replica's number of log lines, or that it has a measurement. Replaces the replica's last
        news of that kind."""
        self._latest[replica, type(news)] = news

    def latest(self) -> list[tuple[ReplicaId, News]]:
        """Return the last news about numbers of log lines and measurements. The agent sends this news again
        after a lost connection, because readers of logs may wait for it."""
        return [(replica, news) for (replica, _), news in self._latest.items()]

    def replicas(self) -> list[ReplicaId]:
        return sorted({replica for replica, _ in self._news})

    def live(self) -> list[ReplicaId]:
        """Return the replicas whose last run (incarnation) has started and not ended."""
        ends = messages.Exited, messages.Lost
        last = {
            replica: of_replica
            for (replica, _), of_replica in sorted(self._news.items(), key=lambda item: item[0])
        }
        return [
            replica
            for replica, of_replica in last.items()
            if not any(isinstance(event, ends) for event in of_replica)
        ]

    def all(self) -> list[tuple[ReplicaId, News]]:
        """Return all news about starts and ends of replicas, and their notes to users. The news of each
        replica is in order. The starts of all replicas come first, because a replica may have waited for its
        peers to start."""
        events = [
            (incarnation, replica, news)
            for (replica, incarnation), of_replica in sorted(self._news.items(), key=lambda item: item[0])
            for news in of_replica
        ]
        events.sort(key=lambda item: (item[0], not isinstance(item[2], messages.Started)))
        return [(replica, news) for _, replica, news in events]


class PendingNews:
    """The queue of news that the agent has not sent on the current connection. It also contains replicas
    whose streams may have grown. It contains at most one number of log lines per replica, because that number
    may change thousands of times per second."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[ReplicaId | None, News | None]] = {}
        self._number = 0
        self._wake = asyncio.Event()
        #: Set when `next` waits, because all queued news has been sent by then.
        self._emptied = asyncio.Event()

    def add(self, replica: ReplicaId | None, news: News | None) -> None:
        """Queue news.

        Args:
            replica: The replica that the news is about; None = no single replica.
            news: None = the replica's streams may have grown.
        """
        key: object
        match news:
            case messages.Lines() | messages.Metrics() | None:
                key = (replica, type(news))
            case _:
                key = self._number = self._number + 1
        self._waiting[key] = (replica, news)
        self._emptied.clear()
        self._wake.set()

    def clear(self) -> None:
        self._waiting.clear()

    async def wait_sent(self) -> None:
        """Wait until all queued news has been sent."""
        await self._emptied.wait()

    async def next(self) -> tuple[ReplicaId | None, News | None]:
        while not self._waiting:
            self._emptied.set()
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.pop(next(iter(self._waiting)))
