"""`trainshed doctor` of a service whose replicas are to run on a Slurm cluster (docs/slurm.md)."""

from typing import Any

import pytest

from tests.slurm.lab import CPUS, SlurmLab
from trainshed.engines.registry import Finding
from trainshed_cluster.slurm.doctor import examine_slurm


def findings(lab: SlurmLab, **more: Any) -> dict[str, Finding]:
    table = {"commands": str(lab.commands), "address": lab.outside, **more}
    return {finding.about: finding for finding in examine_slurm(table)}


def test_a_cluster_that_works_is_told_with_its_nodes(slurm_lab: SlurmLab) -> None:
    by_subject = findings(slurm_lab, partition="hi")
    assert {finding.verdict for finding in by_subject.values()} == {"good"}
    assert {"memory on nodes", "GPUs on nodes"} <= by_subject.keys()
    assert f"3 of 3 take work; the largest has {CPUS} CPUs" in by_subject["Slurm nodes"].text
    slurm_lab.drain("node2", "its disk is full")
    try:
        nodes = findings(slurm_lab)["Slurm nodes"]
        assert (nodes.verdict, nodes.text[:6]) == ("less", "2 of 3")
        assert "node2: its disk is full" in nodes.cause
        alone = findings(slurm_lab, partition="tiny")
        assert "1 of 1" in alone["Slurm nodes"].text
    finally:
        slurm_lab.resume("node2")
    unknown = findings(slurm_lab, partition="mian")["Slurm partition"]
    assert unknown.verdict == "bad" and "hi, main, short, spot, tiny" in unknown.remedy


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
        finding
        for finding in examine_slurm({"commands": "/none", **table})
        if finding.about == name
    )


@pytest.mark.parametrize(
    ("address", "verdict", "text"),
    [
        ("127.0.0.1", "bad", "nodes would call themselves"),
        ("no-such-host.invalid", "less", "is not known here"),
        ("192.0.2.7", "good", "192.0.2.7"),
    ],
)
def test_where_nodes_call_is_no_loopback(address: str, verdict: str, text: str) -> None:
    finding = about("address for nodes", address=address)
    assert finding.verdict == verdict and text in finding.text


def test_commands_and_settings_that_are_wrong_are_named() -> None:
    assert "there is no command salloc in /none" in about("Slurm commands").text
    assert "Did you mean partition?" in about("Slurm settings", partitoin="x").text
