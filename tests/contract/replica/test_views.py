"""What a program sees of the machine: disks below what is shown to it, on every kernel, and its devices."""

import ctypes
import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.replica.conftest import Place
from tests.e2e.hostile.yard import common_ground
from tests.isolation import needs_mounts, strongest
from trainshed.engines.local import spawner
from trainshed.replica import protocol
from trainshed.replica.system import cgroups, kernel

WRITE = """
import json, os
made, refused = [], []
for path in {paths}:
    try:
        os.makedirs(path)
        print("x", file=open(path + "/written", "w"), flush=True)
        made.append(path)
    except OSError as error:
        refused.append(path)
print(json.dumps([made, refused]))
"""


@pytest.fixture
def seen(place: Place) -> Place:
    if place.level == protocol.LEVEL_SESSION:
        pytest.skip("there is no view at this level")
    return place


def said(place: Place, program: str, **fields: object) -> Any:
    record = place.python(program, **fields).record()
    assert record["exit_code"] == 0, place.texts()
    return json.loads(place.texts()[-1])


def test_disks_below_what_is_shown_are_shown(seen: Place, small_disk: Path) -> None:
    """As the driver's below /usr; they cannot be written to, and what is hidden in them stays so."""
    (small_disk / "data" / "hidden").mkdir(parents=True)
    small_disk.chmod(0o777)
    shown = [sys.prefix, sys.base_prefix, str(small_disk.parent)]
    program = WRITE.format(paths=[str(small_disk / "new")])
    program += f"print(json.dumps([names for _, names, _ in os.walk({str(small_disk)!r})]))"
    hidden = [str(small_disk.parents[1]), str(small_disk / "data")]
    assert said(seen, program, read_only=shown, hidden=hidden) == [["data"], []]


KEEPS_BITS = """
import ctypes, json, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    return 0 if libc.syscall(*arguments) >= 0 else ctypes.get_errno()
def tried(do, *arguments, **options):
    try:
        do(*arguments, **options)
    except OSError as error:
        return error.errno
place = "/gcs/bucket/program"
open(place, "w").close()
handle, directory = os.open(place, os.O_RDWR), os.open("/gcs/bucket", os.O_RDONLY)
made = os.O_CREAT | os.O_WRONLY
how = struct.pack("QQQ", made, 0o4755, 0)
capable = struct.pack("<IIIII", 0x2000001, 1 << 7, 0, 0, 0)
refused = [
    *(tried(os.chmod, place, 0o4755), tried(os.fchmod, handle, 0o6755)),
    *(tried(os.chmod, "program", 0o4755, dir_fd=directory), call(452, -100, place.encode(), 0o4755, 0)),
    *(tried(os.open, place + "1", made, 0o4755), tried(os.mknod, place + "2", 0o104755)),
    *(call(437, -100, (place + "3").encode(), how, 24), tried(os.mknod, "4", 0o104755, dir_fd=directory)),
    tried(os.setxattr, place, "security.capability", capable),
]
allowed = [
    *(tried(os.chmod, place, 0o2755), tried(os.chmod, "/gcs/bucket", 0o1777)),
    # Without O_CREAT a mode means nothing, whatever is in it.
    *(call(2, place.encode(), os.O_RDONLY, 0o4755), call(257, -100, place.encode(), os.O_RDONLY, 0o4755)),
]
flags = os.statvfs("/gcs/bucket").f_flag
safe = bool(flags & os.ST_NOSUID and flags & os.ST_NODEV and not flags & os.ST_RDONLY)
print(json.dumps([refused, allowed, safe]))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call numbers are those of x86_64")
def test_a_program_leaves_no_set_user_id_file_in_a_bucket(seen: Place, tmp_path: Path) -> None:
    """It would be root's on the machine. File capabilities would be the machine's, too."""
    bucket = tmp_path / "bucket"
    bucket.mkdir(mode=0o777)
    bucket.chmod(0o777)
    fields = {"buckets": [("bucket", str(bucket))], "cluster_port": 23470}
    refused, allowed, is_safe = said(seen, KEEPS_BITS, **fields)
    *modes, capabilities = refused
    no = errno.EPERM
    # Old kernels have no fchmodat2; openat2 has its mode where a filter cannot read it.
    assert modes == [no, no, no, no, no, no, errno.ENOSYS, no]
    assert (capabilities == no) or seen.level == protocol.LEVEL_ROOT
    assert (allowed, is_safe) == ([None, None, 0, 0], True)
    assert not [path for path in bucket.iterdir() if path.stat().st_mode & stat.S_ISUID]


WRITES = """
import json, os
for place in ("/tmp", "/var/tmp", "/var/hypertune"):
    open(place + "/mine", "w").close()
print(json.dumps(sorted(os.listdir("/tmp"))))
"""


def test_private_directories_can_be_written_whatever_the_machines_are(seen: Place) -> None:
    """With a slot below a /tmp of mode 0700, which is hidden for that, programs found /tmp read-only."""
    assert said(seen, WRITES, hidden=["/tmp", "/var/tmp", "/var/hypertune"])[0] == "mine"


WITHOUT_HOSTS = """
import os, sys
from pathlib import Path
from trainshed.replica.system import kernel
kernel.unshare(0x20000)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
root, etc = Path(sys.argv[1]), Path(sys.argv[1], "etc")
etc.mkdir()
for path in Path("/etc").iterdir():
    if path.is_symlink():
        (etc / path.name).symlink_to(path.readlink())
    elif path.name != "hosts" and (path.is_dir() or path.is_file()):
        (etc / path.name).mkdir() if path.is_dir() else (etc / path.name).touch()
        kernel.bind(str(path), str(etc / path.name))
kernel.bind(str(etc), "/etc")
assert not Path("/etc/hosts").exists()
from tests.contract.replica.conftest import Place, spawner
zygote = spawner.start()
place = Place(root, zygote, sys.argv[2])
print(place.python("print(open('/etc/hosts').read())").record()["exit_code"], *place.texts())
zygote.close()
assert not Path("/etc/hosts").exists()
"""


def test_a_machine_without_a_hosts_file_gets_none(seen: Place, tmp_path: Path) -> None:
    """Minimal images have none: no program could be started."""
    if seen.level == protocol.LEVEL_USER or os.geteuid():
        pytest.skip("the file can be taken away in a view of root's alone")
    (root := tmp_path / "other").mkdir()
    argv = [sys.executable, "-c", WITHOUT_HOSTS, str(root), seen.level]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "127.0.0.1", "localhost"], done.stderr


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


GOES = """
import ctypes, os
from trainshed.replica.sandbox.view import View, kernel
step = {1}
def goes(of, *rest, **by):
    if isinstance(of, str) and of != {0!r}:
        return step(of, *rest, **by)
    ctypes.CDLL(None).umount2({0!r}.encode(), 2)  # The kernel does, before somebody else's rmdir is over.
    try:
        return step(of, *rest, **by)
    finally:
        os.rmdir({0!r})
{1} = goes
zygote.run(0)
"""


@needs_mounts
@pytest.mark.parametrize("step", ["View.find_hidden", "View._show_around", "kernel.make_read_only"])
def test_what_is_gone_need_not_be_hidden(step: str, tmp_path: Path, monkeypatch: Any) -> None:
    """As a Slurm daemon's directory that ends before it is covered, after, and as its cover is sealed."""
    goes = tempfile.mkdtemp(dir=common_ground())
    begin = spawner._START.replace("; zygote.run(0)", GOES.format(goes, step))  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(spawner, "_START", begin)
    with closing(spawner.start()) as zygote:
        assert said(Place(tmp_path, zygote, strongest()), "print(7)", hidden=[goes]) == 7
    assert not Path(goes).exists()


def test_devices_of_the_machine_are_shown(seen: Place) -> None:
    """spec/machines#gpus, with whatever else the machine has."""
    names = "import json, os; print(json.dumps(os.listdir('/dev')))"
    usual = said(seen, names)
    # Other tests make some of their own, and take them away again.
    others = [file for file in Path("/dev").glob("[!t]*") if file.name not in usual]
    device = next(filter(Path.is_char_device, others), None)
    if device is None:
        pytest.skip("this machine has no device that not every program sees")
    assert {*said(seen, names, devices=[str(device)])} == {*usual, device.name}


def test_a_program_takes_no_inotify_of_others(seen: Place) -> None:
    """Issue: one program took all that the machine's root may have, and all other programs'."""
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if seen.level != protocol.LEVEL_OWN or most > 1000:
        pytest.skip("they are the service's user's, or there are more than files can be open")
    taken = [ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC) for _ in range(9)]
    program = "import ctypes; print(sum(ctypes.CDLL(None).inotify_init() > 0 for _ in range(9999)))"
    assert said(seen, program) == most
    kernel.close_all(taken)


def test_a_program_opens_its_own_output_by_name(place: Place) -> None:
    """As shell scripts do, and whatever is told to log to a file."""
    program = """
for name in ("stdout", "stderr"):
    with open("/dev/" + name, "a") as stream:
        stream.write(name + "\\n")
"""
    assert place.python(program).record()["exit_code"] == 0, place.texts()
    assert sorted(place.texts()) == ["stderr", "stdout"]
