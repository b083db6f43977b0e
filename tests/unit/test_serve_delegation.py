"""Tests of the control groups that a service requests from systemd, and of the advice of `trainshed doctor`
without them."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainshed.replica.system import cgroups
from trainshed.serve import delegation


class Machine:
    """A simulated machine with control groups of version 2, whose systemd records the arguments of calls."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = place / "calls"
        self.calls.touch()
        command = place / "busctl"
        command.write_text(f'#!/bin/sh\necho "$@" >>{self.calls}\n')
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        monkeypatch.setattr(cgroups, "BOOTED", str(place))
        monkeypatch.setattr(cgroups, "find_bases", Mock(return_value={}))
        self.delegated = Mock(side_effect="/trainshed-1.scope".__eq__)
        monkeypatch.setattr(cgroups, "is_delegated", self.delegated)
        self.own = Mock(side_effect=["/terminal.scope", *["/trainshed-1.scope"] * 9])
        monkeypatch.setattr(cgroups, "own_group", self.own)
        self.divided = Mock()
        monkeypatch.setattr(delegation, "_divide", self.divided)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_service_started_by_hand_requests_a_systemd_scope(systemd: Machine) -> None:
    delegation.prepare()
    text = systemd.calls.read_text()
    assert f"StartTransientUnit ssa(sv)a(sa(sv)) trainshed-{os.getpid()}.scope fail" in text
    assert f"PIDs au 1 {os.getpid()} Delegate b true" in text
    assert ("--user" in text) == bool(os.geteuid())
    systemd.divided.assert_called_once_with("/trainshed-1.scope")


def test_service_that_already_has_control_groups_requests_no_systemd_scope(
    systemd: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find_bases", Mock(return_value={"memory": "/jobs"}))
    delegation.prepare()
    assert systemd.calls.read_text() == ""


def test_service_on_a_machine_without_systemd_requests_no_scope(
    systemd: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "BOOTED", "/nowhere")
    delegation.prepare()
    assert systemd.calls.read_text() == ""


_MAIN = """
import os, sys
if sys.argv[1:]:
    sys.stdin.read()
os.execve(sys.executable, [sys.executable, __file__, "main"], {"SYSTEMD_EXEC_PID": str(os.getpid())})
"""


def test_doctor_advice_depends_on_how_the_service_was_started(
    systemd: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.own.side_effect = None
    systemd.own.return_value = "/sys/fs/cgroup/system.slice/lab.service"
    by_hand = "user" if os.geteuid() else "bus"
    assert delegation.diagnose(os.getpid()) == (by_hand, "lab")
    script = tmp_path / "main.py"
    script.write_text(_MAIN)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE) as main:
        variable = f"SYSTEMD_EXEC_PID={main.pid}".encode()
        environ = Path(f"/proc/{main.pid}/environ")
        while variable not in environ.read_bytes():
            assert main.poll() is None
        assert delegation.diagnose(main.pid) == ("unit", "lab")
        systemd.own.return_value = "/sys/fs/cgroup/user@1.service/app.slice/lab.service"
        assert delegation.diagnose(main.pid) == ("user_unit", "lab")
        assert main.stdin is not None
        main.stdin.close()
        main.kill()
    monkeypatch.setattr(cgroups, "BOOTED", "/nowhere")
    assert delegation.diagnose(os.getpid())[0] == "container"
    systemd.own.return_value = ""
    assert delegation.diagnose(os.getpid())[0] == "none"
