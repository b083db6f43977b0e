"""The compared sides: the same program with different environment variables."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.reduction.network import Host
from trainshed_reduction import variables

PORT = 2222
"""First port of the first side, for its reducers and for its workers' rendezvous. Each side has its own two
ports."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared sides. `reduces`: whether it uses reducers."""

    name: str
    title: str
    reduces: bool = False


GLOO = Side("gloo", "gloo")
REDUCERS = Side("reducers", "reducers", reduces=True)
SIDES = (GLOO, REDUCERS)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Input for the environment of a run's processes. `rate`, `reducer_rate`: Mbit/s that the program
    receives; 0 = unknown."""

    package: Path
    workers: Sequence[Host]
    reducers: Sequence[Host]
    rate: float
    reducer_rate: float
    token: str

    def of_worker(self, side: Side, rank: int) -> dict[str, str]:
        """Return the variables that the service sets for a worker of a job, with or without reducers."""
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(self.workers)),
            "MASTER_ADDR": self.workers[0].address,
            "MASTER_PORT": str(_port(side) + 1),
            "GLOO_SOCKET_IFNAME": self.workers[rank].device,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if side.reduces:
            places = ",".join(f"{host.address}:{_port(side)}" for host in self.reducers)
            own |= self._common_variables(side) | {variables.REDUCERS: places}
            if self.rate:
                own[variables.WORKER_GBPS] = f"{self.rate / 1000:g}"
                own[variables.REDUCER_GBPS] = f"{self.reducer_rate / 1000:g}"
        return own

    def of_reducer(self, side: Side, index: int) -> dict[str, str]:
        host = self.reducers[index]
        return self._common_variables(side) | {
            variables.LISTEN: f"{host.address}:{_port(side)}",
            # In production, each worker has its own machine. In this benchmark, they share the CPUs of one
            # machine.
            variables.THREADS: "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def _common_variables(self, side: Side) -> dict[str, str]:
        return {"PYTHONPATH": str(self.package), variables.TOKEN: self.token}


def _port(side: Side) -> int:
    return PORT + 2 * SIDES.index(side)


def new_token() -> str:
    return secrets.token_hex(32)
