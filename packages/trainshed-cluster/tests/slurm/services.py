"""A complete service on a cluster of the lab: `trainshed up` on the real machine, replicas on the nodes."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from tests.caches import cache_for_users, cache_of
from tests.contract.ordinary_user import interpreter_of_nobody
from tests.e2e.hostile.attack_setup import environment_of
from tests.e2e.running import ROOT, Service, common_place, down, launch, ready, running
from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import until
from tests.sources import search_path
from trainshed_cluster.remote.options import service_identity

AGENTS = "/tmp/agents"
"""Directory on nodes for the files of agents and programs."""
WHOLE_NODE = "n4-highcpu-2"
"""A machine type of which only one fits on a node."""
DEFAULT_LEASE = 20.0
"""Seconds without contact after which an agent ends its programs (`lease`)."""


def configure(
    lab: SlurmLab,
    name: str,
    lines: str = 'capacity = "relaxed"\nmemory_per_replica = 400',
    slurm: str = "",
    lease: float = DEFAULT_LEASE,
    place: Path | None = None,
    *,
    wrapped: bool = True,
) -> Path:
    """Create a service's directory with its `config.toml`, visible on nodes. `lines`: top-level settings and
    further tables. `slurm`: of `[engines.slurm]`. `place`: parent directory; None = the lab's. `wrapped`: the
    service runs outside the lab and uses the lab's Slurm commands."""
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
    """Run the service of a directory that `configure` created. Check that it leaves nothing in the
    cluster."""
    with running(directory / "data", "--config", str(directory / "config.toml")) as started:
        yield started
    await_released(lab, directory / "data")


def allocations_of(lab: SlurmLab, data: Path) -> list[str]:
    """Return the pending and granted allocations of the service with that data directory, one line each."""
    own = f" trainshed-{service_identity(data, data / 'engines/slurm')}"
    lines = lab.slurm("squeue", "-h", "-o", "%i %u %j %T %M %R").splitlines()
    return [line for line in lines if own in line and " COMPLETING " not in line]


def await_released(lab: SlurmLab, data: Path, seconds: float = 60.0) -> None:
    """Wait until that service has no allocations. Raises TimeoutError with the existing allocations, their
    steps, and the end of the service's log."""
    try:
        for _ in until(f"the end of the allocations of {data}", seconds):
            if not allocations_of(lab, data):
                return
    except TimeoutError as late:
        log = data / "service.log"
        raise TimeoutError(
            f"{late}\n{lab.slurm('squeue', '-o', '%i %u %j %T %M %R')}\n{lab.slurm('squeue', '-s')}\n"
            f"{log}:\n{log.read_text()[-5000:] if log.exists() else 'is not there'}"
        ) from None


def on_login_node(lab: SlurmLab, words: Sequence[str], uid: int = 0) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment that run `python -m WORDS` on a login node, as root or as another
    user. The node has only Slurm's own commands. Skips the test if other users cannot run any interpreter."""
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
    """Run a service there, over a directory that `configure` created and that the user may write."""
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
    await_released(lab, service.data)
