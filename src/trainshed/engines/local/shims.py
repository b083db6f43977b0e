"""Has shims begin: writes down what they need, and has the zygote fork them.

Only a few replicas start, or are told to stop, at once, so that a large gang leaves the service its share of
the processors (docs/adr/0048).
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.engines.launch.documents import SharedPaths, hosts_text, intercepted, launch_document
from trainshed.engines.local.host_probe import HostProbe
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.port import EngineUnavailable
from trainshed.engines.streams import FileStreams
from trainshed.replica import protocol


class Shims:
    """The shims of one engine: what each is told, and the request that has it forked."""

    def __init__(
        self,
        layout: Layout,
        streams: FileStreams,
        host_probe: HostProbe,
        shared: SharedPaths,
        spawner: Spawner,
    ) -> None:
        self._layout = layout
        self._streams = streams
        #: Explored before the first document.
        self._probe = host_probe
        self._shared = shared
        self._spawner = spawner

    def hosts(self, gang: Mapping[ReplicaId, SlotHandle], plan: LaunchPlan) -> Path:
        """The gang's hosts file, brought up to date, if there is room on the disk. Raises
        EngineUnavailable."""
        slots = [each.slot for each in gang.values()]
        text = hosts_text(slots, plan.hosts, intercepted(self._probe.host, self._shared))
        try:
            self._layout.require_room()
            return self._layout.write_hosts(plan.job_uid, plan.attempt, text)
        except OSError as error:
            raise _unwritten(plan, error) from error

    def document(
        self, slot_handle: SlotHandle, hosts: Path, plan: LaunchPlan, masked: tuple[str, ...]
    ) -> protocol.Message:
        """What the slot handle's shim is told. Raises EngineUnavailable."""
        lost = None
        if plan.reduction.packages:
            try:
                lost = self._layout.lost_reducers(plan.job_uid, plan.attempt)
            except OSError as error:
                raise _unwritten(plan, error) from error
        logs = self._streams.directory(StreamSource(plan.job_uid, plan.attempt, plan.replica))
        return launch_document(
            plan=plan,
            slot=slot_handle.slot,
            host=self._probe.host,
            shared=self._shared,
            directory=slot_handle.directory,
            hosts=hosts,
            logs=logs,
            lost_reducers=lost,
            masked=masked,
        ).to_message()

    async def request(self, slot_handle: SlotHandle) -> None:
        """Have the zygote fork the slot handle's shim, and listen to it from its first moment. Raises
        EngineUnavailable, OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            slot_handle.attach(ours)
            message = {"slot": str(slot_handle.directory), "plan": slot_handle.plan}
            try:
                slot_handle.zygote = await self._spawner.request(message, theirs)
            except BaseException:
                slot_handle.close()
                raise


def _unwritten(plan: LaunchPlan, error: OSError) -> EngineUnavailable:
    return EngineUnavailable(
        f"the launch of {plan.replica} cannot be written down ({error}); make room and try again"
    )


Key = tuple[JobUid, int, ReplicaId]
"""A replica of an attempt."""

_PER_PROCESSOR: Final = 4
"""Replicas under way per processor. A start waits for the disk now and then; with fewer a processor would be
idle."""
_LONGEST_START: Final = 0.25
"""Seconds after which a start does not count any more: it pulls an image, say, or waits for a disk."""
_LONGEST_STOP: Final = 0.02
"""Seconds after which a stop does not count any more: the program uses its grace period, and the others have
theirs from nearly the same moment on."""


class PaceLimit:
    """How many replicas start or are told to stop at the same time. `leave` is called when one has started or
    ended."""

    def __init__(self, most: int = 0) -> None:
        self._free = asyncio.Semaphore(most or _PER_PROCESSOR * (os.cpu_count() or 1))
        self._under_way: dict[Key, asyncio.TimerHandle] = {}

    async def start(self, key: Key) -> None:
        """Wait until it may start."""
        await self._enter(key, _LONGEST_START)

    async def stop(self, key: Key) -> None:
        """Wait until it may be told to stop."""
        await self._enter(key, _LONGEST_STOP)

    def leave(self, key: Key) -> None:
        """Nothing if it did not enter, or has left."""
        if (timer := self._under_way.pop(key, None)) is not None:
            timer.cancel()
            self._free.release()

    async def _enter(self, key: Key, longest: float) -> None:
        await self._free.acquire()
        self.leave(key)
        loop = asyncio.get_running_loop()
        self._under_way[key] = loop.call_later(longest, self.leave, key)
