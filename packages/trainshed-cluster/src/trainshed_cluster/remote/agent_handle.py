"""The service's view of one agent: its connection, and the calls (orders of the service) that the agent has
not answered yet."""

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
"""Hostname and address of each replica of a gang."""

_CALL_TIMEOUT = 30.0
"""Seconds that an agent has to answer a call."""
_RECONNECT_TIMEOUT = 5.0
"""Seconds to wait for a disconnected agent to connect again. Agents try to connect at least every two
seconds."""


_EXCEPTIONS = {kind.__name__: kind for kind in (LaunchRejected, TerminalRefused)}
"""The exceptions other than EngineUnavailable that an agent may report in its answer to a call, by name."""


class AgentGone(EngineUnavailable):
    """The agent has ended, or counts as dead. The service may start another agent in its place."""


class AgentHandle:
    """One agent.

    Args:
        name: The name in the agent's certificate.
        lease: Seconds that the agent survives without contact to the service.
    """

    def __init__(
        self, name: str, job_uid: JobUid, attempt: int, index: int, node: str, *, lease: float
    ) -> None:
        self.name = name
        self.lease = lease
        self.job_uid = job_uid
        self.attempt = attempt
        #: Number of the agent's allocation within the attempt.
        self.allocation_index = index
        self.node = node
        self.capabilities: Capabilities | None = None
        #: The reason why no program can run on the agent's node. None = programs can run, or the agent has
        #: not connected yet.
        self.failure: str | None = None
        #: Paths of the content units (such as environments) that the agent may fetch from the service.
        self.granted: set[str] = set()
        #: The addresses of all replicas of the gang, as the service last sent them to the agent; None =
        #: unknown.
        self.hosts: Hosts | None = None
        #: The agent can no longer connect, because its credential is revoked.
        self.is_gone = False
        #: Time of the disconnection in seconds of the monotonic clock; None = the agent is connected.
        self.disconnected_at: float | None = time.monotonic()
        #: The agent has been connected to this service.
        self.has_connected = False
        #: The agent has repeated all its earlier reports on the current connection.
        self.is_current = False
        #: Time of the agent's last message in seconds of the monotonic clock. Before the first message, the
        #: time at which this object was created.
        self.last_heard = time.monotonic()
        #: Seconds by which the agent's clock was ahead of the service's clock at the last report. A negative
        #: number: the agent's clock was behind. None = unknown.
        self.skew: float | None = None
        #: The service closed the agent's connection because the agent had sent nothing for too long.
        self.has_timed_out = False
        #: The service is starting the agent on the cluster.
        self.is_starting = False
        #: The agent belongs to no attempt. It waits until an attempt adopts it.
        self.is_idle = False
        #: The agent has reported that it is ending. It starts no more programs.
        self.is_ending = False
        self._connection: Connection | None = None
        self._answers: dict[int, asyncio.Future[messages.AnyAnswer]] = {}
        self._number = 0
        self._state_changed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def connect(self, connection: Connection) -> None:
        self._connection = connection
        self.disconnected_at = None
        self.has_connected = True
        self.has_timed_out = False
        self.is_current = False
        self.last_heard = time.monotonic()
        self._state_changed.set()

    def disconnect(self, connection: Connection) -> None:
        """Record that a connection of the agent has ended. Ignored if the agent has a newer connection."""
        if self._connection is connection:
            self._connection = None
            self.disconnected_at = time.monotonic()
            self._fail("the connection to the agent was lost")

    def mark_current(self) -> None:
        """Record that the agent has repeated all its earlier reports on the current connection."""
        self.is_current = True
        self._state_changed.set()

    async def wait_current(self) -> None:
        """Wait for a limited time until the agent has repeated all its earlier reports or has ended."""
        with contextlib.suppress(TimeoutError, EngineUnavailable):
            async with asyncio.timeout(_RECONNECT_TIMEOUT):
                while not (self.is_connected and self.is_current):
                    await self.wait_connected()
                    if not self.is_current:
                        self._state_changed.clear()
                        await self._state_changed.wait()

    def fail(self, cause: str) -> None:
        self.failure = cause
        self._state_changed.set()

    def give_up(self) -> None:
        """Record that the agent can no longer connect, and close its connection."""
        self.is_gone = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._fail("its agent has ended")
        self._state_changed.set()

    def acknowledge(self, number: int) -> None:
        """Acknowledge the agent's message with the given number."""
        if self._connection is not None:
            # If the connection has just ended, the task that reads from it handles the end.
            with contextlib.suppress(ChannelClosed):
                self._connection.post(messages.Alive(number))

    def disconnect_silent(self) -> None:
        """Close the connection of an agent that has sent nothing for too long."""
        if self._connection is not None:
            self.has_timed_out = True
            self._connection.give_up()

    async def wait_connected(self) -> None:
        """Wait until the agent is connected. Raises EngineUnavailable if the agent will not connect again, or
        if no program can run on its node."""
        while not self.is_connected:
            if self.is_gone or self.failure:
                kind = EngineUnavailable if self.failure else AgentGone
                raise kind(f"node {self.node}: {self.failure or 'its agent has ended'}")
            self._state_changed.clear()
            await self._state_changed.wait()

    def require_not_ending(self) -> None:
        """Raise EngineUnavailable if the agent is ending. New programs must then wait for the next agent."""
        if self.is_ending:
            raise EngineUnavailable(
                f"the agent on node {self.node} is ending, because its lease expired; "
                "another agent starts after that"
            )

    async def send_hosts(self, hosts: Hosts) -> None:
        """Send the gang's current addresses to the agent, which passes them to its replicas. Raises
        EngineUnavailable if the agent does not confirm them."""
        if self.hosts != hosts:
            await self.call(messages.Hosts(hosts=hosts))
            self.hosts = hosts

    async def call(self, call: AnyCall) -> messages.AnyAnswer:
        """Send a call to the agent, and return its answer. If the agent is disconnected, waits a limited time
        for its connection, because all agents must connect again after a restart of the service.

        Raises LaunchRejected if the agent rejects the call, and EngineUnavailable if the call failed or its
        outcome is unknown.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RECONNECT_TIMEOUT):
                await self.wait_connected()
        connection = self._connection
        if connection is None:
            raise EngineUnavailable(f"the agent on node {self.node} is not connected now")
        self._number += 1
        number = self._number
        deliver_answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                await connection.send(replace(call, number=number))
                answer = await deliver_answer
        except (ChannelClosed, TimeoutError) as error:
            raise EngineUnavailable(
                f"the agent on node {self.node} does not respond ({error or 'timeout'})"
            ) from error
        finally:
            self._answers.pop(number, None)
        if isinstance(answer, messages.Answer) and answer.failure:
            kind = _EXCEPTIONS.get(answer.failure, EngineUnavailable)
            raise kind(f"node {self.node}: {answer.message}")
        return answer

    def deliver_answer(self, answer: messages.AnyAnswer) -> None:
        """Pass an answer to the task that made the call. Ignored if the task no longer waits."""
        waiting = self._answers.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self, cause: str) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailable(f"node {self.node}: {cause}"))
