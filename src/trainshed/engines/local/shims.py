"""Has shims begin: writes down what they need, and has the zygote fork them."""

import socket
from collections.abc import Mapping
from pathlib import Path

from trainshed.core.launch import LaunchPlan
from trainshed.core.names import ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.engines.launch.documents import Ground, hosts_text, intercepted, launch_document
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.seat import Seat
from trainshed.engines.local.site import Site
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.port import EngineUnavailable
from trainshed.engines.streams import FileStreams
from trainshed.replica import protocol


class Shims:
    """Of one engine. `site`: explored before the first document; `ground`: what all replicas stand on."""

    def __init__(
        self, layout: Layout, streams: FileStreams, site: Site, ground: Ground, spawner: Spawner
    ) -> None:
        self._layout = layout
        self._streams = streams
        self._site = site
        self._ground = ground
        self._spawner = spawner

    def hosts(self, gang: Mapping[ReplicaId, Seat], plan: LaunchPlan) -> Path:
        """The gang's hosts file, brought up to date, if there is room on the disk. Raises
        EngineUnavailable."""
        slots = [each.slot for each in gang.values()]
        text = hosts_text(slots, plan.hosts, intercepted(self._site.host, self._ground))
        try:
            self._layout.require_room()
            return self._layout.write_hosts(plan.job_uid, plan.attempt, text)
        except OSError as error:
            raise _unwritten(plan, error) from error

    def document(
        self, seat: Seat, hosts: Path, plan: LaunchPlan, masked: tuple[str, ...]
    ) -> protocol.Message:
        """What the seat's shim is told. Raises EngineUnavailable."""
        lost = None
        if plan.reduction:
            try:
                lost = self._layout.lost_reducers(plan.job_uid, plan.attempt)
            except OSError as error:
                raise _unwritten(plan, error) from error
        logs = self._streams.directory(StreamSource(plan.job_uid, plan.attempt, plan.replica))
        return launch_document(
            plan=plan,
            slot=seat.slot,
            host=self._site.host,
            ground=self._ground,
            directory=seat.directory,
            hosts=hosts,
            logs=logs,
            lost_reducers=lost,
            masked=masked,
        ).to_message()

    async def request(self, seat: Seat) -> None:
        """Have the zygote fork the seat's shim, and listen to it from its first moment. Raises
        EngineUnavailable, OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            seat.attach(ours)
            message = {"slot": str(seat.directory), "plan": seat.plan}
            try:
                seat.zygote = await self._spawner.request(message, theirs)
            except BaseException:
                seat.let_go()
                raise


def _unwritten(plan: LaunchPlan, error: OSError) -> EngineUnavailable:
    return EngineUnavailable(
        f"the launch of {plan.replica} cannot be written down ({error}); make room and try again"
    )
