"""A root directory of a replica's own, with the machine's directories in it: what a program makes there is
its own, and what was not to be seen or changed is not (docs/adr/0019)."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.replica.conftest import Place
from tests.isolation import needs_mounts
from trainshed.engines.local import spawner
from trainshed.replica import protocol
from trainshed.replica.sandbox import mounts
from trainshed.replica.system import cgroups, kernel

WRITE = """
import json, os
made, refused = [], []
for path in {paths}:
    try:
        os.makedirs(path)
        with open(path + "/written", "w") as file:
            file.write("x")
        made.append(path)
    except OSError as error:
        refused.append(path)
print(json.dumps([made, refused]))
"""
OURS = ["/trainshed-test", "/mnt/trainshed-test/a", "/srv/trainshed-test", "/opt/trainshed-test/ml"]


@pytest.fixture
def own(place: Place) -> Place:
    if place.level == protocol.LEVEL_SESSION:
        pytest.skip("there is no view at this level")
    return place


def owns_the_machines(place: Place) -> bool:
    """Whether its programs may change the machine's own files without it (docs/security.md)."""
    return place.level != protocol.LEVEL_OWN and not os.geteuid()


def said(place: Place, program: str, **fields: object) -> Any:
    line = place.python(program, own_root=True, **fields)
    record = line.record()
    assert record["exit_code"] == 0, place.texts()
    return json.loads(place.texts()[-1])


def test_what_it_makes_in_the_root_is_its_own_and_stays(own: Place) -> None:
    assert said(own, WRITE.format(paths=OURS)) == [OURS, []]
    assert not [path for path in OURS if os.path.lexists(path)], "made on the machine"
    root = own.slot / protocol.FILES / "root"
    assert (root / "trainshed-test" / "written").read_text() == "x"
    assert said(
        own, f"import os; print('true' if all(map(os.path.exists, {OURS})) else 'false')"
    ), "the next incarnation goes on with it"


def test_what_is_the_machines_cannot_be_changed(own: Place) -> None:
    if owns_the_machines(own):
        pytest.skip("its programs own the machine's files")
    above = [Path("/"), *(Path("/", name) for name in mounts.OPEN_DIRECTORIES)]
    private = {"tmp", "proc", "sys", "dev", "gcs", *mounts.OPEN_DIRECTORIES}
    wanted = [
        str(inner / "trainshed-test")
        for outer in above
        for inner in outer.iterdir()
        if inner.name not in private and inner.is_dir() and not inner.is_symlink()
        if not inner.stat().st_mode & stat.S_IWOTH
    ]
    assert len(wanted) > 5
    assert said(own, WRITE.format(paths=wanted)) == [[], wanted]


def test_what_is_hidden_is_hidden(own: Place, tmp_path: Path) -> None:
    """Also below the replica's own files, where its root lies."""
    secret = tmp_path / "secrets"
    secret.mkdir()
    (secret / "key").write_text("x")
    program = f"""
import json, os
places = [{str(secret)!r}]
home = {str(own.slot / protocol.FILES)!r}
places += [home + "/root" + {str(secret)!r}, home + "/root/usr/bin", home + "/root/proc/self"]
print(json.dumps([os.listdir(place) if os.path.isdir(place) else [] for place in places]))
"""
    assert said(own, program, hidden=[str(tmp_path)]) == [[], [], [], []]


def test_disks_below_what_is_shown_are_shown(own: Place, small_disk: Path) -> None:
    """As the driver's below /usr; they cannot be written to, and what is hidden in them stays so."""
    (small_disk / "data" / "hidden").mkdir(parents=True)
    small_disk.chmod(0o777)
    shown = [sys.prefix, sys.base_prefix, str(small_disk.parent)]
    program = WRITE.format(paths=[str(small_disk / "new")])
    program += f"print(json.dumps([names for _, names, _ in os.walk({str(small_disk)!r})]))"
    hidden = [str(small_disk.parents[1]), str(small_disk / "data")]
    assert said(own, program, read_only=shown, hidden=hidden) == [["data"], []]


OLD_KERNEL = """
from trainshed.replica.system import kernel
def missing(*_, **__):
    raise OSError(38, "mount_setattr: Function not implemented")
kernel.change_mount = missing
zygote.run(0)
"""


@needs_mounts
@pytest.mark.parametrize("level", [protocol.LEVEL_ROOT, protocol.LEVEL_USER])
def test_a_kernel_before_5_12_lets_nobody_write_to_them_either(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = spawner._START.replace("; zygote.run(0)", OLD_KERNEL)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(spawner, "_START", begin)
    shown = tmp_path / "shown"
    disk = shown / "a disk"
    disk.mkdir(parents=True)
    kernel.mount("tmpfs", str(disk), "tmpfs", 0, "mode=777")
    zygote = spawner.start()
    try:
        paths = [str(shown / "new"), str(disk / "new"), f"{cgroups.ROOT}/new"]
        read_only = [sys.prefix, sys.base_prefix, str(shown)]
        place = Place(tmp_path, zygote, level)
        assert said(place, WRITE.format(paths=paths), read_only=read_only) == [[], paths]
    finally:
        zygote.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


LINKS = """
import os
os.symlink({target!r}, "/trainshed-later")
home = {home!r}
os.rename(home + "/root", home + "/old")
os.mkdir(home + "/root")
for name in ("usr", "opt", "gcs"):
    os.symlink({target!r}, home + "/root/" + name)
os.symlink("/nowhere", home + "/root/bin")
print("[]")
"""


def test_links_that_it_leaves_lead_nowhere(own: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    home = str(own.slot / protocol.FILES)
    said(own, LINKS.format(target=str(target), home=home))
    program = "import json, os; print(json.dumps([os.path.islink('/usr'), os.readlink('/bin')]))"
    if not Path("/bin").is_symlink():
        program = program.replace("os.readlink('/bin')", "''")
    assert said(own, program) == [False, str(Path("/bin").readlink()) if "bin" in program else ""]
    assert not list(target.iterdir())


def test_devices_of_the_machine_are_shown_in_it(own: Place) -> None:
    """spec/machines#gpus, with whatever else the machine has."""
    names = "import json, os; print(json.dumps(os.listdir('/dev')))"
    usual = said(own, names)
    others = [file for file in Path("/dev").iterdir() if file.name not in usual]
    device = next(filter(Path.is_char_device, others), None)
    if device is None:
        pytest.skip("this machine has no device that not every program sees")
    assert {*said(own, names, devices=[str(device)])} == {*usual, device.name}
