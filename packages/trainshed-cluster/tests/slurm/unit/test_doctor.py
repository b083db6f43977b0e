"""Findings of `trainshed doctor` about isolation on nodes, from a recorded configuration of Slurm 22.05."""

import pytest

from tests.slurm.unit.test_queries import GOLDEN
from trainshed_cluster.slurm.doctor import on_nodes
from trainshed_cluster.slurm.queries import parse_config


def config(**more: str) -> dict[str, str]:
    return parse_config((GOLDEN / "scontrol_config.txt").read_text()) | more


def test_doctor_reports_no_problem_for_a_slurm_configuration_with_isolation() -> None:
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
def test_doctor_reports_missing_isolation_with_a_remedy(
    more: dict[str, str], about: str, advice: str
) -> None:
    findings = {finding.about: finding for finding in on_nodes(config(**more), has_gpus=True)}
    assert findings[about].verdict == "less"
    assert advice in findings[about].remedy


def test_doctor_reports_nothing_about_gpus_on_a_cluster_without_gpus() -> None:
    assert "GPUs on nodes" not in {finding.about for finding in on_nodes(config(), has_gpus=False)}
