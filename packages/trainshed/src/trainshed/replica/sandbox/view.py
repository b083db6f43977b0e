"""Builds the file system view of one program: hidden and visible paths, the owners of its files, and its
/dev. `View` creates all mounts of a replica. The first process of a process namespace calls `View.enter`."""

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Sequence

from trainshed.replica import protocol
from trainshed.replica.sandbox import mounts, users
from trainshed.replica.system import cgroups, kernel, processes, roots

GCS = "/gcs"
HYPERTUNE = "/var/hypertune"
_HOSTS = "/etc/hosts"


def detach() -> None:
    """Leave the machine's namespaces of mounts, hostname and System V shared memory. Until `View.enter`, the
    machine's mounts and unmounts still propagate to this process. Raises OSError."""
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)


class View:
    """The view of one program. All paths are absolute. Targets are paths in the program's view."""

    def __init__(
        self,
        isolation: protocol.Isolation,
        *,
        files: str,
        scratch: str,
        layer: str = "",
        binds: Sequence[tuple[str, str]] = (),
        replaced: Sequence[tuple[str, str]] = (),
        lent: Sequence[tuple[str, Sequence[str], str]] = (),
        namespace: users.Users | None = None,
        devices: int | None = None,
    ) -> None:
        """`devices`: file descriptor of the machine's /dev, closed by `enter`. The caller passes it if this
        process has already left the machine's view (`detach`, `own_devices`) and sees its own processes in
        /proc."""
        self._isolation = isolation
        #: The replica's directory, visible at its own path even if its parent directories are hidden.
        self._files = files
        #: A directory in the replica's directory for preparing mounts; created if necessary.
        self._scratch = scratch
        #: Directory for the program's changes to its container image.
        self._layer = layer
        #: (source, target) of writable directories in the program's view.
        self._binds = binds
        #: (source, target) of writable directories that replace read-only ones, where the target exists. Not
        #: used with an image.
        self._replaced = replaced
        #: (base, names, target) of read-only directories. The source is the directory below `base` that the
        #: path of `names` leads to. Not used with an image.
        self._lent = lent
        #: The namespace of the program's own users, if it was created in advance.
        self._namespace = namespace
        self._read_only = [path for path in isolation.read_only if os.path.isdir(path)]
        # Separate the mounts in /dev from the others. `_add_devices` mounts them while the machine's /dev is
        # still accessible.
        self._mounts = [mount for mount in isolation.mounts if not mount[1].startswith("/dev/")]
        self._device_mounts = [mount for mount in isolation.mounts if mount[1].startswith("/dev/")]
        self._root = ""
        #: Directories to hide (`find_hidden`).
        self._hidden: list[str] = []
        self._devices = devices
        #: After `enter`: the program's own users; None = it has none. The process that becomes the program
        #: enters their namespace last.
        self.owners: users.Users | None = None
        #: After `enter`: user, group and home directory of an image's program.
        self.user = (0, 0, "/")
        self._file_owner: users.Users | None = None

    @property
    def owner(self) -> int | None:
        """File descriptor of the namespace of `owners`; None if there are no own users."""
        return self.owners.handle if self.owners is not None else None

    def find_hidden(self) -> None:
        """Find the directories that the view must hide, without changes to the replica's directory. Raises
        OSError."""
        if not self._isolation.image:
            self._mounts += self._root_mounts()
            ways = {*self._isolation.hidden, *self._closed_directories(), *slurm_step_directories()}
            self._hidden = sorted(filter(mounts.is_directory, ways))

    def enter(self) -> None:
        """Move this process and all its descendants into the view. Requires an earlier `find_hidden`. Raises
        OSError."""
        if self._devices is None:
            detach()
            # Mounted first, so that later steps and child processes find themselves in /proc by this
            # namespace's process IDs.
            self._mount("proc", "/proc", mounts.SAFE | kernel.MS_NOEXEC)
            self._devices = own_devices()
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        if self._isolation.hostname:
            socket.sethostname(self._isolation.hostname)
        if self._isolation.users:
            self.owners = (self._namespace or users.Users()).map_users(*self._isolation.users)
        # Called before the machine's /dev disappears together with the machine's root.
        self._add_devices(self._devices)
        if not self._isolation.image:
            # Add missing mount points before any source is opened, because adding them may replace the root.
            self._add_missing([target for _, target in self._binds])
            if self._isolation.buckets:
                self._add_missing([GCS])
            if self._isolation.hosts:
                mounts.add_file(os.path.realpath(_HOSTS), self._scratch)
        # Open only the parent directories of the buckets: there may be more buckets than files can be open.
        around = {
            place: mounts.open_path(place)
            for place in {os.path.dirname(source) for _, source in self._isolation.buckets}
        }
        if self._isolation.image:
            self._show_image(self._isolation.image)
            self._mount("proc", "/proc", mounts.SAFE | kernel.MS_NOEXEC)
            mounts.make_directory(self._resolve("/dev"), 0o755)
            kernel.bind("/dev", self._resolve("/dev"))
        else:
            self._hide()
        self._show_buckets(around)
        if self._root:
            # All other mounts are below the future root. From now on, nothing else is visible.
            kernel.pivot_root(self._root)
        if self.owners is None and os.path.isdir(cgroups.ROOT):
            # The program's user may own the control groups. With write access, it could raise its limits and
            # kill other programs.
            kernel.bind(cgroups.ROOT, cgroups.ROOT)
            kernel.make_read_only(cgroups.ROOT, below=True)

    # --- the machine's own file system, without what the program must not see ---

    def _hide(self) -> None:
        if self._isolation.roots:
            # Add the file of root certificates at Debian's path, even if the machine has no such file: some
            # programs search only this path.
            mounts.add_file(os.path.realpath(roots.PLACE), self._scratch)
        kept = self._open_source(self._files)
        shown = [(self._open_own(source), target) for source, target in self._binds]
        bound = [(self._open_source(path), path, True) for path in self._read_only]
        bound += [(self._open_source(source), target, frost) for source, target, frost in self._mounts]
        bound += [(self._open_below(base, names), target, True) for base, names, target in self._lent]
        bound += [(self._open_own(source), to, False) for source, to in self._replaced if os.path.isdir(to)]
        # Mount outer paths first: an outer path that is mounted later would cover the inner ones.
        bound.sort(key=lambda mount: mount[1])
        hosts = self._open_hosts()
        places, hidden = self._hidden, list(filter(_cover, mounts.outermost(self._hidden)))
        for path in self._isolation.covered:
            if mounts.is_file(path):
                kernel.bind(os.devnull, path)
        later = [(self._files, True), *((to, source.is_directory) for source, to, _ in bound)]
        in_memory: list[str] = []
        for source, target in shown:
            passed: list[str] = []
            for path, directory in later:
                if mounts.contains_any(target, [path]):
                    first, _, rest = path[len(target) + 1 :].partition("/")
                    source.make_mount_point(first, directory or bool(rest))
                    passed += [os.path.join(target, first)] * bool(rest)
            source.show(target)
            # Create the directories on the way in memory. On disk, each would delay a start more than all
            # mounts.
            for way in mounts.outermost(passed):
                _cover(way)
                in_memory.append(way)
        if hosts is not None:
            hosts.bind(_HOSTS)
        # Mount these last, because earlier covers (for example, a private /tmp) must not cover them. Sources
        # that contain hidden directories come first, because those directories are hidden again inside them.
        around = [mount for mount in bound if mounts.contains_any(mount[1], places)]
        again = self._show_around(around, places)
        mounts.make_directory(self._files, 0o755)
        kept.show(self._files)
        self._show_mounts([mount for mount in bound if mount not in around])
        # If a visible target covers a hidden directory, the hidden directory is invisible already.
        targets = [target for _, target in shown]
        seen = [p for p in hidden if not any(p == to or mounts.contains_any(to, [p]) for to in targets)]
        for path in [*(target for _, target, frost in bound if frost), *in_memory]:
            kernel.make_read_only(path)
        for path in seen + again:
            _seal(path)

    def _show_around(self, shown: list[tuple[mounts.Source, str, bool]], places: list[str]) -> list[str]:
        """Mount sources that contain hidden directories, and hide these directories again. Return the paths
        of the hidden directories."""
        self._show_mounts(shown)
        inside = [path for path in places if any(mounts.contains_any(to, [path]) for _, to, _ in shown)]
        return list(filter(_cover, mounts.outermost(list(filter(mounts.is_directory, inside)))))

    def _show_mounts(self, shown: list[tuple[mounts.Source, str, bool]]) -> None:
        for source, target, frost in shown:
            mounts.make_target(target, source.is_directory)
            (source.lend if frost else source.show)(target)

    def _root_mounts(self) -> list[tuple[str, str, bool]]:
        """Return the mounts that show the file `roots` on the usual path and on each path where the machine
        has such a file."""
        if not self._isolation.roots:
            return []
        files = [roots.PLACE, *filter(os.path.isfile, roots.PLACES)]
        places = dict.fromkeys(map(os.path.realpath, dict.fromkeys(files)))
        return [(self._isolation.roots, path, True) for path in places]

    def _closed_directories(self) -> list[str]:
        """Return the directories above visible paths that the program's user may not search. The caller
        covers each of them with an empty directory, and mounts only the visible paths in it again."""
        if not self._isolation.users:
            return []
        ways = [self._files] + self._read_only + [target for _, target, _ in self._mounts]
        return list(filter(None, map(mounts.first_closed_directory, set(map(os.path.dirname, ways)))))

    def _open_hosts(self) -> mounts.Source | None:
        """Open the program's hosts file, or the machine's if the program has none. Return None if neither
        exists, as on minimal systems."""
        path = self._isolation.hosts or _HOSTS
        return self._open_source(path) if self._isolation.hosts or os.path.exists(path) else None

    def _open_source(self, path: str) -> mounts.Source:
        """Open a source. Called before directories are covered, because its path may lead elsewhere
        afterwards."""
        return mounts.Source(mounts.open_path(path), self._file_owners())

    def _open_own(self, path: str) -> mounts.Source:
        """Open a directory that the program can replace by a link. Links are not followed."""
        handle = mounts.open_path(path, os.O_NOFOLLOW | os.O_DIRECTORY)
        return mounts.Source(handle, self._file_owners())

    def _open_below(self, base: str, names: Sequence[str]) -> mounts.Source:
        """Open a directory below `base`, through directories that programs can replace by links. Links are
        not followed."""
        handle = mounts.open_path(base, os.O_DIRECTORY)
        for name in names:
            try:
                below = mounts.open_path(name, os.O_NOFOLLOW | os.O_DIRECTORY, handle)
            finally:
                os.close(handle)
            handle = below
        return mounts.Source(handle, self._file_owners())

    def _file_owners(self) -> users.Users | None:
        """Return the owners of visible files: all of the program's users, or the only user of an image's
        program."""
        user = self.user[0]
        if self.owners is None or user == 0:
            return self.owners
        if self._file_owner is None:
            self._file_owner = users.Users().map_users(self.owners.first + user, 1)
        return self._file_owner

    # --- an image's file system ---

    def _show_image(self, image: str) -> None:
        self._root = mounts.show_image(image, self._layer, self._scratch, self.owners)
        self.user = user, group, _ = mounts.user_of(self._isolation.image_user, self._root)
        if self.owners is not None and max(user, group) >= users.COUNT:
            text = "the image runs as %d:%d, but a replica only has the users and groups 0 to %d"
            raise OSError(text % (user, group, users.COUNT - 1))
        hosts = self._open_hosts()
        shown = [(self._open_own(source), target, False) for source, target in self._binds]
        shown.append((self._open_source("/sys"), "/sys", True))
        shown += [(self._open_source(source), target, frost) for source, target, frost in self._mounts]
        shown += self._image_roots()
        for source, target, frost in shown:
            place = self._resolve(target)
            mounts.make_target(place, source.is_directory, self.owners)
            if frost:
                source.lend(place)
                kernel.make_read_only(place)
            else:
                source.show(place)
        # Hide directories inside mounts. A directory that is mounted at its own path may contain hidden
        # directories.
        same = [target for source, target, _ in self._mounts if source == target]
        for path in sorted(self._isolation.hidden):
            place = self._resolve(path)
            if any(mounts.contains_any(target, [path]) for target in same) and mounts.is_directory(place):
                _cover(place)
                _seal(place)
        files = [] if hosts is None else [(_HOSTS, hosts)]
        if os.path.exists("/etc/resolv.conf"):
            files.append(("/etc/resolv.conf", self._open_source("/etc/resolv.conf")))
        for path, source in files:
            place = self._resolve(path)
            mounts.make_target(place, directory=False, owners=self.owners)
            source.bind(place)

    def _image_roots(self) -> list[tuple[mounts.Source, str, bool]]:
        """Return the mounts that show the image's own certificates together with `roots`, at each path of
        such a file."""
        shown: list[tuple[mounts.Source, str, bool]] = []
        if (own := self._isolation.roots) is None:
            return shown
        for path in roots.PLACES:
            place = self._resolve(path)
            if path == roots.PLACE or os.path.isfile(place):
                both = os.path.join(self._scratch, "roots-%d.pem" % len(shown))
                with open(both, "wb") as file:
                    file.write(roots.text(place) + b"\n" + roots.text(own))
                shown.append((self._open_source(both), path, True))
        return shown

    # --- views with and without an image ---

    def _resolve(self, target: str) -> str:
        """Return the current path of `target`, a path in the program's view. An image's links cannot leave
        it."""
        return mounts.inside(self._root, target) if self._root else target

    def _mount(self, kind: str, target: str, flags: int, data: str | None = None) -> None:
        place = self._resolve(target)
        mounts.make_directory(place, 0o755)
        kernel.mount(kind, place, kind, flags, data)

    def _add_devices(self, machines: int) -> None:
        """Add the optional devices to the program's /dev. `machines`: descriptor of the machine's /dev,
        closed here."""
        for path in self._isolation.devices:
            _show_device(machines, path.removeprefix("/dev/"))
        # Each program has its own shared memory, so that no data of a killed program remains in it.
        size = ",size=%d" % self._isolation.shm_bytes if self._isolation.shm_bytes else ""
        kernel.mount("tmpfs", "/dev/shm", "tmpfs", mounts.SAFE, "mode=1777" + size)
        for path, target, _ in self._device_mounts:
            handle = mounts.open_path(path.removeprefix("/dev/"), directory=machines)
            source = mounts.Source(handle, None)
            mounts.make_target(target, source.is_directory)
            source.lend(target)
            kernel.make_read_only(target)
        os.close(machines)

    def _show_buckets(self, around: dict[str, int]) -> None:
        """Mount the buckets below /gcs. `around`: descriptors of their parent directories, closed here."""
        if not self._isolation.buckets:
            return
        self._mount("tmpfs", GCS, mounts.SAFE, "mode=755,size=1m")
        gcs = self._resolve(GCS)
        for name, source in self._isolation.buckets:
            place = os.path.join(gcs, name)
            above, own = os.path.split(source)
            try:
                handle = mounts.open_path(own, directory=around[above])
            except FileNotFoundError:
                continue  # Skip a bucket that was deleted after the launch plan was made.
            except OSError as failure:
                raise OSError(failure.errno, failure.strerror, source) from None
            os.mkdir(place, 0o755)
            mounts.Source(handle, self._file_owners()).show(place)
        for handle in around.values():
            os.close(handle)
        kernel.make_read_only(gcs)
        kernel.make_safe(gcs)

    def _add_missing(self, targets: list[str]) -> None:
        """Create the missing directories for mounts, even if the user may not create them on the disk."""
        for target in targets:
            if os.path.isdir(target):
                continue
            try:
                os.mkdir(target, 0o755)
            except OSError:
                mounts.add_entry(os.path.dirname(target), os.path.basename(target), self._scratch)


_STEP = re.compile(rb"_(?<=[^/]_)\d+\.\d+\Z")
"""Pattern of a Slurm step's socket: its path ends with NODE_JOB.STEP."""


def slurm_step_directories() -> set[str]:
    """Return the directories of the sockets of Slurm steps (SlurmdSpoolDir). Every user can list these
    sockets. Through them, a step obeys every process with its user ID; without root, programs have that
    ID."""
    # The eighth column is the path, which may contain spaces.
    lines = filter(_STEP.search, processes.read("/proc/net/unix").splitlines())
    steps = {row[7] for row in (line.split(None, 7) for line in lines) if len(row) > 7}
    return {os.path.dirname(path) for path in map(os.fsdecode, steps) if _is_private_socket(path)}


def _is_private_socket(path: str) -> bool:
    """Whether a path is a socket in a directory that only its owner can write to. In other directories, any
    user could create such a socket. The owner cannot be checked, because root appears as nobody in a user
    namespace."""
    try:
        status, around = os.lstat(path), os.lstat(os.path.dirname(path))
    except OSError:
        return False
    is_alone = not around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISSOCK(status.st_mode) and is_alone and status.st_uid == around.st_uid


def _cover(path: str) -> bool:
    """Mount an empty directory over `path`. Returns False if `path` no longer exists."""
    with contextlib.suppress(FileNotFoundError):
        kernel.mount("tmpfs", path, "tmpfs", mounts.SAFE, "mode=755,size=64k")
        return True
    return False


def _seal(path: str) -> None:
    """Make a cover read-only, unless the cover vanished with the directory below it. Raises OSError."""
    try:
        kernel.make_read_only(path)
    except OSError as error:
        # ENOENT: the directory was removed. EINVAL: its cover vanished, so the directory is being removed. In
        # the second case, raise the error only if the directory still exists or exists again.
        if error.errno != errno.ENOENT and (error.errno != errno.EINVAL or _cover(path)):
            raise


_HARMLESS = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)


def own_devices() -> int:
    """Mount a program's /dev with harmless devices over the machine's /dev. Return a file descriptor of the
    machine's /dev. Raises OSError."""
    machines = mounts.open_path("/dev", os.O_DIRECTORY)
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID, "mode=755,size=64k")
    for name in _HARMLESS:
        _show_device(machines, name)
    for name, target in _LINKS:
        os.symlink(target, "/dev/" + name)
    os.mkdir("/dev/pts")
    terminals = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "/dev/pts", "devpts", terminals, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir("/dev/shm")
    return machines


def _show_device(machines: int, name: str) -> None:
    """Add a device file of the machine's /dev (`machines`), unless it is missing. Raises OSError."""
    try:
        handle = mounts.open_path(name, directory=machines)
    except OSError:
        return
    target = os.path.join("/dev", name)
    mounts.make_target(target, directory=False)
    kernel.bind("/proc/self/fd/%d" % handle, target)
    os.close(handle)
