"""Cleans an agent's own Pod of everything that an attempt left, before another attempt begins there
(docs/adr/0126).

All processes but the agent's are killed, and directories that everybody may write to are emptied. Everything
else has to be as it was when the agent began: a changed file has a later ctime, which no program can set
back. Other changes are not undone: the place is unclean, and is given up.
"""

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from trainshed.engines.local.hosts_file import MachineHosts
from trainshed.engines.local.layout import Layout
from trainshed.engines.remote.messages import AgentDocument
from trainshed.replica.system import processes, trees

_TEMPORARY = ("tmp", "var/tmp", "dev/shm", "dev/mqueue")
_LAST_WORDS = "dev/termination-log"
"""What a kubelet tells of a Pod's end is written there."""
_SYSTEMS = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "devpts", "bpf", "tracefs", "debugfs", "securityfs"}
)
"""File systems that hold no files."""
_COARSE = 0.01
"""Seconds by which files' times may be behind the clock."""
_END_SECONDS = 5.0
_MOST_FILES = 300_000
"""Of which it is looked whether they were changed: that takes some two seconds."""
_OOM_SCORE = "300"
"""As `remote.start` has it."""
_DEVICES = (stat.S_IFCHR, stat.S_IFBLK)


class Unclean(Exception):
    """Something is left that cannot be removed, or cannot be told from what was there before. The message
    says what."""


class _Mount(Struct, frozen=True):
    path: str
    system: str
    is_read_only: bool


class Scrubber:
    """Cleans one agent's place. `document`: of an agent that is `alone`. `directory`: the agent's own.
    `begun`: start of the agent in seconds since the epoch."""

    def __init__(self, document: AgentDocument, directory: Path, begun: float) -> None:
        self._root = document.alone
        self._since = begun - _COARSE
        self._own = str(directory)
        self._layout = Layout(directory)
        self._hosts = MachineHosts(document.hosts_file) if document.hosts_file else None
        #: Parent directory of agents' directories; directories of content that they were sent.
        self._agents = document.directory
        self._spared = set(document.kept)
        self._mounts = tuple(_mounts(self._root))
        self._temporary = {self._below(name) for name in _TEMPORARY}
        #: Entries of each temporary directory before the first program.
        self._before = {place: set(self._old(place)) for place in self._temporary}
        self._given = {path: _mark(path) for path in self._given_files()}
        self._begun_hosts = self._hosts.begun() if self._hosts else ""
        self._ours = self._own_files()

    def end_processes(self) -> None:
        """Kill all processes but this one. Blocks. Raises Unclean."""
        if os.getpid() != 1:
            raise Unclean("its process is not the first one there")
        until = time.monotonic() + _END_SECONDS
        while True:
            # kill(-1) kills all at once, so that none can fork a survivor meanwhile.
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                raise Unclean("processes of other users run there") from None
            _reap()
            others = [one for one in processes.parents() if one != 1 and _lives(one)]
            if not others:
                return
            if time.monotonic() > until:
                raise Unclean(f"process {others[0]} does not end")
            time.sleep(0.002)

    def spare(self, zygote: int) -> None:
        """Set the zygote's OOM score like that of the one before it."""
        # It is ending already, or the system has no OOM scores.
        with contextlib.suppress(OSError):
            Path(f"/proc/{zygote}/oom_score_adj").write_text(_OOM_SCORE)

    def clear(self) -> None:
        """Remove the files that are left. Blocks. Raises Unclean, OSError."""
        self._require_no_shared_memory()
        layout = self._layout
        for directory in (layout.trash, layout.slots, layout.logs, layout.autopsies):
            for entry in _entries(str(directory)):
                if directory is layout.trash or not entry.name.startswith("."):
                    _remove(entry.path)
        for place in self._temporary:
            for entry in _entries(place):
                if entry.name not in self._before[place]:
                    _remove(entry.path)
        self._reset_files()
        if self._own_files() != self._ours:
            raise Unclean(f"files of the agent were changed in {self._own}")
        for path in self._changed():
            raise Unclean(f"{path} was changed, or made")

    def _reset_files(self) -> None:
        if self._hosts is not None and self._hosts.begun(whole=True) != self._begun_hosts:
            self._hosts.reset(self._begun_hosts)
        for path, mark in self._given.items():
            if _mark(path) != mark:
                raise Unclean(f"{path} was changed")
        # It does not exist, or is another user's.
        with contextlib.suppress(OSError):
            os.truncate(self._below(_LAST_WORDS), 0)

    def _require_no_shared_memory(self) -> None:
        for kind in ("shm", "sem", "msg"):
            path = Path(self._below(f"proc/sysvipc/{kind}"))
            if path.exists() and len(path.read_text().splitlines()) > 1:
                raise Unclean(f"there is shared memory, or the like, of System V ({kind})")

    # --- what is as it was ---

    def _changed(self) -> Iterator[str]:
        """Yield the files that have changed since the agent began and must not have."""
        skipped = {self._own, self._agents, *self._spared, *self._given, self._below(_LAST_WORDS)}
        if self._hosts is not None:
            skipped.add(os.fspath(self._hosts.path))
        places = [self._root] + [
            mount.path
            for mount in self._mounts
            if not mount.is_read_only and Path(mount.path).is_dir()
        ]
        skipped |= {mount.path for mount in self._mounts}
        left = _MOST_FILES
        stack = [place for place in places if place not in self._spared]
        if Path(self._agents).is_relative_to(self._root):
            stack.append(self._agents)
        if self._is_young(os.lstat(self._root)):
            yield self._root
        while stack:
            place = stack.pop()
            for entry in _entries(place):
                left -= 1
                if entry.path in skipped or entry.path in self._temporary:
                    if entry.path in self._temporary:
                        stack.append(entry.path)
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_IFMT(status.st_mode) in _DEVICES:
                    continue
                if self._is_young(status):
                    yield entry.path
                if stat.S_ISDIR(status.st_mode):
                    stack.append(entry.path)
            if left < 0:
                raise Unclean(f"there are more than {_MOST_FILES:,} files")

    def _own_files(self) -> dict[str, object]:
        """Return marks of the agent's own files, which no attempt may change."""
        layout = self._layout
        changing = {str(one) for one in (layout.slots, layout.logs, layout.autopsies)}
        found: dict[str, object] = {}
        stack = [self._own]
        while stack:
            for entry in _entries(stack.pop()):
                if entry.path not in changing:
                    found[entry.path] = _mark(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
        return found

    def _given_files(self) -> Iterator[str]:
        """Yield files that are mounted singly, such as a Pod's resolv.conf."""
        own = {os.fspath(self._hosts.path)} if self._hosts is not None else set[str]()
        for mount in self._mounts:
            is_file = Path(mount.path).is_file() and mount.path != self._below(_LAST_WORDS)
            if is_file and mount.path not in own:
                yield mount.path

    def _old(self, place: str) -> Iterator[str]:
        for entry in _entries(place):
            if not self._is_young(entry.stat(follow_symlinks=False)):
                yield entry.name

    def _is_young(self, status: os.stat_result) -> bool:
        return status.st_ctime > self._since

    def _below(self, name: str) -> str:
        return str(Path(self._root, name))


def _mounts(root: str) -> Iterator[_Mount]:
    """Yield the mounts below a directory that contain files."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    for line in lines.splitlines():
        here, _, there = line.partition(" - ")
        fields, (system, *_) = here.split(), there.split()
        path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        is_below = path != root and Path(path).is_relative_to(root)
        if is_below:
            yield _Mount(path, system, system in _SYSTEMS or "ro" in fields[5].split(","))


def _entries(directory: str) -> Iterator["os.DirEntry[str]"]:
    """Yield a directory's entries; none if it does not exist, or is closed to this user, who then cannot have
    changed it."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return


def _mark(path: str) -> object:
    """Return a mark of a file that changes with its content, or of a directory that identifies it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    changed = 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
    return status.st_ino, status.st_mode, changed


def _remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        trees.delete(path)
    else:
        Path(path).unlink()
    if os.path.lexists(path):
        raise Unclean(f"{path} cannot be removed")


def _reap() -> None:
    """Reap ended processes, since orphans become this process's children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _lives(process: int) -> bool:
    return processes.stat(process)[:1] not in ([], [b"Z"], [b"X"])
