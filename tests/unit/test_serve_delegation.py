"""Which control groups a service asks systemd for, and what `trainshed doctor` advises without them."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainshed.replica.system import cgroups
from trainshed.serve import delegation


class Machine:
    """One with version 2, where systemd notes the arguments of each call."""

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


def test_a_service_that_is_started_by_hand_gets_a_scope(systemd: Machine) -> None:
    delegation.prepare()
    text = systemd.calls.read_text()
    assert f"StartTransientUnit ssa(sv)a(sa(sv)) trainshed-{os.getpid()}.scope fail" in text
    assert f"PIDs au 1 {os.getpid()} Delegate b true" in text
    assert ("--user" in text) == bool(os.geteuid())
    systemd.divided.assert_called_once_with("/trainshed-1.scope")


def test_a_service_that_has_groups_already_asks_for_nothing(
    systemd: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find_bases", Mock(return_value={"memory": "/jobs"}))
    delegation.prepare()
    assert systemd.calls.read_text() == ""


def test_a_machine_without_systemd_is_not_asked(
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


def test_advice_fits_how_the_service_was_started(
    systemd: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.own.side_effect = None
    systemd.own.return_value = "/sys/fs/cgroup/system.slice/lab.service"
    by_hand = "user" if os.geteuid() else "bus"
    assert delegation.situation(os.getpid()) == (by_hand, "lab")
    script = tmp_path / "main.py"
    script.write_text(_MAIN)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE) as main:
        variable = f"SYSTEMD_EXEC_PID={main.pid}".encode()
        environ = Path(f"/proc/{main.pid}/environ")
        while variable not in environ.read_bytes():
            assert main.poll() is None
        assert delegation.situation(main.pid) == ("unit", "lab")
        systemd.own.return_value = "/sys/fs/cgroup/user@1.service/app.slice/lab.service"
        assert delegation.situation(main.pid) == ("user_unit", "lab")
        assert main.stdin is not None
        main.stdin.close()
        main.kill()
    monkeypatch.setattr(cgroups, "BOOTED", "/nowhere")
    assert delegation.situation(os.getpid())[0] == "container"
    systemd.own.return_value = ""
    assert delegation.situation(os.getpid())[0] == "none"
