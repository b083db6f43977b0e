"""A program's view of the machine: disks below visible directories, on every kernel, and devices."""

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
from tests.e2e.hostile.attack_setup import readable_directory
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
def place_with_view(place: Place) -> Place:
    if place.level == protocol.LEVEL_SESSION:
        pytest.skip("there is no view at this level")
    return place


def printed_json(place: Place, program: str, **fields: object) -> Any:
    record = place.python(program, **fields).record()
    assert record["exit_code"] == 0, place.texts()
    return json.loads(place.texts()[-1])


def test_disks_mounted_below_visible_directories_are_visible_to_programs(
    place_with_view: Place, small_disk: Path
) -> None:
    """An example is a disk below /usr. Such disks are read-only, and hidden directories on them
    remain hidden."""
    (small_disk / "data" / "hidden").mkdir(parents=True)
    small_disk.chmod(0o777)
    shown = [sys.prefix, sys.base_prefix, str(small_disk.parent)]
    program = WRITE.format(paths=[str(small_disk / "new")])
    program += f"print(json.dumps([names for _, names, _ in os.walk({str(small_disk)!r})]))"
    hidden = [str(small_disk.parents[1]), str(small_disk / "data")]
    assert printed_json(place_with_view, program, read_only=shown, hidden=hidden) == [["data"], []]


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
def test_program_cannot_create_setuid_files_in_a_bucket(place_with_view: Place, tmp_path: Path) -> None:
    """The file would be root's on the machine. File capabilities would apply to the machine too."""
    bucket = tmp_path / "bucket"
    bucket.mkdir(mode=0o777)
    bucket.chmod(0o777)
    fields = {"buckets": [("bucket", str(bucket))], "cluster_port": 23470}
    refused, allowed, is_safe = printed_json(place_with_view, KEEPS_BITS, **fields)
    *modes, capabilities = refused
    no = errno.EPERM
    # Old kernels lack fchmodat2. A filter cannot read the mode of openat2.
    assert modes == [no, no, no, no, no, no, errno.ENOSYS, no]
    assert (capabilities == no) or place_with_view.level == protocol.LEVEL_ROOT
    assert (allowed, is_safe) == ([None, None, 0, 0], True)
    assert not [path for path in bucket.iterdir() if path.stat().st_mode & stat.S_ISUID]


WRITES = """
import json, os
for place in ("/tmp", "/var/tmp", "/var/hypertune"):
    open(place + "/mine", "w").close()
print(json.dumps(sorted(os.listdir("/tmp"))))
"""


def test_program_can_write_to_its_private_directories(place_with_view: Place) -> None:
    """Earlier, /tmp was read-only for programs whose slot is below a hidden /tmp of mode 0700."""
    assert printed_json(place_with_view, WRITES, hidden=["/tmp", "/var/tmp", "/var/hypertune"])[0] == "mine"


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


def test_program_starts_on_a_machine_without_a_hosts_file(place_with_view: Place, tmp_path: Path) -> None:
    """Minimal images have no hosts file. Earlier, no program could start in them."""
    if place_with_view.level == protocol.LEVEL_USER or os.geteuid():
        pytest.skip("the file can be taken away in a view of root's alone")
    (root := tmp_path / "other").mkdir()
    argv = [sys.executable, "-c", WITHOUT_HOSTS, str(root), place_with_view.level]
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
def test_mounted_disks_are_read_only_on_kernels_before_5_12(
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
        assert printed_json(place, WRITE.format(paths=paths), read_only=read_only) == [[], paths]
    finally:
        zygote.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


REMOVES_DIRECTORY = """
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
def test_hidden_directory_that_disappears_during_a_start_does_not_fail_the_start(
    step: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """An example is a directory of a Slurm daemon. It disappears before it is covered, after it, or
    while its cover is made read-only."""
    removed = tempfile.mkdtemp(dir=readable_directory())
    begin = spawner._START.replace("; zygote.run(0)", REMOVES_DIRECTORY.format(removed, step))  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(spawner, "_START", begin)
    with closing(spawner.start()) as zygote:
        assert printed_json(Place(tmp_path, zygote, strongest()), "print(7)", hidden=[removed]) == 7
    assert not Path(removed).exists()


def test_devices_of_the_machine_are_visible_to_programs(place_with_view: Place) -> None:
    """spec/machines#gpus, with any other devices of the machine."""
    names = "import json, os; print(json.dumps(os.listdir('/dev')))"
    usual = printed_json(place_with_view, names)
    # Other tests create and delete some of these devices.
    others = [file for file in Path("/dev").glob("[!t]*") if file.name not in usual]
    device = next(filter(Path.is_char_device, others), None)
    if device is None:
        pytest.skip("this machine has no device that not every program sees")
    assert {*printed_json(place_with_view, names, devices=[str(device)])} == {*usual, device.name}


def test_program_cannot_exhaust_inotify_instances_of_other_programs(place_with_view: Place) -> None:
    """Earlier, one program could use all inotify instances of the machine's root and of all other
    programs."""
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if place_with_view.level != protocol.LEVEL_OWN or limit > 1000:
        pytest.skip("they are the service's user's, or there are more than files can be open")
    instances = [ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC) for _ in range(9)]
    program = "import ctypes; print(sum(ctypes.CDLL(None).inotify_init() > 0 for _ in range(9999)))"
    assert printed_json(place_with_view, program) == limit
    kernel.close_all(instances)


def test_program_can_open_dev_stdout_and_dev_stderr_by_path(place: Place) -> None:
    """Shell scripts and log settings use these names."""
    program = """
for name in ("stdout", "stderr"):
    with open("/dev/" + name, "a") as stream:
        stream.write(name + "\\n")
"""
    assert place.python(program).record()["exit_code"] == 0, place.texts()
    assert sorted(place.texts()) == ["stderr", "stdout"]
