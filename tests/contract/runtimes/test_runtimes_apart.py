"""What a confined installation may see and change, at the level that this machine and user have (SPEC §3)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.ordinary_user import as_root_only, run_as_nobody
from trainshed.replica import sandbox
from trainshed.runtimes.confinement import Confinement

_PRYING = """
import json, os, sys
room, site, secret, shown = sys.argv[1:]

def tried(work):
    try:
        return str(work())
    except OSError as failure:
        return "refused"

print(json.dumps({
    "secret": tried(lambda: open(secret).read()),
    "shown": tried(lambda: open(shown + "/file").read()),
    "writes to what is shown": tried(lambda: open(shown + "/more", "w").write("x")),
    "writes to the site": tried(lambda: open(site + "/module.py", "w").write("x")),
    "writes to its home": tried(lambda: open(os.path.expanduser("~/more"), "w").write("x")),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "signals": tried(lambda: os.kill(int(os.environ["OTHER"]), 0)),
    "environ": sorted(os.environ),
}))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("data", "shown", "site", "room"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "secret").write_text("a secret")
    (tmp_path / "shown" / "file").write_text("may be read")
    tmp_path.chmod(0o755)
    return tmp_path


def _confinement(place: Path, *levels: str) -> Confinement:
    made = Confinement(
        room=str(place / "room"),
        writable=(str(place / "site"),),
        shown=(str(place / "shown"), *_interpreters()),
        hidden=(str(place / "data"),),
        levels=levels,
    )
    made.prepare()
    return made


def _interpreters() -> tuple[str, ...]:
    return tuple(dict.fromkeys((sys.prefix, sys.base_prefix)))


def _run(confinement: Confinement, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.defpath, "OTHER": str(os.getpid()), "UV_INDEX": "https://user:pw@i.test"}
    return subprocess.run(
        confinement.command(command),
        env=confinement.environ(environ, offline=True),
        cwd=confinement.room,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_it_sees_and_changes_only_what_it_may(place: Path) -> None:
    level, refused = sandbox.probe(str(place / "room"))
    if level in ("", "session"):
        pytest.skip(f"no namespaces here: {refused}")
    paths = [str(place / name) for name in ("room", "site", "data/secret", "shown")]
    answer = _run(_confinement(place), sys.executable, "-I", "-c", _PRYING, *paths)
    assert answer.returncode == 0, answer.stderr
    facts: dict[str, Any] = json.loads(answer.stdout)
    assert facts["secret"] == "refused"
    assert facts["shown"] == "may be read"
    assert facts["writes to what is shown"] == "refused"
    assert facts["writes to the site"] == "1"
    assert facts["writes to its home"] == "1"
    assert facts["processes"] < 20
    assert facts["signals"] == "refused"
    assert "UV_INDEX" not in facts["environ"]
    # What it wrote belongs to the service, which goes on with it.
    assert (place / "site" / "module.py").stat().st_uid == os.geteuid()
    assert (place / "room" / "home" / "more").exists()


def test_its_exit_status_is_the_commands(place: Path) -> None:
    assert _run(_confinement(place), "/bin/sh", "-c", "exit 7").returncode == 7
    assert _run(_confinement(place, "session"), "/bin/sh", "-c", "exit 7").returncode == 7


def test_a_level_that_is_demanded_and_does_not_work_is_no_level_below(place: Path) -> None:
    """SPEC §3: refused instead of silently weakened."""
    impossible = "user" if os.geteuid() == 0 else "own-user"
    answer = _run(_confinement(place, impossible), "/bin/echo", "ran")
    assert answer.returncode == 1
    assert "ran" not in answer.stdout
    assert "cannot be installed apart" in answer.stderr


def test_it_dies_with_whoever_started_it(place: Path) -> None:
    """The service's overseer kills the group; nothing of it may stay."""
    confinement = _confinement(place)
    command = confinement.command(["/bin/sh", "-c", "echo begun; exec sleep 600"])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, start_new_session=True, cwd=confinement.room
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.killpg(process.pid, 9)
        # Its end of the pipe is closed when nobody has it any more.
        assert process.stdout.read() == b""


@as_root_only
def test_the_same_as_an_ordinary_user() -> None:
    run_as_nobody(__file__)
