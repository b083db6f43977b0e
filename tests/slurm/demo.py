"""`./dev demo-slurm`: the demo of losing a node, on a Slurm cluster of three nodes on this machine, one of
which really loses its power.

    python -m tests.slurm.demo [ARGUMENT OF trainshed demo ...]
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

from tests.slurm.lab import SlurmLab, why_not
from tests.slurm.nodes import Machines


@contextlib.contextmanager
def power_switch(lab: Machines) -> Generator[Path]:
    """A command that switches off the machine of the lab that it is given, and returns when it is off."""
    asked, answered = lab.directory / "switch-off", lab.directory / "switched-off"
    for pipe in (asked, answered):
        os.mkfifo(pipe)
    command = lab.directory / "power-off"
    command.write_text(f'#!/bin/sh\necho "$1" >{asked} && cat {answered}\n')
    command.chmod(0o755)

    def serve() -> None:
        while node := asked.read_text().strip():
            lab.kill_node(node)
            answered.write_text(f"{node} is off\n")

    switch = threading.Thread(target=serve)
    switch.start()
    try:
        yield command
    finally:
        asked.write_text("\n")
        switch.join()


def write_config(lab: SlurmLab, directory: Path, slurm: str = "", *, wrapped: bool = True) -> Path:
    """Of a service whose replicas are on the lab's nodes, with its data in `directory`, which nodes see. It
    may place more than the nodes, small as they are, would have room for. `slurm`: more of
    `[engines.slurm]`; several clusters take no more than they have room for. `wrapped`: its process is
    outside of the lab, and Slurm's commands are the lab's."""
    capacity = "" if "clusters" in slurm else 'capacity = "relaxed"\n'
    own = f'commands = "{lab.commands}"\ndirectory = "/tmp/agents"\n' if wrapped else ""
    config = directory / "config.toml"
    config.write_text(
        f'{capacity}memory_per_replica = 1000\ndata = "{directory}/data"\n'
        f'[engines.slurm]\naddress = "{lab.outside}"\n{own}look_every = 5.0\n'
        f"down_is_lost = true\nshared = true\n{slurm}"
    )
    return config


def main() -> int:
    if reason := why_not():
        print(f"A Slurm cluster cannot be made here: {reason}.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="trainshed-slurm-") as place:
        print("Making a Slurm cluster of three nodes ...", flush=True)
        with SlurmLab.open(Path(place) / "lab") as lab, power_switch(lab) as switch:
            print(lab.slurm("sinfo", "-N"), flush=True)
            config = write_config(lab, lab.directory)
            command = [sys.executable, "-m", "trainshed", "demo", "--engine", "slurm"]
            given = ["--config", str(config), "--power-off", str(switch), *sys.argv[1:]]
            return subprocess.run([*command, *given], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
