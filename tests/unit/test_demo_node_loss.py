"""`trainshed demo --engine`: which cluster's commands lose a node, and by which name."""

from pathlib import Path

import click
import pytest

from trainshed.cli.demo.node_loss import KUBERNETES, SLURM, KubernetesCluster, Site, SlurmCluster

COMMON = """
data = "/shared/trainshed"
[engines.slurm]
commands = "/opt/slurm/bin"
conf = "/etc/slurm/slurm.conf"
"""
CLUSTERS = """
[engines.slurm.clusters.east]
regions = ["us-east1"]
conf = "/etc/slurm-east/slurm.conf"
[engines.slurm.clusters.rest]
commands = "/opt/slurm-rest/bin"
"""


def site(directory: Path, text: str, engine: str = SLURM) -> Site:
    config = directory / "config.toml"
    config.write_text(text)
    return Site.read(engine, config)


def make_command(directory: Path, name: str, script: str) -> None:
    command = directory / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


def test_the_only_cluster_has_its_nodes_names(tmp_path: Path) -> None:
    found = site(tmp_path, COMMON)
    only = SlurmCluster("/opt/slurm/bin", "/etc/slurm/slurm.conf")
    assert found.data == Path("/shared/trainshed")
    assert found.locate("node1") == (only, "node1")
    assert found.locate("node1.rack2") == (only, "node1.rack2")


def test_each_of_several_clusters_has_commands_and_names_of_its_own(tmp_path: Path) -> None:
    found = site(tmp_path, COMMON + CLUSTERS)
    east = SlurmCluster("/opt/slurm/bin", "/etc/slurm-east/slurm.conf")
    rest = SlurmCluster("/opt/slurm-rest/bin", "/etc/slurm/slurm.conf")
    assert found.locate("east.node1") == (east, "node1")
    assert found.locate("rest.node1.rack2") == (rest, "node1.rack2")


def test_the_steps_of_the_jobs_agents_are_killed(tmp_path: Path) -> None:
    """By the cluster's commands, which read its configuration."""
    heard = tmp_path / "heard"
    steps = "echo 7.0 trainshed-ab-12-1; echo 7.1 trainshed-ab-13-1; echo 8.batch batch"
    make_command(tmp_path, "squeue", f'echo "$SLURM_CONF" "$@" >>{heard}; {steps}')
    cluster = SlurmCluster(str(tmp_path), "/etc/slurm-east/slurm.conf")
    with pytest.raises(click.ClickException, match="There is no command scancel"):
        cluster.end_agents("node1", "12")
    make_command(tmp_path, "scancel", f'echo "$@" >>{heard}')
    cluster.end_agents("node1", "12")
    asked = "/etc/slurm-east/slurm.conf -h -s -w node1 -o %i %j"
    assert heard.read_text().splitlines() == [asked, asked, "--signal=KILL 7.0"]
    with pytest.raises(click.ClickException, match="squeue shows no step of the job on node1"):
        cluster.end_agents("node1", "99")


def test_the_pods_of_the_job_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = '[engines.kubernetes]\nkubeconfig = "/etc/kube"\ncontext = "lab"\n'
    cluster = site(tmp_path, table, KUBERNETES).common
    assert cluster == KubernetesCluster("/etc/kube", "lab")
    heard = tmp_path / "heard"
    said = f"printf '%s\\n' \"$*\" >>{heard}; "
    said += 'case "$*" in *"job=12 "*) printf "a/one\\nb/two\\n" ;; esac'
    make_command(tmp_path, "kubectl", said)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cluster.end_agents("node1", "12")
    listed, *deleted = heard.read_text().splitlines()
    way = "--kubeconfig /etc/kube --context lab"
    assert listed.startswith(f"{way} get pods --all-namespaces -l trainshed/job=12 ")
    assert deleted == [
        f"{way} delete pod -n {where} {name} --grace-period=1 --wait=false"
        for where, name in (("a", "one"), ("b", "two"))
    ]
    with pytest.raises(click.ClickException, match="kubectl shows no Pod of the job on node1"):
        cluster.end_agents("node1", "99")
