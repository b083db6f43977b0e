"""Services on virtual machines with their own kernel, cgroup v2 only, and systemd.

`./dev test-machines` builds a Debian with the files of a release, and runs these tests. Each machine is
Debian's `user-mode-linux`, a kernel that runs as a process. It has one CPU and no network.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct
from tools import release

from tests.commands import execute
from tests.docs.blocks import blocks
from tests.e2e.running import ROOT

_TREE = os.environ.get("TRAINSHED_TEST_MACHINE", "")
pytestmark = pytest.mark.skipif(not _TREE, reason="./dev test-machines makes a Debian, and runs these")
_SCRIPTS = ROOT / "tests/machines"
_CHECK = re.compile(r"^@ (\w+) ([0-9.]+) (ok|failed)\r?$", re.MULTILINE)
_ENVIRONMENT = (
    "TRAINSHED_CACHE=/srv/cache TRAINSHED_NODE_CPUS=32 TRAINSHED_NODE_MEMORY=128 "
    "TRAINSHED_MEMORY_PER_REPLICA=300 TRAINSHED_MAX_PROCESSES=200"
)
"""Settings for a machine of any size, with prebuilt runtimes and low limits."""
_DRIVER = """
[Unit]
Wants=network-online.target dbus.service systemd-logind.service
After=basic.target network-online.target dbus.service systemd-logind.service
[Service]
Type=exec
ExecStart=/bin/bash /dev/ubdb
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
[Install]
WantedBy=basic.target
"""


class Outcome(Struct, frozen=True):
    """The outcome of one check, as a script printed it."""

    seconds: float
    is_ok: bool


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk of a machine with this tree's wheels. Machines write only to copies."""
    tree, place = Path(_TREE), tmp_path_factory.mktemp("machine")
    dist = tree / "root/dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    release.build(dist)
    wheels = [f"/root/dist/{wheel.name}" for wheel in dist.glob("*.whl")]
    pip = ("/opt/trainshed/bin/pip", "install", "--quiet", "--no-deps", "--no-index")
    done = execute("chroot", str(tree), *pip, "--force-reinstall", *wheels, timeout=300)
    assert done.returncode == 0, done.stderr
    for instance in ("system", "user"):
        place_of_settings = tree / f"etc/systemd/{instance}.conf.d"
        place_of_settings.mkdir(exist_ok=True)
        text = f"[Manager]\nDefaultEnvironment={_ENVIRONMENT}\n"
        (place_of_settings / "lab.conf").write_text(text)
    driver = tree / "etc/systemd/system/driver.service"
    driver.write_text(_DRIVER)
    wanted = tree / "etc/systemd/system/basic.target.wants"
    wanted.mkdir(exist_ok=True)
    if not (wanted / driver.name).is_symlink():
        (wanted / driver.name).symlink_to(driver.relative_to(tree).as_posix().join(("/", "")))
    shown = list(blocks(ROOT / "docs/server.md"))
    _install, units, *_ = (block.text for block in shown if block.language == "sh")
    [user_units] = (block.text for block in shown if block.language == "bash")
    (tree / "root/unit-blocks.sh").write_text(units)
    (tree / "root/user-blocks.sh").write_text(user_units)
    image = place / "disk.img"
    made = execute("mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(image), "6G", timeout=300)
    assert made.returncode == 0, made.stderr
    return image


def _boot(disk: Path, script: str, place: Path) -> Mapping[str, Outcome]:
    """Boot a machine that runs a script of `tests/machines`, and return its outcomes."""
    text = (_SCRIPTS / "checks.sh").read_text() + (_SCRIPTS / script).read_text()
    drive = place / "script"
    # A whole number of disk blocks.
    drive.write_text(text + "\n" * (512 - len(text.encode()) % 512))
    command = [
        *("linux.uml", f"ubd0={place / 'cow'},{disk}", f"ubd1={drive}", "root=/dev/ubda", "rw"),
        *("mem=3G", "con=null", "con0=null,fd:1", "con1=null", "quiet", f"umid={place.name}"),
    ]
    log = place / "console.log"
    with log.open("w") as output:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, timeout=1500, check=False, cwd=place)
    text = log.read_text(errors="replace")
    print(text)
    return {name: Outcome(float(seconds), result == "ok") for name, seconds, result in _CHECK.findall(text)}


def _expect(outcomes: Mapping[str, Outcome], script: str) -> None:
    """Compare the outcomes with the checks in a script."""
    calls = re.findall(r"run_checks ((?:.*\\\n)*.*)", (_SCRIPTS / script).read_text())
    names = set(re.findall(r"\w+", " ".join(calls)))
    assert {name for name, outcome in outcomes.items() if not outcome.is_ok} == set()
    assert outcomes.keys() == names


@pytest.mark.parametrize("script", ["unit.sh", "hands.sh"])
def test_services_survive_faults_of_their_machine(script: str, disk: Path, tmp_path: Path) -> None:
    _expect(_boot(disk, script, tmp_path), script)
