"""`trainshed doctor` of a service whose replicas are to run on a Slurm cluster (docs/slurm.md)."""

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.lab import CPUS, SlurmLab
from trainshed.engines.registry import Finding
from trainshed_cluster.slurm.doctor import examine_slurm


def findings(lab: SlurmLab, **more: Any) -> dict[str, Finding]:
    table = {"commands": str(lab.commands), "address": lab.outside, **more}
    return {finding.about: finding for finding in examine_slurm(table)}


def test_a_cluster_that_works_is_told_with_its_nodes(slurm_lab: SlurmLab) -> None:
    found = findings(slurm_lab, partition="hi")
    assert {finding.verdict for finding in found.values()} == {"good"}
    assert {"memory on nodes", "GPUs on nodes", "time limit"} <= found.keys()
    assert f"3 of 3 take work; the largest has {CPUS} CPUs" in found["Slurm nodes"].text
    slurm_lab.drain("node2", "its disk is full")
    try:
        nodes = findings(slurm_lab)["Slurm nodes"]
        assert (nodes.verdict, nodes.text[:6]) == ("less", "2 of 3")
        assert "node2: its disk is full" in nodes.cause
        short = findings(slurm_lab, partition="short")["time limit"]
        assert short.verdict == "less" and "short after 10:00" in short.text
        assert "time limit" not in findings(slurm_lab, partition="short", extra=["--time=5"])
        alone = findings(slurm_lab, partition="tiny")
        assert "1 of 1" in alone["Slurm nodes"].text
    finally:
        slurm_lab.resume("node2")
    unknown = findings(slurm_lab, partition="mian")["Slurm partition"]
    assert unknown.verdict == "bad" and "hi, main, short, spot, tiny" in unknown.remedy


def test_nodes_are_looked_at_from_inside_if_that_is_asked_for(slurm_lab: SlurmLab) -> None:
    """One on which the directory is everybody's, one that has no room, and a cache that nodes do not see."""
    table = {"commands": str(slurm_lab.commands), "address": slurm_lab.outside, "shared": True}

    def inside(cache: Path | None = None, **more: Any) -> Finding:
        found = examine_slurm(table | more, cache, nodes=True)
        return next(finding for finding in found if finding.about == "nodes from inside")

    slurm_lab.await_states(dict.fromkeys(slurm_lab.nodes, ("idle",)))
    found = inside(directory="/tmp/doctor/agents")
    assert found.verdict == "good" and found.text.startswith("3 of 3 "), found
    assert not slurm_lab.on_disk("node1", "/tmp/doctor/agents").exists()
    refused = slurm_lab.on_disk("node2", "/tmp/doctor/agents")
    refused.mkdir()
    refused.chmod(0o777)
    found = inside(directory="/tmp/doctor/agents")
    assert found.verdict == "bad" and found.text.startswith("node2: /tmp/doctor/agents "), found
    assert "can be written to by others; remove it" in found.text and "node1" not in found.text
    # Of /tmp each node has its own, wherever TMPDIR is.
    unseen = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        found = inside(unseen, partition="tiny")
    finally:
        unseen.rmdir()
    assert found.text == f"node1: {unseen} is not seen there (shared = true)."
    assert "no-such-python" in inside(python="/no-such-python").text
    slurm_lab.run("hub", ["salloc", "--no-shell", "-p", "main", "-w", "node3", f"-c{CPUS}"])
    try:
        found = inside()
    finally:
        slurm_lab.clear()
    assert found.verdict == "less" and "No room on node3." in found.text, found


def test_a_controller_that_does_not_answer_is_told(slurm_lab: SlurmLab) -> None:
    slurm_lab.stop_controller()
    try:
        controller = findings(slurm_lab)["Slurm controller"]
    finally:
        slurm_lab.start_controller()
    assert controller.verdict == "bad"
    assert "munge" in controller.remedy


def about(name: str, **table: Any) -> Finding:
    return next(
        found for found in examine_slurm({"commands": "/none", **table}) if found.about == name
    )


@pytest.mark.parametrize(
    ("address", "verdict", "told"),
    [
        ("127.0.0.1", "bad", "nodes would call themselves"),
        ("no-such-host.invalid", "less", "is not known here"),
        ("192.0.2.7", "good", "192.0.2.7"),
    ],
)
def test_where_nodes_call_is_no_loopback(address: str, verdict: str, told: str) -> None:
    found = about("address for nodes", address=address)
    assert found.verdict == verdict and told in found.text


def test_a_port_that_somebody_has_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert about("port for nodes", port=port).verdict == "less"
    assert about("port for nodes", port=port).verdict == "good"


def test_commands_and_settings_that_are_wrong_are_named() -> None:
    assert "there is no command salloc in /none" in about("Slurm commands").text
    assert "did you mean partition?" in about("Slurm settings", partitoin="x").text
