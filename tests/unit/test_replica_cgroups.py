"""Control groups on drawn file trees of both versions, and lines that come with handles."""

import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainshed.engines.local import machine
from trainshed.replica import protocol
from trainshed.replica.system import cgroups, unix_sockets


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert cgroups.find_bases(str(tmp_path), str(tmp_path / "missing")) == {}
    limits = protocol.Limits(memory_limit=1 << 20, cpu_weight=100, cgroup_name="name")
    groups = cgroups.ControlGroups(limits)
    groups.create()
    groups.enter()
    assert groups.directories() == [] and groups.oom_kills() == 0


def test_a_trial_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In process namespaces all agents of a node have the same number, and one was killed amid its own."""
    monkeypatch.setattr(cgroups.os, "access", Mock(return_value=True))
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / f"trainshed-probe-{os.getpid()}").mkdir()
    assert cgroups.find_bases(str(tmp_path), str(tmp_path / "own")) == {"memory": str(tmp_path)}


def test_memory_limit_in_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a container, in which the service may make no groups."""
    monkeypatch.setattr(cgroups, "ROOT", str(tmp_path))
    whole = machine.node(None).memory_bytes
    (tmp_path / "memory").mkdir()
    for file, limit in (("memory/memory.limit_in_bytes", 1024), ("memory.max", 512)):
        (tmp_path / file).write_text(f"{limit}\n")
        assert machine.node(None).memory_bytes == limit
        (tmp_path / file).write_text("max\n")
        assert machine.node(None).memory_bytes == whole


def test_a_program_may_have_a_share_of_the_processes_that_its_machine_and_its_group_can(
    tmp_path: Path,
) -> None:
    """A fork bomb would leave none to the service and to everybody else."""
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


def test_lines_that_come_at_once_have_their_own_handles() -> None:
    """Long ones, too, as orders of programs with long arguments: the next comes with their last piece."""
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
