"""A whole service on a cluster of the lab: `trainshed up` on the real machine, replicas on the nodes."""

import contextlib
from collections.abc import Generator
from pathlib import Path

from tests.e2e.running import Service, running, start
from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import until

AGENTS = "/tmp/agents"
"""On nodes: where agents and programs write."""
PATIENCE = 20.0
"""Seconds of silence after which an agent gives up (`lease`)."""


def configure(
    lab: SlurmLab,
    name: str,
    lines: str = 'capacity = "relaxed"\nmemory_per_replica = 400',
    slurm: str = "",
    lease: float = PATIENCE,
    place: Path | None = None,
) -> Path:
    """Directory of a service, which nodes see, with its `config.toml` in it. `lines`: of the top, and tables
    of their own. `slurm`: of `[engines.slurm]`. `place`: in which it is made; None = in the lab's."""
    directory = (place or lab.directory / "services") / name
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text(
        f'engine = "slurm"\n{lines}\n'
        f'[engines.slurm]\naddress = "{lab.outside}"\ncommands = "{lab.commands}"\n'
        f'directory = "{AGENTS}"\nlease = {lease}\nlook_every = 5.0\nshared = true\n{slurm}\n'
    )
    return directory


@contextlib.contextmanager
def service_on(lab: SlurmLab, directory: Path) -> Generator[Service]:
    """One that `configure` made a directory for. In the end nothing of it is left in the cluster."""
    with running(directory / "data", "--config", str(directory / "config.toml")) as started:
        yield started
    for _ in until("the end of its allocations"):
        if not lab.slurm("squeue", "-h"):
            return


def start_again(service: Service, directory: Path) -> Service:
    """After `service.kill()`."""
    return start(service.data, "--config", str(directory / "config.toml"))
