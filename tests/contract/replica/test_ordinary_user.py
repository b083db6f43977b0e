"""Tests that need rights over the program's processes, repeated as a user without rights
(spec/program#isolation: root or not)."""

import subprocess
import sys
import tempfile

from tests.contract.ordinary_user import NOBODY
from tests.isolation import needs_mounts

_PROBE = f"""
import ctypes, os, sys
from trainshed.replica.supervisor import isolation_probe
from trainshed.replica.system import kernel
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
fresh = sys.argv[1] + "/root"
os.mkdir(fresh)
kernel.mount("tmpfs", fresh, "tmpfs", 0, "mode=755")
for entry in os.scandir("/"):
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), fresh + entry.path)
    elif entry.is_dir() and entry.name != "gcs":
        os.mkdir(fresh + entry.path)
        kernel.bind(entry.path, fresh + entry.path)
kernel.pivot_root(fresh)
os.mkdir("/place")  # The directory of temporary files may be closed to other users.
os.chmod("/place", 0o777)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
# Else its /proc is root's.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
os.mkdir("/place/probed")
print(isolation_probe.probe("/place/probed", ["user"]))
"""
"""Probe the levels of an ordinary user on a root directory with only the usual entries."""


@needs_mounts
def test_unprivileged_user_gets_its_isolation_level_on_a_new_machine() -> None:
    with tempfile.TemporaryDirectory() as place:
        probing = [sys.executable, "-c", _PROBE, place]
        assert subprocess.check_output(probing, text=True) == ("{'level': 'user', 'refused': {}}\n")
