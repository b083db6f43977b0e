"""Gives a replica its own users: a user namespace with a range of the machine's user ids, and the files that
belong to it.

A program that is root in it has no rights outside. Files need not change owners: mounts have their owners
mapped (mount_setattr(2)), so that the service's files appear as the program's, and what the program writes
belongs to the service. Needs root; runs on Python 3.6.
"""

import errno
import os
import signal

from trainshed.replica.system import kernel

COUNT = 1 << 16
"""Users in one range: root, the system's, people, nobody."""

_FIRST_OWNER = 1 << 31
"""Users that nobody is."""

_OPEN_TREE, _MOVE_MOUNT = 428, 429
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = 0x80000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000

# The capabilities of root that harmless programs use: owners and modes of files, other users, low ports.
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT, MKNOD
_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27)
# SETFCAP: package managers in images need it. Capabilities of a file in a bucket would be the machine's.
_IN_IMAGES = (*_CAPABILITIES, 31)


class Users:
    """A user namespace, seen from outside: who becomes the program enters it last of all (`enter`). Which
    users it has is set later, so that it can be made before its replica is known.

    It is kept alive by open handles of itself and its maps; no process has to stay in it.
    """

    def __init__(self) -> None:
        """Needs this process's /proc. Raises OSError if none can be made."""
        try:
            # What its programs take of inotify, timers and namespaces counts with its owner as well, who
            # would have none left for others: each has an owner that is nobody.
            opened = _made(_FIRST_OWNER + int.from_bytes(os.urandom(3), "big"))
        except OSError:
            opened = _made(0)  # In a container, root may not be able to look into another's.
        #: The machine's user that is its user 0.
        self.first = 0
        self._maps = opened[:-1]
        #: Of the namespace, until it is entered.
        self.handle = opened[-1]

    def settle(self, first: int, count: int) -> "Users":
        """Its users and groups 0, 1, ... are the machine's `first`, `first` + 1, ... from here on. Raises
        OSError."""
        self.first = first
        for handle in self._maps:
            os.write(handle, b"0 %d %d" % (first, count))
            os.close(handle)
        return self

    def close(self) -> None:
        """Of a copy in a process that has no use for it."""
        kernel.close_all([*self._maps, self.handle])

    def show(self, source: str, target: str) -> None:
        """Bind `source` on `target` so that what root owns there belongs to root of the namespace. What other
        file systems have mounted below it comes along with its owners as they are. Raises OSError: the file
        system, or the kernel, cannot do it."""
        tree = kernel.syscall(
            _OPEN_TREE,
            "open_tree %s" % source,
            kernel.AT_FDCWD,
            os.fsencode(source),
            _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | kernel.AT_RECURSIVE,
        )
        try:
            kernel.change_mount(
                "",
                "map the owners of %s" % source,
                directory=tree,
                flags=_AT_EMPTY_PATH,
                added=_MOUNT_ATTR_IDMAP,
                owners=self.handle,
            )
            kernel.syscall(
                _MOVE_MOUNT,
                "move_mount on %s" % target,
                tree,
                b"",
                kernel.AT_FDCWD,
                os.fsencode(target),
                _MOVE_MOUNT_F_EMPTY_PATH,
            )
        finally:
            os.close(tree)

    def give(self, path: str) -> None:
        """Have `path` itself belong to root of the namespace, on the disk as well."""
        os.chown(path, self.first, self.first)


def _made(owner: int) -> "list[int]":
    """Make a user namespace of that user's; return the handles of its maps and of itself. Raises OSError."""
    opened: "list[int]" = []
    child = 0
    try:
        os.seteuid(owner)
        try:
            child = kernel.pausing_child(kernel.CLONE_NEWUSER)
        finally:
            os.seteuid(0)
            kernel.allow_inspection()
        for name, flags in (
            ("uid_map", os.O_WRONLY),
            ("gid_map", os.O_WRONLY),
            ("ns/user", os.O_RDONLY),
        ):
            opened.append(os.open("/proc/%d/%s" % (child, name), flags | os.O_CLOEXEC))
    except OSError as error:
        kernel.close_all(opened)
        what = "a user namespace cannot be made: user.max_user_namespaces, or a policy (%s)"
        # Its limit has the number of a full disk, but lasts.
        number = errno.EPERM if error.errno == errno.ENOSPC else error.errno
        raise OSError(number, what % error.strerror) from None
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return opened


def enter(handle: int) -> None:
    """Become root of the user namespace behind `handle`, which is closed. Nothing outside can be changed from
    here on, mounts included. Raises OSError."""
    kernel.enter_namespace(handle, kernel.CLONE_NEWUSER)
    os.close(handle)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def drop_capabilities(*, in_image: bool = False) -> None:
    """Leave programs of a root that is none outside what they may need."""
    kernel.keep_capabilities(_IN_IMAGES if in_image else _CAPABILITIES)


def have_programs_capabilities() -> None:
    """Have what a program has that is started after `drop_capabilities`, or by an ordinary user, without that
    this process becomes another. Raises OSError."""
    if os.geteuid() == 0:
        drop_capabilities()
        kernel.have_capabilities(_CAPABILITIES)
    else:
        kernel.have_capabilities(())


def map_one(inside: int, inside_group: int) -> None:
    """Move into a user namespace in which the caller's own user, who need not be root, is called `inside`."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    kernel.write("/proc/self/setgroups", "deny")
    kernel.write("/proc/self/uid_map", "%d %d 1" % (inside, user))
    kernel.write("/proc/self/gid_map", "%d %d 1" % (inside_group, group))
