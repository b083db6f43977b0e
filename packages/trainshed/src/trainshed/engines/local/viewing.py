"""Opens shells in the files of failed replicas: it composes the document of a sandbox without a program, and
the shell's greeting."""

import contextlib
import shlex
import socket
import uuid
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainshed.core.terminals import Autopsy, TerminalRequest
from trainshed.engines.local import autopsy_files
from trainshed.engines.local.autopsies import PLAN, REPORT, Autopsies, Key
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.local.terminals import LocalTerminal, shell_order, taken
from trainshed.engines.port import EngineUnavailable
from trainshed.engines.terminals import TerminalRefused
from trainshed.replica import protocol
from trainshed.replica.system import durable

_NO_SUCH = "nothing is kept of it; `trainshed jobs describe JOB` says what is"


class Viewer:
    """Gives access to the kept autopsies."""

    def __init__(self, autopsies: Autopsies, spawner: Spawner) -> None:
        self._autopsies = autopsies
        self._spawner = spawner

    async def open(self, key: Key, request: TerminalRequest, level: str) -> LocalTerminal:
        """Open a shell in an autopsy. `level`: the machine's current sandbox level. Raises
        TerminalRefused."""
        autopsy, directory = self._found(key)
        document = _document(directory, level)
        message = {
            "autopsy": True,
            "slot": str(directory),
            "plan": document.to_message(),
            "shell": shell_order(request),
        }
        self._autopsies.opened(key)
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    await self._spawner.request(message, theirs)
                except EngineUnavailable as failure:
                    ours.close()
                    raise TerminalRefused(str(failure)) from failure
            greeting = banner(autopsy) if request.is_terminal and not request.command else ""
            return await taken(
                ours,
                is_terminal=request.is_terminal,
                greeting=greeting.replace("\n", "\r\n").encode(),
                closed=lambda: self._autopsies.closed(key),
            )
        except BaseException:
            self._autopsies.closed(key)
            raise

    async def files(self, key: Key) -> AsyncGenerator[bytes]:
        """As the port says."""
        _, directory = self._found(key)
        self._autopsies.opened(key)
        try:
            packed = autopsy_files.archive(directory / protocol.FILES, directory / REPORT)
            async with contextlib.aclosing(packed):
                async for chunk in packed:
                    yield chunk
        finally:
            self._autopsies.closed(key)

    def delete(self, key: Key) -> bool:
        """As the port says."""
        if self._autopsies.is_open(key):
            raise TerminalRefused(
                "a shell is open in it, or its files are being copied; end that first"
            )
        return self._autopsies.discard(key)

    def _found(self, key: Key) -> tuple[Autopsy, Path]:
        """Return an autopsy with its directory. Raises TerminalRefused if there is none."""
        if (kept := self._autopsies.get(key)) is None:
            raise TerminalRefused(_NO_SUCH)
        return kept


def banner(autopsy: Autopsy) -> str:
    """Return the greeting of a shell in an autopsy."""
    until = datetime.fromtimestamp(autopsy.expires / 1e9, UTC)
    which = f", attempt {autopsy.attempt}" if autopsy.attempt > 1 else ""
    lines = [
        f"{autopsy.replica}{which} as it was left: {autopsy.how}. Nothing of it runs; its environment is "
        "without secrets.",
        f"It ran:  {shlex.join(autopsy.argv)}" if autopsy.argv else "",
        f"Kept until {until:%Y-%m-%d %H:%M} UTC. What is changed here stays until then.",
    ]
    if tail := autopsy.tail.rstrip():
        lines += [
            "The end of its log:",
            *(f"  {line}" for line in printable(tail).splitlines()[-10:]),
        ]
    return "".join(f"{line}\n" for line in lines if line) + "\n"


def printable(text: str) -> str:
    """Return a program's text without the control characters that a terminal would obey."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _document(directory: Path, level: str) -> protocol.LaunchDocument:
    """Turn the document by which the program was started into one of a sandbox without a program. Raises
    TerminalRefused."""
    capture = durable.read_document(str(directory / PLAN))
    if capture is None:
        raise TerminalRefused("how it was started is not known any more")
    plan: dict[str, Any] = dict(capture["plan"])
    files, now = str(capture["files"]), str(directory / protocol.FILES)
    namespaced = level != protocol.LEVEL_SESSION
    if not namespaced and plan["level"] != level:
        raise TerminalRefused("it ran in namespaces, which this machine does not allow any more")
    hosts = directory / protocol.HOSTS
    if not hosts.exists():
        hosts.write_text("127.0.0.1\tlocalhost\n", "utf-8")
        hosts.chmod(0o644)
    plan |= {
        "argv": [],
        "level": level,
        "hosts": str(hosts),
        "logs": "",
        "python_template": "",
        # It gets its own control group: the replica's next attempt, or another shell, may be running.
        "cgroup_name": f"{plan['cgroup_name']}-autopsy-{uuid.uuid4().hex[:8]}",
        "stall_after": 0.0,
        "watch_metrics": False,
        "reducers": 0,
        "preloader": "",
        # The devices may be another replica's by now.
        "devices": [],
        "environ": _without_company(plan),
        # Mounts from the attempt's own directory went with the attempt.
        "mounts": [mount for mount in plan.get("mounts", ()) if Path(mount[0]).exists()],
    }
    if namespaced and not plan.get("image"):
        # The files appear where the program had them, because environments and caches contain their own
        # paths.
        plan["mounts"] = [*plan["mounts"], [now, files, False]]
        plan["directory"] = plan.get("directory") or f"{files}/work"
    elif not namespaced:
        plan["environ"] = {n: value.replace(files, now) for n, value in plan["environ"].items()}
    return protocol.LaunchDocument.from_message(plan)


def _without_company(plan: dict[str, Any]) -> dict[str, str]:
    """Return the environment without the variables that lead to GPUs and to the replica's own endpoint, which
    nothing serves any more."""
    environ: dict[str, str] = plan["environ"]
    endpoint = f"{plan['address']}:{plan.get('storage_port', 0)}"
    kept = {name: value for name, value in environ.items() if endpoint not in value}
    gpus = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    return kept | {name: "" for name in gpus if name in kept}
