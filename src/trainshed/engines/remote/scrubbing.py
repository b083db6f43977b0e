"""Leaves nothing of an attempt in what its agent has for itself, a Pod, before another attempt begins there
(docs/adr/0126).

Nothing but the agent's process survives. Places that everybody may write to are emptied. All else has to be
as it was when the agent began: a file that was changed has a younger time of change, which no program can set
back. What cannot be undone is not tried: the place is unclean, and is given up.
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
    """Something is left that cannot be removed, or told from what was there. The message says what."""


class _Mount(Struct, frozen=True):
    path: str
    system: str
    is_read_only: bool


class Scrubber:
    """`document`: of an agent that is `alone`. `directory`: the agent's own. `begun`: when the agent was, in
    seconds since the epoch."""

    def __init__(self, document: AgentDocument, directory: Path, begun: float) -> None:
        self._root = document.alone
        self._since = begun - _COARSE
        self._own = str(directory)
        self._layout = Layout(directory)
        self._hosts = MachineHosts(document.hosts_file) if document.hosts_file else None
        #: Where agents of one place have their directories; where they keep what they were sent.
        self._agents = document.directory
        self._spared = set(document.kept)
        self._mounts = tuple(_mounts(self._root))
        self._temporary = {self._below(name) for name in _TEMPORARY}
        #: What there was before the first program, by place.
        self._before = {place: set(self._old(place)) for place in self._temporary}
        self._given = {path: _mark(path) for path in self._given_files()}
        self._begun_hosts = self._hosts.begun() if self._hosts else ""
        self._ours = self._own_files()

    def end_processes(self) -> None:
        """All but this one. Blocks. Raises Unclean."""
        if os.getpid() != 1:
            raise Unclean("its process is not the first one there")
        until = time.monotonic() + _END_SECONDS
        while True:
            # Of all at once, so that none is made meanwhile that outlives it.
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
        """It is to go before programs when memory runs out, as the one before it did."""
        # It ends already, or the system has no such thing.
        with contextlib.suppress(OSError):
            Path(f"/proc/{zygote}/oom_score_adj").write_text(_OOM_SCORE)

    def clear(self) -> None:
        """What is left of files. Blocks. Raises Unclean, OSError."""
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
        # There is none, or it is another user's.
        with contextlib.suppress(OSError):
            os.truncate(self._below(_LAST_WORDS), 0)

    def _require_no_shared_memory(self) -> None:
        for kind in ("shm", "sem", "msg"):
            path = Path(self._below(f"proc/sysvipc/{kind}"))
            if path.exists() and len(path.read_text().splitlines()) > 1:
                raise Unclean(f"there is shared memory, or the like, of System V ({kind})")

    # --- what is as it was ---

    def _changed(self) -> Iterator[str]:
        """Whatever is younger than this agent, but for what may be."""
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
        """What of its own directory no attempt changes."""
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
        """Mounted by themselves, such as the names of a Pod's DNS servers."""
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
    """Those below it that hold files."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    for line in lines.splitlines():
        here, _, there = line.partition(" - ")
        fields, (system, *_) = here.split(), there.split()
        path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        is_below = path != root and Path(path).is_relative_to(root)
        if is_below:
            yield _Mount(path, system, system in _SYSTEMS or "ro" in fields[5].split(","))


def _entries(directory: str) -> Iterator["os.DirEntry[str]"]:
    """None of one that is not there, or that is closed to this user, who has changed nothing in it then."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return


def _mark(path: str) -> object:
    """What of a file is another thing once it was changed; of a directory which one it is."""
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
    """Those that have ended: what their parents left is this process's."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _lives(process: int) -> bool:
    return processes.stat(process)[:1] not in ([], [b"Z"], [b"X"])
