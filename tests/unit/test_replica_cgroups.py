"""Finding where control groups may be made, and the limits, on drawn file trees of both versions."""

from pathlib import Path

from trainshed.replica import protocol
from trainshed.replica.system import cgroups


def v2_tree(root: Path, own: str, handed_on: dict[str, str]) -> Path:
    for path in ("", *handed_on, own):
        directory = root / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("")
        (directory / "cgroup.controllers").write_text("cpu memory")
        (directory / "cgroup.subtree_control").write_text(handed_on.get(path, ""))
    membership = root / "membership"
    membership.write_text(f"0::/{own}\n")
    return membership


def test_version_2_without_delegation_offers_nothing(tmp_path: Path) -> None:
    membership = v2_tree(tmp_path, "user/service", {"user": "pids"})
    assert cgroups.find_bases(str(tmp_path), str(membership)) == ("", "", "")


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert cgroups.find_bases(str(tmp_path), str(tmp_path / "missing")) == ("", "", "")
    groups = cgroups.ControlGroups(
        protocol.Limits(memory_limit=1 << 20, cpu_weight=100, cgroup_name="name")
    )
    groups.create()
    groups.enter()
    assert groups.directories() == []
    assert groups.oom_kills() == 0
    assert groups.watch() == -1


def test_memory_limit_of_a_group_in_both_versions(tmp_path: Path) -> None:
    assert cgroups.memory_limit(str(tmp_path)) == 0
    (tmp_path / "memory.limit_in_bytes").write_text("1024\n")
    assert cgroups.memory_limit(str(tmp_path)) == 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroups.memory_limit(str(tmp_path)) == 0


def test_a_program_may_have_a_share_of_the_processes_that_its_machine_and_its_group_can(
    tmp_path: Path,
) -> None:
    """A fork bomb would leave none to the service and to everybody else."""
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert cgroups.process_share(str(inner), str(kernel)) == 0
    (kernel / "threads-max").write_text("96000\n")
    assert cgroups.process_share("", str(kernel)) == 24000
    (kernel / "pid_max").write_text("32768\n")
    assert cgroups.process_share(str(inner), str(kernel)) == 8192
    (inner / "pids.max").write_text("max\n")
    (outer / "pids.max").write_text("3000\n")
    assert cgroups.process_share(str(inner), str(kernel)) == 1500
    (inner / "pids.max").write_text("1000\n")
    assert cgroups.process_share(str(inner), str(kernel)) == 500
