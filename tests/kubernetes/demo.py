"""`./dev demo-kubernetes`: the demo of losing a node, on a Kubernetes cluster of two nodes on this machine,
one of which really loses its power.

    python -m tests.kubernetes.demo [ARGUMENT OF trainshed demo ...]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kubernetes.lab import KubernetesLab, why_not
from tests.kubernetes.whole import configure
from tests.slurm.demo import power_switch


def write_config(lab: KubernetesLab, directory: Path) -> Path:
    """Of a service whose replicas are in Pods of the lab, with its data in `directory`."""
    return configure(lab, directory, f'data = "{directory}/data"\ncapacity = "relaxed"')


def main() -> int:
    if reason := why_not():
        print(f"A Kubernetes cluster cannot be made here: {reason}.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="trainshed-kubernetes-") as place:
        print("Making a Kubernetes cluster of two nodes ...", flush=True)
        with KubernetesLab(Path(place) / "lab") as lab, power_switch(lab) as switch:
            print(lab.kubectl("get", "nodes"), flush=True)
            config = write_config(lab, lab.directory / "service")
            command = [sys.executable, "-m", "trainshed", "demo", "--engine", "kubernetes"]
            given = ["--config", str(config), "--power-off", str(switch), *sys.argv[1:]]
            return subprocess.run([*command, *given], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
