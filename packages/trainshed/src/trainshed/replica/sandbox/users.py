"""Gives a replica its own users: a user namespace with a range of the machine's user IDs. A program that is
root in the namespace has no rights outside.

Files need not change owners, because mounts have their owners mapped (mount_setattr(2)). So the service's
files appear to belong to the program, and new files of the program belong to the service. Needs root;
runs on Python 3.6.
"""

import errno
import os
import signal

from trainshed.replica.system import kernel

COUNT = 1 << 16
"""Number of users in one range, enough for root, system users, ordinary users and the user `nobody`."""

_FIRST_OWNER = 1 << 31
"""First of the user IDs that own namespaces. No user has these IDs."""

_OPEN_TREE, _MOVE_MOUNT = 428, 429
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = 0x80000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000

# The capabilities of root that programs commonly use and that are harmless here, for owners and modes of
# files, other users, and low ports. CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP,
# NET_BIND_SERVICE, SYS_CHROOT, MKNOD
_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27)
# SETFCAP: package managers in images need it. Only in images, because capabilities of a file in a bucket
# would apply to the whole machine.
_IN_IMAGES = (*_CAPABILITIES, 31)


class Users:
    """A user namespace, seen from outside. The process that becomes the program enters it last (`enter`).

    Its users are mapped later, so that the namespace can be created before its replica is known. Open file
    descriptors of the namespace and its maps keep it alive; no process has to stay in it.
    """

    def __init__(self) -> None:
        """Needs this process's /proc. Raises OSError on failure."""
        try:
            # The kernel also charges the programs' use of inotify, timers and namespaces to the namespace's
            # owner, which could starve other replicas. So each namespace has its own owner without processes.
            opened = _create_namespace(_FIRST_OWNER + int.from_bytes(os.urandom(3), "big"))
        except OSError:
            # In a container, root may have no access to a namespace that another user owns.
            opened = _create_namespace(0)
        #: The machine's ID of the user who is user 0 in the namespace.
        self.first = 0
        self._maps = opened[:-1]
        #: File descriptor of the namespace, until the program enters it.
        self.handle = opened[-1]

    def map_users(self, first: int, count: int) -> "Users":
        """Map the users and groups 0, 1, ... of the namespace to the machine's `first`, `first` + 1, ...
        Raises OSError."""
        self.first = first
        for handle in self._maps:
            os.write(handle, b"0 %d %d" % (first, count))
            os.close(handle)
        return self

    def close(self) -> None:
        """Close the file descriptors of the namespace. Called in processes that do not use them."""
        kernel.close_all([*self._maps, self.handle])

    def show(self, source: str, target: str) -> None:
        """Bind `source` on `target` so that root's files there belong to root of the namespace. Other file
        systems mounted below it are included with unchanged owners. Raises OSError if the file system, or the
        kernel, does not support it."""
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
        """Make root of the namespace the owner of `path` itself, both in the view and on the disk."""
        os.chown(path, self.first, self.first)


def _create_namespace(owner: int) -> "list[int]":
    """Create a user namespace owned by user `owner`. Return the file descriptors of its maps and of the
    namespace. Raises OSError."""
    opened: "list[int]" = []
    child = 0
    try:
        os.seteuid(owner)
        try:
            child = kernel.fork_pausing_child(kernel.CLONE_NEWUSER)
        finally:
            os.seteuid(0)
            kernel.allow_inspection()
        for name, flags in (("uid_map", os.O_WRONLY), ("gid_map", os.O_WRONLY), ("ns/user", os.O_RDONLY)):
            opened.append(os.open("/proc/%d/%s" % (child, name), flags | os.O_CLOEXEC))
    except OSError as error:
        kernel.close_all(opened)
        what = "a user namespace cannot be created: user.max_user_namespaces or a policy forbids it (%s)"
        # The kernel reports this limit with the error number of a full disk, but the error is permanent.
        number = errno.EPERM if error.errno == errno.ENOSPC else error.errno
        raise OSError(number, what % error.strerror) from None
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return opened


def enter(handle: int) -> None:
    """Become root of the user namespace with the file descriptor `handle`, and close the descriptor. After
    that, this process can change nothing outside the namespace, not even mounts. Raises OSError."""
    kernel.enter_namespace(handle, kernel.CLONE_NEWUSER)
    os.close(handle)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def drop_capabilities(*, in_image: bool = False) -> None:
    """Drop all capabilities except those of programs that are root only inside their namespace."""
    kernel.limit_program_capabilities(_IN_IMAGES if in_image else _CAPABILITIES)


def set_program_capabilities() -> None:
    """Give this process the capabilities that a program started after `drop_capabilities`, or a program of an
    ordinary user, would have. Raises OSError."""
    if os.geteuid() == 0:
        drop_capabilities()
        kernel.set_capabilities(_CAPABILITIES)
    else:
        kernel.set_capabilities(())


def map_one(inside: int, inside_group: int) -> None:
    """Move into a user namespace in which the caller's own user has the ID `inside`. The caller need not be
    root."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    kernel.write("/proc/self/setgroups", "deny")
    kernel.write("/proc/self/uid_map", "%d %d 1" % (inside, user))
    kernel.write("/proc/self/gid_map", "%d %d 1" % (inside_group, group))
