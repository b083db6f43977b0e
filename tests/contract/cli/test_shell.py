"""`trainshed jobs shell`, `forward` and `autopsy`: errors, and the end of a connection."""

import json
import socket
import subprocess
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from websockets.sync.server import ServerConnection, serve

from tests.contract.cli.fake_service import FakeService, job
from trainshed.cli.client import Client
from trainshed.cli.jobs import shell


@pytest.mark.parametrize("sent", [b"all of it", b""])
def test_forwarded_connection_closes_when_the_remote_peer_closes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sent: bytes
) -> None:
    """A local client that reads a response to its end waits for the connection's end."""

    def answer(far: ServerConnection) -> None:
        far.recv()
        if sent:
            far.send("{}")
            far.send(sent)

    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    here, theirs = socket.socketpair()
    with serve(answer, "127.0.0.1", 0) as server, here, theirs:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.socket.getsockname()[1]}", "", "")
        monkeypatch.setattr(client, "post", Mock(return_value={"token": "t", "path": "/"}))
        shell._forward_connection(client, "", {}, here)  # pyright: ignore[reportPrivateUsage] - forwards for ever
        theirs.settimeout(60)
        assert theirs.makefile("rb").read() == sent
    assert ("does not answer" in capsys.readouterr().err) == (not sent)


def test_autopsy_copy_has_no_setuid_bits_or_group_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if tar runs as root, it extracts no set-user-ID bits, and other users cannot access the files."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    (source / "tool").touch()
    for path in (source / "tool", source):
        path.chmod(0o6777)

    def send(*_: object, files: tuple[int, int]) -> int:
        return subprocess.call(["tar", "-c", "-C", source, "."], stdout=files[1])

    monkeypatch.setattr(shell, "_run_shell", send)
    assert shell._copy(Mock(), "7", {}, copy) == 0  # pyright: ignore[reportPrivateUsage] - after a job
    assert not {path.stat().st_mode & 0o7077 for path in (copy, copy / "tool")} - {0}


def test_unavailable_shell_prints_the_services_error(service: FakeService) -> None:
    path = "/trainshed/v1/jobs/7"
    service.on("GET", path, job(state="FAILED"))
    service.refuse("POST", f"{path}:shell", 400, "It is over.")
    for command in ("shell", "autopsy"):
        done = service.cli("jobs", command, "7")
        assert done.exit_code == 1
        assert "It is over." in done.output
    assert json.loads(service.sent[-1].body) == {"replica": "", "autopsy": True}
    # An unset variable in a shell script can produce this argument. A missing port must not open a shell.
    assert service.cli("jobs", "forward", "7", "8888:").exit_code == 2
