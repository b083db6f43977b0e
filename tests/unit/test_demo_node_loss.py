"""`trainshed demo --engine slurm`: which cluster's commands lose a node, and by which name."""

from pathlib import Path

import click
import pytest

from trainshed.cli.demo.node_loss import Cluster, Site

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


def site(directory: Path, text: str) -> Site:
    config = directory / "config.toml"
    config.write_text(text)
    return Site.read(config)


def test_the_only_cluster_has_its_nodes_names(tmp_path: Path) -> None:
    found = site(tmp_path, COMMON)
    only = Cluster("/opt/slurm/bin", "/etc/slurm/slurm.conf")
    assert found.data == Path("/shared/trainshed")
    assert found.locate("node1") == (only, "node1")
    assert found.locate("node1.rack2") == (only, "node1.rack2")


def test_each_of_several_clusters_has_commands_and_names_of_its_own(tmp_path: Path) -> None:
    found = site(tmp_path, COMMON + CLUSTERS)
    east = Cluster("/opt/slurm/bin", "/etc/slurm-east/slurm.conf")
    rest = Cluster("/opt/slurm-rest/bin", "/etc/slurm/slurm.conf")
    assert found.locate("east.node1") == (east, "node1")
    assert found.locate("rest.node1.rack2") == (rest, "node1.rack2")


def test_a_command_is_the_clusters_and_reads_its_configuration(tmp_path: Path) -> None:
    command = tmp_path / "squeue"
    command.write_text('#!/bin/sh\necho "$SLURM_CONF" "$@"\n')
    command.chmod(0o755)
    here = Cluster(str(tmp_path), "/etc/slurm-east/slurm.conf")
    assert here.run("squeue", "-w", "node1") == "/etc/slurm-east/slurm.conf -w node1\n"
    with pytest.raises(click.ClickException, match="There is no command scancel"):
        here.run("scancel", "1")
