"""Users of a replica's own: a user namespace with a range of the machine's user numbers, and the files that belong to it.

A program that is root in it is nobody outside. Files need not change hands: a mount is shown with its owners mapped
(mount_setattr(2)), so that what the service owns is the program's, and what the program writes the service's.
Needs root; runs on Python 3.6.
"""

import os
import struct

from trainshed.replica import system

COUNT = 1 << 16
"""Users in one range: root, the system's, people, nobody."""

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = 0x80000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000

# Of root's capabilities, those that harmless programs use: owners and modes of files, other users, low ports.
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT, MKNOD, SETFCAP
_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 31)


class Users:
    """The namespace, seen from outside: this process enters it last of all."""

    __slots__ = ("_handle", "first")

    def __init__(self, first: int, count: int) -> None:
        """Make it; its users 0, 1, ... are the machine's `first`, `first` + 1, ... Raises OSError."""
        self.first = first
        made_read, made_write = os.pipe()
        done_read, done_write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(done_write)
                system.unshare(system.CLONE_NEWUSER)
                os.write(made_write, b"m")
                os.read(done_read, 1)
            finally:
                os._exit(0)
        os.close(made_write)
        os.close(done_read)
        try:
            if not os.read(made_read, 1):
                raise OSError(
                    "a user namespace cannot be made: user.max_user_namespaces, or a policy"
                )
            for name in ("uid_map", "gid_map"):
                system.write("/proc/%d/%s" % (child, name), "0 %d %d" % (first, count))
            self._handle = os.open("/proc/%d/ns/user" % child, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(made_read)
            os.close(done_write)
            os.waitpid(child, 0)

    def show(self, source: str, target: str) -> None:
        """Bind `source` on `target` so that what root owns there belongs to root of the namespace. Raises OSError: the
        file system, or the kernel, cannot do it."""
        tree = system.syscall(
            _OPEN_TREE,
            "open_tree %s" % source,
            _AT_FDCWD,
            os.fsencode(source),
            _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC,
        )
        try:
            attributes = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, self._handle)
            system.syscall(
                _MOUNT_SETATTR,
                "map the owners of %s" % source,
                tree,
                b"",
                _AT_EMPTY_PATH,
                attributes,
                len(attributes),
            )
            system.syscall(
                _MOVE_MOUNT,
                "move_mount on %s" % target,
                tree,
                b"",
                _AT_FDCWD,
                os.fsencode(target),
                _MOVE_MOUNT_F_EMPTY_PATH,
            )
        finally:
            os.close(tree)

    def give(self, path: str) -> None:
        """Have `path` itself belong to root of the namespace, on the disk as well."""
        os.chown(path, self.first, self.first)

    def enter(self) -> None:
        """Become root of the namespace, with a harmless program's capabilities only. Nothing outside can be changed
        from here on, mounts included."""
        system.enter_namespace(self._handle, system.CLONE_NEWUSER)
        os.close(self._handle)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def drop_capabilities() -> None:
    """Leave programs of a root that is none outside what they may need."""
    system.keep_capabilities(_CAPABILITIES)


def map_one(inside: int, inside_group: int) -> None:
    """Move into a user namespace in which the caller's own user, who need not be root, is called `inside`."""
    user, group = os.geteuid(), os.getegid()
    system.unshare(system.CLONE_NEWUSER)
    system.write("/proc/self/setgroups", "deny")
    system.write("/proc/self/uid_map", "%d %d 1" % (inside, user))
    system.write("/proc/self/gid_map", "%d %d 1" % (inside_group, group))
