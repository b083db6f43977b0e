"""The lab itself: what the other tests here do to nodes really happens to them."""

import secrets
import signal
import subprocess
import sys
from pathlib import Path

from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import sweep_control_groups, until
from tests.sources import ROOT

_LISTEN = """import socket, sys
server = socket.create_server(("0.0.0.0", 7000))
print("listening", flush=True)
while True:
    server.accept()[0].close()"""
_REACH = """import socket, sys
try:
    socket.create_connection((sys.argv[1], 7000), 0.3).recv(1)
except OSError:
    sys.exit("not reached")"""


def _reaches(lab: SlurmLab, name: str, address: str) -> bool:
    command = lab.argv(name, [sys.executable, "-I", "-S", "-c", _REACH, address])
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_node_is_cut_off_from_the_controller_or_from_the_service_alone(
    slurm_lab: SlurmLab,
) -> None:
    lab = slurm_lab
    listening = lab.python("hub", ["-I", "-c", _LISTEN], output=subprocess.PIPE)
    assert listening.stdout and listening.stdout.readline() == b"listening\n"
    try:
        assert _reaches(lab, "node1", "hub") and _reaches(lab, "node1", "login")
        lab.cut("node1", "controller")
        assert not _reaches(lab, "node1", "hub") and _reaches(lab, "node1", "login")
        assert _reaches(lab, "node2", "hub")
        lab.heal("node1", "controller")
        lab.cut("node1", "service")
        assert _reaches(lab, "node1", "hub") and not _reaches(lab, "node1", "login")
        lab.heal("node1", "service")
        assert _reaches(lab, "node1", "login")
        lab.unplug("node1")
        assert not _reaches(lab, "node1", "login")
        lab.replug("node1")
        for _ in until("a switch that passes on again"):
            if _reaches(lab, "node1", "login"):
                break
    finally:
        lab.kill(listening)


def test_nodes_share_no_temporary_files(slurm_lab: SlurmLab) -> None:
    name = f"lab-{secrets.token_hex(8)}"
    slurm_lab.run("node1", ["touch", f"/tmp/{name}"])
    assert name in slurm_lab.run("node1", ["ls", "/tmp"])
    assert name not in slurm_lab.run("node2", ["ls", "/tmp"])
    assert not Path("/tmp", name).exists()


def test_a_lab_ends_with_the_process_that_opened_it(tmp_path: Path) -> None:
    """However that ends. Two at once do not meet."""
    program = (
        "import os, sys, pathlib, tests.slurm.lab as lab\n"
        "opened = lab.SlurmLab.open(pathlib.Path(sys.argv[1]), nodes=1).__enter__()\n"
        "print(opened.network, *opened.processes('node1'), flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    told = [process.communicate(timeout=60)[0].split() for process in running]
    assert [process.returncode for process in running] == [-signal.SIGKILL] * 2
    assert told[0][0] != told[1][0]
    left = [int(pid) for words in told for pid in words[1:]]
    assert len(left) >= 4
    for _ in until("the end of what ran there"):
        if not any(Path("/proc", str(pid)).exists() for pid in left):
            break
    sweep_control_groups()
    assert not [*Path("/sys/fs/cgroup").glob(f"*/trainshed-lab-{running[0].pid}-*")]
