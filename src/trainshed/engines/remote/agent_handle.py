"""One agent as the service sees it: whether it is connected, and what it was asked to do."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from trainshed.core.names import JobUid
from trainshed.engines.port import Capabilities, EngineUnavailable, LaunchRejected
from trainshed.engines.remote import messages
from trainshed.engines.remote.channel import Channel, ChannelClosed
from trainshed.engines.remote.content.progress import Sending
from trainshed.engines.remote.messages import AnyCall, News, Order
from trainshed.engines.remote.preflight import PreflightFailed
from trainshed.engines.terminals import TerminalRefused

Connection = Channel[Order, News]
Hosts = tuple[tuple[str, str], ...]
"""Hostnames of a gang, each with its address."""

_PATIENCE = 30.0
"""Seconds that an agent may take for what it is asked to do."""
_RECONNECTING = 5.0
"""Seconds that an agent may take to connect again: it tries every two seconds at least."""


_KINDS = {kind.__name__: kind for kind in (LaunchRejected, TerminalRefused, PreflightFailed)}
"""What an answer may say but that something was not available."""


class AgentGone(EngineUnavailable):
    """It has ended, or counts as dead. Another one may be started in its place."""


class AgentHandle:
    """`name`: whom its certificate names. `lease`: for how many seconds it may live without a word of the
    service."""

    def __init__(
        self, name: str, job_uid: JobUid, attempt: int, part: int, node: str, *, lease: float
    ) -> None:
        self.name = name
        self.lease = lease
        self.job_uid = job_uid
        self.attempt = attempt
        #: Which of the attempt's holds it is in.
        self.part = part
        self.node = node
        self.capabilities: Capabilities | None = None
        #: Why nothing can be run on its node; "" = it can, or is not known yet.
        self.failure = ""
        #: What of the service's directories it may have, and how far that has come.
        self.sending = Sending()
        #: What its replicas were told last of where each of the gang is found; None = that is not known.
        self.hosts: Hosts | None = None
        #: It will not come back: its credential is worth nothing any more.
        self.is_gone = False
        #: Since when it is not connected, in seconds of the monotonic clock; None = it is.
        self.silent_since: float | None = time.monotonic()
        #: It was connected to this service once.
        self.has_connected = False
        #: It has told all that it knew before it was connected.
        self.is_current = False
        #: When it last said something, or could not have yet, in seconds of the monotonic clock.
        self.heard = time.monotonic()
        #: Its connection was ended because nothing was heard on it any more.
        self.is_unheard = False
        #: The cluster is asked to start it just now.
        self.is_starting = False
        #: The cluster has started it.
        self.is_started = False
        #: It has no attempt now, and waits for another one.
        self.is_resting = False
        #: It leaves nothing of an attempt for the next one (`messages.Hello`).
        self.scrubs = False
        #: It has said that it ends, and begins nothing more.
        self.is_ending = False
        self._connection: Connection | None = None
        self._answers: dict[int, asyncio.Future[messages.AnyAnswer]] = {}
        self._number = 0
        self._changed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def connect(self, connection: Connection) -> None:
        """It can be asked from now on."""
        self._connection = connection
        self.silent_since = None
        self.has_connected = True
        self.is_unheard = False
        self.is_current = False
        self.heard = time.monotonic()
        self._changed.set()

    def disconnect(self, connection: Connection) -> None:
        """Nothing if it has another connection already."""
        if self._connection is connection:
            self._connection = None
            self.silent_since = time.monotonic()
            self._fail("the connection to it broke")

    def caught_up(self) -> None:
        """It has told all that it knew."""
        self.is_current = True
        self._changed.set()

    async def current(self) -> None:
        """Wait, for a while, until it has told all that it knows, or is gone."""
        with contextlib.suppress(TimeoutError, EngineUnavailable):
            async with asyncio.timeout(_RECONNECTING):
                while not (self.is_connected and self.is_current):
                    await self.connected()
                    if not self.is_current:
                        self._changed.clear()
                        await self._changed.wait()

    def fail(self, cause: str) -> None:
        """Nothing can be run on its node."""
        self.failure = cause
        self._changed.set()

    def give_up(self) -> None:
        """It is gone."""
        self.is_gone = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._fail("it is gone")
        self._changed.set()

    def acknowledge(self, number: int) -> None:
        """Tell it that its word of that number was heard."""
        if self._connection is not None:
            # It may just have ended, which whoever hears the agent out is about to learn.
            with contextlib.suppress(ChannelClosed):
                self._connection.post(messages.Alive(number))

    def cut(self) -> None:
        """End a connection on which nothing is heard."""
        if self._connection is not None:
            self.is_unheard = True
            self._connection.abort()

    async def connected(self) -> None:
        """Wait until it is. Raises EngineUnavailable: it never will be, or nothing can be run there."""
        while not self.is_connected:
            if self.is_gone or self.failure:
                kind = EngineUnavailable if self.failure else AgentGone
                raise kind(f"node {self.node}: {self.failure or 'its agent is gone'}")
            self._changed.clear()
            await self._changed.wait()

    def require_staying(self) -> None:
        """Raises EngineUnavailable: it ends, and what is to be begun there has to wait until it is gone."""
        if self.is_ending:
            raise EngineUnavailable(
                f"the agent on node {self.node} ends, for the service was silent for longer than the lease; "
                "another one is started when it is gone"
            )

    async def tell_hosts(self, hosts: Hosts) -> None:
        """Have its replicas know where each of the gang is found now. Raises EngineUnavailable."""
        if self.hosts != hosts:
            await self.call(lambda number: messages.Hosts(number=number, hosts=hosts))
            self.hosts = hosts

    async def call(self, make: Callable[[int], AnyCall]) -> messages.AnyAnswer:
        """Ask it for something; `make` is given the call's number. Waits a while for one that is not
        connected: after a restart of the service all of them dial anew. Raises EngineUnavailable (nobody
        knows whether it was done), LaunchRejected."""
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
                await connection.send(make(number))
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
        """Nothing if nobody waits for it any more."""
        waiting = self._answers.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _fail(self, cause: str) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailable(f"node {self.node}: {cause}"))
