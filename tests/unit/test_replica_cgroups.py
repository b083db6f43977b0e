"""Tests of control groups with simulated file trees of both versions, and of lines with file handles."""

import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainshed.engines.local import machine
from trainshed.replica import protocol
from trainshed.replica.system import cgroups, unix_sockets
from trainshed.serve import delegation


def test_machine_without_control_groups_is_supported(tmp_path: Path) -> None:
    assert cgroups.find_bases(str(tmp_path), str(tmp_path / "missing")) == {}
    limits = protocol.Limits(memory_limit=1 << 20, cpu_weight=100, cgroup_name="name")
    groups = cgroups.ControlGroups(limits)
    groups.create()
    groups.enter()
    assert groups.directories() == [] and groups.oom_kills() == 0


def test_probing_a_control_group_directory_uses_a_unique_group_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In process namespaces, all agents of a node have the same process ID. One agent once removed another
    agent's trial group."""
    monkeypatch.setattr(cgroups.os, "access", Mock(return_value=True))
    for file in ("cgroup.controllers", "cgroup.subtree_control"):
        (tmp_path / file).write_text("memory\n")
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / f"trainshed-probe-{os.getpid()}").mkdir()
    assert cgroups.find_bases(str(tmp_path), str(tmp_path / "own")) == {"memory": str(tmp_path)}


def test_node_memory_is_the_limit_of_a_version_1_or_version_2_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a limit although the service may not create groups there."""
    monkeypatch.setattr(cgroups, "ROOT", str(tmp_path))
    whole = machine.node(None).memory_bytes
    (tmp_path / "memory").mkdir()
    for file, limit in (("memory/memory.limit_in_bytes", 1024), ("memory.max", 512)):
        (tmp_path / file).write_text(f"{limit}\n")
        assert machine.node(None).memory_bytes == limit
        (tmp_path / file).write_text("max\n")
        assert machine.node(None).memory_bytes == whole


def test_process_limit_of_a_replica_is_a_fraction_of_the_machine_and_group_limits(tmp_path: Path) -> None:
    """A fork bomb must leave processes for the service and other users."""
    (kernel := tmp_path / "kernel").mkdir()
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert cgroups.process_share(str(inner), str(kernel)) is None
    (kernel / "threads-max").write_text("96000\n")
    assert cgroups.process_share(None, str(kernel)) == 24000
    (kernel / "pid_max").write_text("32768\n")
    assert cgroups.process_share(str(inner), str(kernel)) == 8192
    (inner / "pids.max").write_text("max\n")
    (outer / "pids.max").write_text("3000\n")
    assert cgroups.process_share(str(inner), str(kernel)) == 1500
    (inner / "pids.max").write_text("1000\n")
    assert cgroups.process_share(str(inner), str(kernel)) == 500


def test_each_line_received_on_a_socket_keeps_the_file_descriptor_sent_with_the_line() -> None:
    """The next line may arrive with the last piece of a long line, such as an order with long arguments."""
    ours, theirs = socket.socketpair()
    for size in (1, 30_000, 40_000, 60_000, 100_000):
        lines, sent = [b"x" * size, b"claimed"], os.pipe()
        for line, handle in zip(lines, sent, strict=True):
            unix_sockets.send(ours, line + b"\n", handle)
        receiver = unix_sockets.Receiver(theirs)
        received = receiver.receive()
        while len(received) < 2:
            received += receiver.receive()
        assert [text for text, _ in received] == lines
        (_, read), (_, write) = received
        os.write(write, b"!")
        assert os.read(read, 10) == b"!"
        for handle in (*sent, read, write):
            os.close(handle)
    ours.shutdown(socket.SHUT_WR)
    assert unix_sockets.Receiver(theirs).receive() == []
    ours.close()
    theirs.close()


class Tree:
    """Control groups of version 2, simulated with files. Processes move between groups as the kernel moves
    them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.booted = root / "booted"
        self.booted.mkdir()
        self.membership = root / "own"
        self.delegated = set[Path]()
        monkeypatch.setattr(cgroups.os, "getxattr", self._attribute)
        monkeypatch.setattr(cgroups.kernel, "write", self._write)
        places = (str(root), str(self.membership), str(self.booted))
        monkeypatch.setattr(cgroups.find_bases, "__defaults__", places)
        monkeypatch.setattr(cgroups.own_group, "__defaults__", places[:2])
        monkeypatch.setattr(cgroups.is_delegated, "__defaults__", places[2:])
        monkeypatch.setattr(cgroups, "BOOTED", str(self.booted))
        monkeypatch.setattr(delegation, "_get_scope", str)

    def group(self, name: str, members: str = "", enabled: str = "") -> Path:
        group = self.root / name
        group.mkdir(parents=True)
        for file, text in (
            ("cgroup.controllers", "cpu io memory pids"),
            ("cgroup.procs", members),
            ("cgroup.subtree_control", enabled),
            ("cgroup.type", "domain"),
        ):
            (group / file).write_text(text)
        return group

    def run_in(self, group: Path) -> None:
        self.membership.write_text(f"0::/{group.relative_to(self.root)}\n")

    def prepare(self) -> dict[str, str]:
        """Prepare, and return the bases."""
        delegation.prepare()
        return cgroups.find_bases()

    def members(self, group: Path) -> set[str]:
        return set((group / "cgroup.procs").read_text().split())

    def _attribute(self, path: str, name: str) -> bytes:
        if Path(path) not in self.delegated:
            raise OSError(61, name)
        return b"1"

    def _write(self, path: str, text: str) -> None:
        file = Path(path)
        if file.name == "cgroup.procs":
            for other in self.root.rglob("cgroup.procs"):
                other.write_text(" ".join(self.members(other.parent) - {text}))
            file.write_text(" ".join({*(file.read_text().split() if file.exists() else ()), text}))
        else:
            assert not self.members(file.parent), "EBUSY"
            file.write_text(file.read_text() + f" {text[1:]}")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(cgroups, "_can_create_groups", Mock(return_value=True))
    return Tree(tmp_path, monkeypatch)


def test_replicas_run_in_a_systemd_unit_next_to_that_of_the_service(tree: Tree) -> None:
    """In the service's own unit, a running replica would prevent systemd from restarting the service."""
    own = tree.group("lab.slice/lab.service", "10 11")
    tree.group("lab.slice/lab-jobs.service", "7")
    (tree.root / "lab.slice/cgroup.procs").write_text("")
    tree.run_in(own)
    jobs = own.with_name("lab-jobs.service")
    assert tree.prepare() == dict.fromkeys(("memory", "cpu", "pids"), str(jobs))
    assert tree.members(jobs / "service") == {"7"}
    assert tree.members(own) == {"10", "11"}
    # The next service finds the same state, with groups of replicas.
    assert tree.prepare()["memory"] == str(jobs)
    cgroups.enlist(11)
    assert tree.members(jobs / "service") == {"7", "11"}


def test_service_does_not_create_replica_groups_in_its_delegated_systemd_unit(tree: Tree) -> None:
    own = tree.group("system.slice/lab.service", "10")
    tree.delegated.add(own)
    tree.run_in(own)
    assert tree.prepare() == {}
    assert tree.members(own) == {"10"}


def test_delegated_systemd_scope_is_divided_into_service_and_replica_groups(tree: Tree) -> None:
    own = tree.group("user.slice/hand.scope", "10 12")
    tree.run_in(own)
    assert tree.prepare() == {}
    tree.delegated.add(own)
    assert tree.prepare() == dict.fromkeys(("memory", "cpu", "pids"), str(own))
    assert tree.members(own) == set() and tree.members(own / "service") == {"10", "12"}
    # The path as its processes see it afterwards.
    (own / "service/cgroup.controllers").write_text("cpu memory pids")
    tree.run_in(own / "service")
    assert tree.prepare()["pids"] == str(own)


def test_service_uses_only_systemd_scopes_requested_by_the_service(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scopes of terminals also belong to the user, but were not requested by the service."""
    monkeypatch.setattr(cgroups.os, "geteuid", Mock(return_value=1000))
    place = "user.slice/user@1000.service/app.slice"
    terminal = tree.group(f"{place}/terminal.scope", "10")
    tree.run_in(terminal)
    assert tree.prepare() == {}
    own = tree.group(f"{place}/trainshed-10.scope", "10")
    tree.run_in(own)
    assert tree.prepare()["memory"] == str(own)


def test_service_creates_no_replica_groups_in_groups_managed_by_systemd(tree: Tree) -> None:
    """A service that root started by hand once created its groups in system.slice."""
    tree.group("system.slice", enabled="memory pids cpu")
    tree.run_in(tree.group("system.slice/ssh.service/login", "10"))
    assert tree.prepare() == {}
    tree.booted.rmdir()
    own = tree.group("system.slice/x", "10")
    tree.run_in(own)
    assert tree.prepare()["memory"] == str(own.parent)


def test_process_with_id_0_from_a_foreign_namespace_is_not_moved(tree: Tree) -> None:
    """The kernel shows such a process with the ID 0. Writing the ID 0 to a group would move the writing
    process instead."""
    own = tree.group("hand.scope", "0")
    tree.delegated.add(own)
    tree.run_in(own)
    with pytest.raises(AssertionError, match="EBUSY"):
        tree.prepare()
    assert tree.members(own) == {"0"}


def test_version_1_control_groups_are_used_if_the_version_2_tree_is_empty(tree: Tree) -> None:
    (tree.root / "memory/box").mkdir(parents=True)
    (tree.root / "memory/box/cgroup.procs").write_text("")
    tree.membership.write_text("4:memory:/box\n0::/\n")
    assert tree.prepare() == {"memory": str(tree.root / "memory/box")}
