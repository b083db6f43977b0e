"""A whole service on a cluster of the lab: `trainshed up` on the real machine, replicas on the nodes."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from tests.caches import cache_for_users, cache_of
from tests.contract.ordinary_user import interpreter_of_nobody
from tests.e2e.hostile.yard import environment_of
from tests.e2e.running import ROOT, Service, common_place, down, launch, ready, running
from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import until
from tests.sources import search_path
from trainshed_cluster.remote.options import service_identity

AGENTS = "/tmp/agents"
"""On nodes: where agents and programs write."""
WHOLE_NODE = "n4-highcpu-2"
"""A machine type of which a node has room for one."""
PATIENCE = 20.0
"""Seconds of silence after which an agent gives up (`lease`)."""


def configure(
    lab: SlurmLab,
    name: str,
    lines: str = 'capacity = "relaxed"\nmemory_per_replica = 400',
    slurm: str = "",
    lease: float = PATIENCE,
    place: Path | None = None,
    *,
    wrapped: bool = True,
) -> Path:
    """Directory of a service, which nodes see, with its `config.toml` in it. `lines`: of the top, and tables
    of their own. `slurm`: of `[engines.slurm]`. `place`: in which it is made; None = in the lab's. `wrapped`:
    its process is outside of the lab, and Slurm's commands are the lab's."""
    directory = (place or lab.directory / "services") / name
    directory.mkdir(parents=True)
    own = f'commands = "{lab.commands}"\ndirectory = "{AGENTS}"\n' if wrapped else ""
    (directory / "config.toml").write_text(
        f'engine = "slurm"\n{lines}\n'
        f'[engines.slurm]\naddress = "{lab.outside}"\n{own}'
        f"lease = {lease}\nshared = true\n{slurm}\n"
    )
    return directory


@contextlib.contextmanager
def service_on(lab: SlurmLab, directory: Path) -> Generator[Service]:
    """One that `configure` made a directory for. In the end nothing of it is left in the cluster."""
    with running(directory / "data", "--config", str(directory / "config.toml")) as started:
        yield started
    await_given_back(lab, directory / "data")


def held_by(lab: SlurmLab, data: Path) -> list[str]:
    """The allocations of the service with that data directory that wait or have nodes, a line each."""
    own = f" trainshed-{service_identity(data, data / 'engines/slurm')}"
    lines = lab.slurm("squeue", "-h", "-o", "%i %u %j %T %M %R").splitlines()
    return [line for line in lines if own in line and " COMPLETING " not in line]


def await_given_back(lab: SlurmLab, data: Path, seconds: float = 60.0) -> None:
    """Until that service holds nothing. Raises TimeoutError: with whose the allocations are that there are,
    their steps, and the end of the service's log."""
    try:
        for _ in until(f"the end of the allocations of {data}", seconds):
            if not held_by(lab, data):
                return
    except TimeoutError as late:
        log = data / "service.log"
        raise TimeoutError(
            f"{late}\n{lab.slurm('squeue', '-o', '%i %u %j %T %M %R')}\n{lab.slurm('squeue', '-s')}\n"
            f"{log}:\n{log.read_text()[-5000:] if log.exists() else 'is not there'}"
        ) from None


def on_login_node(
    lab: SlurmLab, words: Sequence[str], uid: int = 0
) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment by which `python -m WORDS` runs on a login node, where there is
    nothing but Slurm's own commands, as root or as another user. Skips where no interpreter can be run by
    other users."""
    python = interpreter_of_nobody()
    if not python:
        pytest.skip("no interpreter of this version that another user may run")
    environment = environment_of(cache_of(uid) if uid else cache_for_users()) | {
        "PYTHONPATH": search_path(ROOT, Path(pytest.__file__).parents[1]),
        "TRAINSHED_VISIBLE_PATHS": str(common_place()),
    }
    as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
    return [*lab.on_login_node(), *as_user, python, "-m", *words], environment


@contextlib.contextmanager
def service_on_login_node(lab: SlurmLab, directory: Path, uid: int = 0) -> Generator[Service]:
    """A service there, over a directory that `configure` has made and that user may write to."""
    words = ["trainshed", "up", "--port", "0", "--data", str(directory / "data")]
    words += ["--config", str(directory / "config.toml")]
    argv, environment = on_login_node(lab, words, uid)
    log = directory / "service.log"
    process, reader = launch(argv, log, env=environment)
    service = ready(directory / "data", process, reader, log)
    try:
        yield service
    finally:
        down(service.data)
        if process.poll() is None:
            service.kill()
    await_given_back(lab, service.data)
