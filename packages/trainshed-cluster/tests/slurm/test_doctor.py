"""`trainshed doctor` of a service whose replicas run on a Slurm cluster (docs/slurm.md)."""

from typing import Any

import pytest

from tests.slurm.lab import CPUS, SlurmLab
from trainshed.engines.findings import Finding
from trainshed_cluster.slurm.doctor import examine_slurm


def findings(lab: SlurmLab, **more: Any) -> dict[str, Finding]:
    table = {"commands": str(lab.commands), "address": lab.outside, **more}
    return {finding.about: finding for finding in examine_slurm(table)}


def test_doctor_reports_a_working_slurm_cluster_with_its_nodes(slurm_lab: SlurmLab) -> None:
    by_subject = findings(slurm_lab, partition="hi")
    assert {finding.verdict for finding in by_subject.values()} == {"good"}
    assert {"memory on nodes", "GPUs on nodes"} <= by_subject.keys()
    assert f"3 of 3 accept jobs; the largest has {CPUS} CPUs" in by_subject["Slurm nodes"].text
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


@pytest.mark.parametrize(
    ("closed", "opened", "table", "about", "texts"),
    [
        ("state=down", "state=up", {}, "Slurm partition", ["spot is DOWN", "State=UP"]),
        ("state=drain", "state=up", {}, "jobs in Slurm", ["partition spot is DRAIN"]),
        (
            "allowaccounts=research,vision",
            "allowaccounts=ALL",
            {},
            "jobs in Slurm",
            ["jobs on no account never start in partition spot", "only research, vision"],
        ),
        (
            "allowaccounts=research",
            "allowaccounts=ALL",
            {"accounts": {"mine": "Research", "theirs": "other"}, "users": {}},
            "jobs in Slurm",
            ["jobs on account other never start in partition spot"],
        ),
        (
            "denyaccounts=research",
            "denyaccounts=",
            {"accounts": {"*": "research"}},
            "jobs in Slurm",
            ["jobs on account research never start in partition spot, which rejects it"],
        ),
        (
            "allowqos=long",
            "allowqos=ALL",
            {"qos": "quick"},
            "jobs in Slurm",
            ["jobs with QOS quick never start in partition spot, which admits only long"],
        ),
        ("allocnodes=node2", "allocnodes=ALL", {}, "jobs in Slurm", ["permission denied"]),
    ],
)
def test_doctor_reports_a_partition_that_cannot_run_jobs_of_the_user(
    slurm_lab: SlurmLab, closed: str, opened: str, table: dict[str, Any], about: str, texts: list[str]
) -> None:
    slurm_lab.slurm("scontrol", "update", "partitionname=spot", closed)
    try:
        finding = findings(slurm_lab, partition="spot", **table)[about]
        assert finding.verdict == "bad"
        assert all(text in f"{finding.text} {finding.remedy}" for text in texts), finding
        # A job may start in any of several partitions.
        both = findings(slurm_lab, partition="main,spot", **table)
        assert "spot" not in both["jobs in Slurm"].text or "allocnodes" in closed
        assert both["Slurm partition"].verdict == ("less" if "state" in closed else "good")
    finally:
        slurm_lab.slurm("scontrol", "update", "partitionname=spot", opened)


def test_doctor_reports_an_unavailable_slurm_controller(slurm_lab: SlurmLab) -> None:
    slurm_lab.stop_controller()
    try:
        controller = findings(slurm_lab)["Slurm controller"]
    finally:
        slurm_lab.start_controller()
    assert controller.verdict == "bad"
    assert "munge" in controller.remedy


def about(name: str, **table: Any) -> Finding:
    return next(finding for finding in examine_slurm({"commands": "/none", **table}) if finding.about == name)


@pytest.mark.parametrize(
    ("address", "verdict", "text"),
    [
        ("127.0.0.1", "bad", "nodes would connect to themselves"),
        ("no-such-host.invalid", "less", "does not resolve on this machine"),
        ("192.0.2.7", "good", "192.0.2.7"),
    ],
)
def test_doctor_reports_a_service_address_that_nodes_cannot_reach(
    address: str, verdict: str, text: str
) -> None:
    finding = about("address for nodes", address=address)
    assert finding.verdict == verdict and text in finding.text


def test_doctor_reports_missing_slurm_commands_and_wrong_settings() -> None:
    assert "the command salloc is not in /none" in about("Slurm commands").text
    assert "Did you mean partition?" in about("Slurm settings", partitoin="x").text
