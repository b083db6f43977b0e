"""What `trainshed doctor` says of what holds on a cluster's nodes, by a configuration that a real 22.05
has shown."""

import pytest

from tests.slurm.unit.test_queries import GOLDEN
from trainshed_cluster.slurm.doctor import on_nodes
from trainshed_cluster.slurm.queries import parse_config


def config(**more: str) -> dict[str, str]:
    return parse_config((GOLDEN / "scontrol_config.txt").read_text()) | more


def test_a_cluster_that_holds_jobs_apart_is_good() -> None:
    findings = list(on_nodes(config(), has_gpus=True))
    assert [finding.verdict for finding in findings] == ["good"] * 2
    assert [finding.about for finding in findings] == ["memory on nodes", "GPUs on nodes"]


@pytest.mark.parametrize(
    ("more", "about", "advice"),
    [
        ({"taskplugin": "task/affinity"}, "memory on nodes", "ConstrainRAMSpace=yes"),
        ({"constrainramspace": "no"}, "memory on nodes", "ConstrainRAMSpace=yes"),
        ({"constraindevices": "no"}, "GPUs on nodes", "ConstrainDevices=yes"),
        ({"selecttypeparameters": "CR_CORE"}, "memory counted", "CR_Core_Memory"),
        ({"proctracktype": "proctrack/linuxproc"}, "ends of steps", "proctrack/cgroup"),
    ],
)
def test_what_does_not_hold_is_told_with_how_to_mend_it(
    more: dict[str, str], about: str, advice: str
) -> None:
    findings = {finding.about: finding for finding in on_nodes(config(**more), has_gpus=True)}
    assert findings[about].verdict == "less"
    assert advice in findings[about].remedy


def test_a_cluster_without_gpus_is_told_nothing_of_them() -> None:
    assert "GPUs on nodes" not in {finding.about for finding in on_nodes(config(), has_gpus=False)}
