"""Keeps what an agent has seen of its replicas, and which of it is still to be sent to the service."""

import asyncio

from trainshed.core.names import ReplicaId
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.messages import News


class Known:
    """Everything that was seen of the replicas: the start, notes and end of each incarnation, and each
    replica's number of lines and whether it has measured something. It is sent again on every new
    connection."""

    def __init__(self) -> None:
        self._news: dict[tuple[ReplicaId, int], list[News]] = {}
        self._latest: dict[tuple[ReplicaId, type], News] = {}

    def add(self, replica: ReplicaId, incarnation: int, news: News) -> None:
        of_replica = self._news.setdefault((replica, incarnation), [])
        if news not in of_replica:
            of_replica.append(news)

    def note(self, replica: ReplicaId, news: messages.Lines | messages.Metrics) -> None:
        """Note a replica's number of lines or its measurement, replacing the last one."""
        self._latest[replica, type(news)] = news

    def latest(self) -> list[tuple[ReplicaId, News]]:
        """Return what was noted last. It wakes readers of logs, since lines may have been written while there
        was no connection."""
        return [(replica, news) for (replica, _), news in self._latest.items()]

    def replicas(self) -> list[ReplicaId]:
        return sorted({replica for replica, _ in self._news})

    def live(self) -> list[ReplicaId]:
        """Return the replicas that have started, and whose end was not seen."""
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
        """Return all news: each replica's in order, and the starts of all replicas first, because one that
        has ended may have waited for the others to start."""
        events = [
            (incarnation, replica, news)
            for (replica, incarnation), of_replica in sorted(
                self._news.items(), key=lambda item: item[0]
            )
            for news in of_replica
        ]
        events.sort(key=lambda item: (item[0], not isinstance(item[2], messages.Started)))
        return [(replica, news) for _, replica, news in events]


class Untold:
    """What is still to be sent on the current connection, in order: news, and replicas whose streams may have
    grown. Lines are queued once until they are sent, because there may be thousands a second."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[ReplicaId | None, News | None]] = {}
        self._number = 0
        self._wake = asyncio.Event()
        #: Set while `next` waits, which means that everything before was sent.
        self._emptied = asyncio.Event()

    def add(self, replica: ReplicaId | None, news: News | None) -> None:
        """Queue news. `replica`: None = it concerns no single one. `news`: None = only the replica's streams
        may have grown."""
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

    async def empty(self) -> None:
        """Wait until everything that was added has been taken and sent."""
        await self._emptied.wait()

    async def next(self) -> tuple[ReplicaId | None, News | None]:
        while not self._waiting:
            self._emptied.set()
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.pop(next(iter(self._waiting)))
