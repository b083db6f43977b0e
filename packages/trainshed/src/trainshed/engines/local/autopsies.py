"""Autopsies keep the files of failed replicas for some time after the release of their slots, so that users
can inspect them.

One rename moves a slot's whole directory: its files, its journal with the attempt record, and its launch
document without secrets. So a crash during the release loses nothing. Autopsies are in
`<data>/autopsies/<job_uid>/<attempt>/<replica>/`, where a restarted service finds them.
"""

import asyncio
import contextlib
import json
import logging
import os
import shlex
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainshed.access.redaction import redact, redact_texts
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import Autopsy, TerminalRefused, TerminalRequest
from trainshed.engines.launch.documents import PROGRAM_PORT
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.local.terminals import LocalTerminal, receive_handle, shell_order
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import Crew
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal, shells
from trainshed.replica.system import durable, trees
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

Key = tuple[JobUid, int, ReplicaId]

PLAN = "plan.json"
"""Name of a file in a replica's directory: the launch document (the shim's input) of the latest run
(incarnation), without secrets, and the path of its files. The file's modification time is the autopsy's
creation time."""
_NO_SUCH = "no files of this replica are kept; `trainshed jobs describe JOB` lists the autopsies"
_GPUS = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
MAX_BYTES = 10 << 30
"""Maximum total size of all autopsies (kept files of failed replicas), in bytes. If it is exceeded, the
oldest autopsies are deleted first."""
MAX_AUTOPSIES = 1000
"""Maximum number of autopsies (kept files of failed replicas). If it is exceeded, the oldest ones are deleted
first. Each autopsy reserves user IDs, which replicas cannot get."""
_ADDRESS = "127.63.0.2"
"""Network address of the shells in all autopsies (kept files of failed replicas). Running replicas may have
the original addresses of the failed replicas by now."""
_HOUR = 3600.0
_RUNTIME_FIELDS = (
    *("storage_socket", "rest_socket", "grpc_socket", "identity", "certificate", "roots", "masked"),
    *("cluster_port", "devices", "preloader"),
    *("stall_after", "watch_metrics", "reducers"),
)
"""Fields of a launch document that are useless or confidential after the end of its program."""


class Autopsies:
    """Keeps the autopsies (files of failed replicas) of one engine, and opens shells in them. `ttl`: how long
    to keep an autopsy, in nanoseconds; None = keep none. `swept`: called after files were moved to the trash.
    `now`: the clock, in nanoseconds since the epoch."""

    def __init__(
        self,
        layout: Layout,
        ttl: int | None,
        now: Callable[[], int],
        swept: Callable[[], None],
        spawner: Spawner,
    ) -> None:
        self._root = layout.autopsies
        self._trash = layout.trash
        self._ttl = ttl
        self._now = now
        self._swept = swept
        self._spawner = spawner
        self._kept: dict[Key, Autopsy] = {}
        #: The first user ID of each autopsy (kept files of a failed replica) that has its own users. While
        #: the autopsy exists, no replica may have this ID: the replica's endpoint would treat a shell in the
        #: autopsy as one of its own processes.
        self.users: dict[Key, int] = {}
        #: Number of open shells, for each autopsy (kept files of a failed replica) that has any.
        self._open: Counter[Key] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Crew()
        #: Held while the disk usage of one autopsy (kept files of a failed replica) is measured. Only one
        #: measurement runs at a time, because other tasks need threads of the same pool.
        self._measuring = asyncio.Lock()

    async def start(self) -> None:
        """Find the autopsies (kept files of failed replicas) of earlier services, and delete the expired
        ones."""
        for key, directory in await asyncio.to_thread(lambda: list(self._find_directories())):
            self._adopt(key, directory)
        self._tidy()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    async def note(self, started: Mapping[Path, protocol.Message]) -> None:
        """Store the launch documents (the inputs of shims) of programs that were started, by the replica's
        directory. If a program fails, its autopsy (kept files) needs this document. The documents contain no
        secrets, because only this process may know them. If the service is killed before this call, the
        programs get no autopsies."""
        if self._ttl:
            await asyncio.to_thread(_note, started)

    def keep(self, job_uid: JobUid, attempt: int, failed: Mapping[ReplicaId, Path]) -> None:
        """Keep the files of an attempt's failed replicas: turn their directories into autopsies. The caller
        then deletes the directories of the other replicas. No process of the attempt is alive. `failed`:
        directory of each failed replica."""
        if not self._ttl or not failed:
            return
        for replica, slot in failed.items():
            if not (slot / PLAN).exists():
                continue
            key = job_uid, attempt, replica
            directory = self._directory(key)
            try:
                # All replicas of the gang share the hosts file, so keep a link to it.
                with contextlib.suppress(OSError):
                    os.link(slot.parent / protocol.HOSTS, slot / protocol.HOSTS)
                directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.utime(slot / PLAN, ns=(self._now(), self._now()))
                slot.rename(directory)
            except OSError as error:
                subject = about(log, job_uid, attempt=attempt, replica=replica)
                subject.warning("autopsy not kept: %s", error)
            else:
                self._adopt(key, directory)
        self._tidy()

    def of(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        return tuple(self._kept[key] for key in sorted(self._kept) if key[0] == job_uid)

    async def open(self, key: Key, request: TerminalRequest, level: str) -> LocalTerminal:
        """Open a shell in an autopsy, the kept files of a failed replica. The autopsy does not expire while
        the shell is open. `level`: the machine's current isolation level. Raises TerminalRefused if the
        autopsy does not exist, if it has too many open shells, or if the shell cannot be started."""
        if (autopsy := self._kept.get(key)) is None:
            raise TerminalRefused(_NO_SUCH)
        if self._open[key] >= shells.MAX_SHELLS:
            raise TerminalRefused(
                f"the autopsy already has {shells.MAX_SHELLS} open shells; close one of them"
            )
        directory = self._directory(key)
        message = {
            "autopsy": True,
            "slot": str(directory),
            "plan": _document(directory, level, request),
            "shell": shell_order(request),
        }
        self._open[key] += 1
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    await self._spawner.request(message, theirs)
                except EngineUnavailable as failure:
                    ours.close()
                    raise TerminalRefused(str(failure)) from failure
            greeting = banner(autopsy) if request.is_terminal and not request.command else ""
            return LocalTerminal(
                ours,
                await receive_handle(ours),
                is_terminal=request.is_terminal,
                greeting=greeting.replace("\n", "\r\n").encode(),
                closed=lambda: self._handle_closed_shell(key),
            )
        except BaseException:
            self._handle_closed_shell(key)
            raise

    def delete(self, key: Key) -> bool:
        """Delete an autopsy, the kept files of a failed replica; return whether it existed. Raises
        TerminalRefused if a shell is open in it."""
        if key in self._open:
            raise TerminalRefused("a shell is open in the autopsy; close the shell first")
        return self._discard(key)

    def _handle_closed_shell(self, key: Key) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
            self._tidy()

    def _discard(self, key: Key) -> bool:
        if self._kept.pop(key, None) is None:
            return False
        # A shell that was just closed may still be terminating its processes, so reserve the user IDs a
        # little longer.
        asyncio.get_running_loop().call_later(2 * shells.GRACE, self.users.pop, key, None)
        directory = self._directory(key)
        with contextlib.suppress(FileNotFoundError):
            directory.rename(self._trash / uuid.uuid4().hex)
        for parent in (directory.parent, directory.parent.parent):
            # Remove the empty directories of the attempt and the job. The call fails for a directory that
            # contains the files of other replicas.
            with contextlib.suppress(OSError):
                parent.rmdir()
        self._swept()
        return True

    def _directory(self, key: Key) -> Path:
        job_uid, attempt, replica = key
        return self._root / str(job_uid) / str(attempt) / str(replica)

    def _find_directories(self) -> Iterable[tuple[Key, Path]]:
        for directory in self._root.glob("*/*/*"):
            job, attempt = directory.parent.parent.name, directory.parent.name
            with contextlib.suppress(ValueError):
                key = JobUid(int(job)), int(attempt), ReplicaId.parse(directory.name)
                if (directory / PLAN).exists():
                    yield key, directory

    def _adopt(self, key: Key, directory: Path) -> None:
        kept = (directory / PLAN).stat().st_mtime_ns
        plan = (durable.read_document(str(directory / PLAN)) or {}).get("plan", {})
        entries = journal.Entries(str(directory))
        unknown = journal.lost_record("nothing more is known of it")
        record = entries.record(entries.latest) or unknown
        self._kept[key] = Autopsy(
            *key,
            incarnation=entries.latest,
            kept=kept,
            expires=kept + (self._ttl or 0),
            exit_code=record.get("exit_code"),
            signal=record.get("signal"),
            oom=record.get("oom", False),
            lost=record.get("lost"),
            tail=record.get("tail", ""),
            argv=tuple(plan.get("argv", ())),
        )
        if users := plan.get("users"):
            self.users[key] = users[0]
        what = f"job {key[0]}: measuring the files of {key[2]}"
        self._tasks.begin(self._measure_size(key, directory), what)

    async def _measure_size(self, key: Key, directory: Path) -> None:
        size = 0
        # The autopsy (a failed replica's kept files) is complete without its size, which is needed only for
        # the limit.
        async with self._measuring:
            with contextlib.suppress(OSError):
                tree = trees.TreeSize(str(directory))
                # Measure in short steps, because the service cannot stop during a step.
                while not await asyncio.to_thread(tree.measure, 0.1):
                    pass
                size = tree.found
        if (autopsy := self._kept.get(key)) is not None:
            self._kept[key] = replace(autopsy, size=size)
            self._tidy()

    def _tidy(self) -> None:
        """Delete the expired autopsies (kept files of failed replicas). If the rest exceeds the limits,
        delete the oldest ones."""
        now = self._now()
        ours = sorted(self._kept.items(), key=lambda item: item[1].kept)
        ours = [(key, autopsy) for key, autopsy in ours if key not in self._open]
        total = sum(autopsy.size or 0 for autopsy in self._kept.values())
        spare = len(self._kept) - MAX_AUTOPSIES
        for number, (key, autopsy) in enumerate(ours):
            if autopsy.expires <= now or total > MAX_BYTES or number < spare:
                total -= autopsy.size or 0
                self._discard(key)
        if self._timer is not None:
            self._timer.cancel()
        # Autopsies (kept files of failed replicas) with open shells do not expire. They are checked again
        # when the shells close.
        ends = [autopsy.expires for key, autopsy in self._kept.items() if key not in self._open]
        if ends:
            # The clock may be set, and the machine may be suspended. So check at least once an hour.
            pause = min(max((min(ends) - now) / 1e9, 1.0), _HOUR)
            self._timer = asyncio.get_running_loop().call_later(pause, self._tidy)


def _note(started: Mapping[Path, protocol.Message]) -> None:
    for slot, document in started.items():
        text = json.dumps({"files": str(slot / protocol.FILES), "plan": _without_secrets(document)})
        # If an error such as a full disk occurs, the files are not kept (no autopsy), but the program runs.
        with contextlib.suppress(OSError):
            durable.write(str(slot / PLAN), text, sync=False)


def _without_secrets(document: protocol.Message) -> protocol.Message:
    # Mask the longest text first, because a text may be a part of another one.
    masked: list[str] = sorted(document.get("masked", ()), key=len, reverse=True)
    environ: dict[str, str] = document["environ"]
    secret = {name for name, value in environ.items() if any(text in value for text in masked)}
    kept = {name: value for name, value in document.items() if name not in _RUNTIME_FIELDS}
    return kept | {
        "environ": redact(environ, secret),
        "argv": [redact_texts(argument, masked) for argument in document["argv"]],
    }


def banner(autopsy: Autopsy) -> str:
    until = datetime.fromtimestamp(autopsy.expires / 1e9, UTC)
    which = f", attempt {autopsy.attempt}" if autopsy.attempt > 1 else ""
    lines = [
        f"{autopsy.replica}{which} after its end: {autopsy.end_text}. None of its processes runs. Its "
        "environment contains no secrets.",
        f"Command: {shlex.join(autopsy.argv)}" if autopsy.argv else "",
        f"Kept until {until:%Y-%m-%d %H:%M} UTC. Your changes here remain until then.",
    ]
    if tail := autopsy.tail.rstrip():
        # Remove control characters, which would affect the terminal.
        shown = (c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in tail)
        last = "".join(shown).splitlines()[-10:]
        lines += ["The last lines of its log:", *(f"  {line}" for line in last)]
    return "".join(f"{line}\n" for line in lines if line) + "\n"


def _document(directory: Path, level: str, request: TerminalRequest) -> protocol.Message:
    """Turn a failed program's launch document into a document for a sandbox without a program, in which a
    shell runs. Raises TerminalRefused if the document is missing, or if its isolation level is not available.
    """
    capture = durable.read_document(str(directory / PLAN))
    if capture is None:
        raise TerminalRefused("the launch plan of the replica is lost; read its log instead")
    plan: dict[str, Any] = dict(capture["plan"])
    files, now = str(capture["files"]), str(directory / protocol.FILES)
    namespaced = level != protocol.LEVEL_SESSION
    if not namespaced and plan["level"] != level:
        raise TerminalRefused("the replica ran in namespaces, which this machine no longer allows")
    hosts = directory / protocol.HOSTS
    if not hosts.exists():
        hosts.write_text("127.0.0.1\tlocalhost\n", "utf-8")
        hosts.chmod(0o644)
    plan |= {
        "argv": [],
        "level": level,
        "hosts": str(hosts),
        "logs": "",
        "buckets": request.buckets if namespaced else (),
        # With an address and a port, its socket calls are filtered like those of its program.
        "address": _ADDRESS,
        "cluster_port": PROGRAM_PORT,
        # Use a new control group: the replica's next attempt, or another shell, may be running.
        "cgroup_name": f"{plan['cgroup_name']}-autopsy-{uuid.uuid4().hex[:8]}",
        # A shell gets no GPUs, so its variables for GPUs are empty.
        "environ": plan["environ"] | dict.fromkeys(plan["environ"].keys() & _GPUS, ""),
        # Omit mounts from the attempt's own directory, which is deleted.
        "mounts": [mount for mount in plan.get("mounts", ()) if Path(mount[0]).exists()],
    }
    if namespaced and not plan.get("image"):
        # Show the files at the same paths as for the program, because environments and caches contain their
        # own paths.
        plan["mounts"] = [*plan["mounts"], [now, files, False]]
        plan["directory"] = plan.get("directory") or f"{files}/work"
    elif not namespaced:
        plan["environ"] = {n: value.replace(files, now) for n, value in plan["environ"].items()}
    return plan
