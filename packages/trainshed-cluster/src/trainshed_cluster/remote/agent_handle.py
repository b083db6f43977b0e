"""The service's view of one agent: whether it is connected, and which calls it has not answered yet."""

import asyncio
import contextlib
import time

from msgspec.structs import replace

from trainshed.core.names import JobUid
from trainshed.core.terminals import TerminalRefused
from trainshed.engines.port import Capabilities, EngineUnavailable, LaunchRejected
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.channel import Channel, ChannelClosed
from trainshed_cluster.remote.messages import AnyCall, News, Order

Connection = Channel[Order, News]
Hosts = tuple[tuple[str, str], ...]
"""Hostnames of a gang, each with its address."""

_PATIENCE = 30.0
"""Seconds that an agent may take for what it is asked to do."""
_RECONNECTING = 5.0
"""Seconds that an agent may take to connect again: it tries every two seconds at least."""


_KINDS = {kind.__name__: kind for kind in (LaunchRejected, TerminalRefused)}
"""What an answer may say but that something was not available."""


class AgentGone(EngineUnavailable):
    """The agent has ended, or counts as dead. Another one may be started in its place."""


class AgentHandle:
    """One agent. `name`: the name in its certificate. `lease`: seconds that it may live without hearing from
    the service."""

    def __init__(
        self, name: str, job_uid: JobUid, attempt: int, part: int, node: str, *, lease: float
    ) -> None:
        self.name = name
        self.lease = lease
        self.job_uid = job_uid
        self.attempt = attempt
        #: Number of the hold in the attempt that it is in.
        self.part = part
        self.node = node
        self.capabilities: Capabilities | None = None
        #: Why nothing can be run on its node; None = programs can be run, or it is not known yet.
        self.failure: str | None = None
        #: Paths of the units of content that it may fetch.
        self.granted: set[str] = set()
        #: The gang's addresses that its replicas were told last; None = not known.
        self.hosts: Hosts | None = None
        #: It will not come back: its credential is revoked.
        self.is_gone = False
        #: Since when it is disconnected, in seconds of the monotonic clock; None = it is connected.
        self.silent_since: float | None = time.monotonic()
        #: It was connected to this service at least once.
        self.has_connected = False
        #: It has reported everything that it knew before the connection.
        self.is_current = False
        #: When it was last heard, or first could have been, in seconds of the monotonic clock.
        self.heard = time.monotonic()
        #: Seconds by which its clock was ahead of the service's, as it was told last; None = not yet.
        self.skew: float | None = None
        #: Its connection was closed because nothing was heard on it any more.
        self.is_unheard = False
        #: The cluster is just being asked to start it.
        self.is_starting = False
        #: It has no attempt now, and waits for another one.
        self.is_resting = False
        #: It has reported that it ends, and starts nothing more.
        self.is_ending = False
        self._connection: Connection | None = None
        self._answers: dict[int, asyncio.Future[messages.AnyAnswer]] = {}
        self._number = 0
        self._changed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def connect(self, connection: Connection) -> None:
        self._connection = connection
        self.silent_since = None
        self.has_connected = True
        self.is_unheard = False
        self.is_current = False
        self.heard = time.monotonic()
        self._changed.set()

    def disconnect(self, connection: Connection) -> None:
        """Drop this connection; do nothing if the agent has another one already."""
        if self._connection is connection:
            self._connection = None
            self.silent_since = time.monotonic()
            self._fail("the connection to it broke")

    def caught_up(self) -> None:
        """Note that it has reported everything that it knew."""
        self.is_current = True
        self._changed.set()

    async def current(self) -> None:
        """Wait, for a while, until it has reported everything that it knows, or is gone."""
        with contextlib.suppress(TimeoutError, EngineUnavailable):
            async with asyncio.timeout(_RECONNECTING):
                while not (self.is_connected and self.is_current):
                    await self.connected()
                    if not self.is_current:
                        self._changed.clear()
                        await self._changed.wait()

    def fail(self, cause: str) -> None:
        self.failure = cause
        self._changed.set()

    def give_up(self) -> None:
        """Count it as gone for good."""
        self.is_gone = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._fail("it is gone")
        self._changed.set()

    def acknowledge(self, number: int) -> None:
        """Tell it that its message of that number was heard."""
        if self._connection is not None:
            # The connection may just have ended, which its reader is about to notice.
            with contextlib.suppress(ChannelClosed):
                self._connection.post(messages.Alive(number))

    def cut(self) -> None:
        """Close a connection on which nothing is heard."""
        if self._connection is not None:
            self.is_unheard = True
            self._connection.give_up()

    async def connected(self) -> None:
        """Wait until it is connected. Raises EngineUnavailable if it never will be, or nothing can be run
        there."""
        while not self.is_connected:
            if self.is_gone or self.failure:
                kind = EngineUnavailable if self.failure else AgentGone
                raise kind(f"node {self.node}: {self.failure or 'its agent is gone'}")
            self._changed.clear()
            await self._changed.wait()

    def require_staying(self) -> None:
        """Raise EngineUnavailable if it is ending: new programs there have to wait until it is gone."""
        if self.is_ending:
            raise EngineUnavailable(
                f"the agent on node {self.node} ends, for the service was silent for longer than the lease; "
                "another one is started when it is gone"
            )

    async def tell_hosts(self, hosts: Hosts) -> None:
        """Tell its replicas the gang's current addresses. Raises EngineUnavailable."""
        if self.hosts != hosts:
            await self.call(messages.Hosts(hosts=hosts))
            self.hosts = hosts

    async def call(self, call: AnyCall) -> messages.AnyAnswer:
        """Make a call and return its answer. Waits a while for an agent that is not connected, because after
        a restart of the service all of them dial anew. Raises EngineUnavailable (it is not known whether the
        call was done), LaunchRejected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RECONNECTING):
                await self.connected()
        connection = self._connection
        if connection is None:
            raise EngineUnavailable(f"the agent on node {self.node} is not connected just now")
        self._number += 1
        number = self._number
        answered = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_PATIENCE):
                await connection.send(replace(call, number=number))
                answer = await answered
        except (ChannelClosed, TimeoutError) as error:
            raise EngineUnavailable(
                f"the agent on node {self.node} does not answer ({error or 'too late'})"
            ) from error
        finally:
            self._answers.pop(number, None)
        if isinstance(answer, messages.Answer) and answer.failure:
            kind = _KINDS.get(answer.failure, EngineUnavailable)
            raise kind(f"node {self.node}: {answer.message}")
        return answer

    def answered(self, answer: messages.AnyAnswer) -> None:
        """Take over the answer to a call, if something still waits for it."""
        waiting = self._answers.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self, cause: str) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailable(f"node {self.node}: {cause}"))
