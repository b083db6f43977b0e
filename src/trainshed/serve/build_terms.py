"""On what terms the packages of jobs are installed: at the level of the engine's programs, hidden from what they are."""

from collections.abc import Callable

from trainshed.engines.local.documents import COVERED
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.places import PROGRAM_PORT
from trainshed.engines.port import EngineUnavailable
from trainshed.replica import socket_calls
from trainshed.runtimes.port import BuildFailed
from trainshed.runtimes.terms import MOST_UNPACKED, Terms
from trainshed.serve.settings import Settings

_CPU_WEIGHT = 400
"""As a program of four vCPUs."""
_MEMORY = 8 << 30
"""Bytes, where no setting says how many."""
_REPLICA_PORTS = tuple(range(PROGRAM_PORT, PROGRAM_PORT + socket_calls.PORTS))


def build_terms(
    settings: Settings, engine: LocalEngine, ports: tuple[int, ...] = ()
) -> Callable[[], Terms]:
    """To be called when the engine has started. `ports`: those that the service listens on."""

    def terms() -> Terms:
        try:
            host = engine.host
        except EngineUnavailable as failure:
            raise BuildFailed(f"The packages cannot be installed yet: {failure}.") from None
        memory = (settings.build_memory or settings.memory_per_replica) << 20
        disk = round(settings.build_disk * 2**30)
        return Terms(
            level=host.level,
            hidden=engine.hidden,
            covered=COVERED,
            visible=engine.visible,
            memory_bytes=min(memory or _MEMORY, host.memory_bytes),
            processes=settings.max_processes,
            disk_bytes=disk,
            seconds=settings.build_time,
            cpu_weight=_CPU_WEIGHT,
            memory_base=host.memory_base,
            cpu_base=host.cpu_base,
            pids_base=host.pids_base,
            kept_ports=(*ports, *_REPLICA_PORTS),
            unpacked_bytes=min(disk or MOST_UNPACKED, MOST_UNPACKED),
        )

    return terms
