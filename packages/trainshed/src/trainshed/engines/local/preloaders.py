"""Runs the preloaders of one engine. A preloader is a Python process that has imported frameworks and forks
programs. Each preloader serves the programs of one runtime and one project that have the same values of
variables such as OMP_NUM_THREADS.

A preloader is started for the first program, and serves the programs after it (docs/adr/0083).
`trainshed.replica.preloader` is the preloader's own part. No request waits: a program whose preloader is not
ready starts cold. A preloader exits when it is idle, or when the service exits.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from trainshed.core import warm_start
from trainshed.core.launch import LaunchPlan
from trainshed.engines.launch.documents import SANE_PATH, HostFacts
from trainshed.eventloop.background import begin
from trainshed.replica import protocol
from trainshed.replica.preloader import START
from trainshed.replica.system import listening

log = logging.getLogger(__name__)

_SOURCE: Final = str(Path(__file__).resolve().parents[3])
_MAX_PRELOADERS: Final = 4
"""Maximum number of preloaders. Each uses the memory of its frameworks, about 150 MB for PyTorch."""
_IMPORT_TIMEOUT: Final = 300.0
"""Seconds to wait for a preloader to become ready."""
_EXIT_TIMEOUT: Final = 5.0


class _Key(Struct, frozen=True):
    """The properties that all programs of a preloader share. Projects have separate preloaders, because all
    forks of a preloader have the same memory layout and hash seed."""

    project: str
    runtime: str
    modules: tuple[str, ...]
    #: Values of the variables that an import may read.
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        text = json.dumps([self.project, self.runtime, self.modules, self.environ])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Preloader(Struct):
    """A preloader, or the reason why none is running."""

    is_ready: bool = False
    #: The imported modules, in a human-readable form.
    modules: str = ""
    #: The reason why no preloader is running, as a clause; None = it is running or starting.
    refusal: str | None = None
    task: "asyncio.Task[None] | None" = field(default=None)


class Preloaders:
    """Runs the preloaders of an engine. `directory`: directory of their sockets. `idle`: seconds without a
    program after which a preloader exits; None = no preloaders."""

    def __init__(self, directory: Path, idle: float | None) -> None:
        self._directory = directory
        self._idle = idle
        self._found: dict[_Key, _Preloader] = {}

    def warm_start(self, plan: LaunchPlan, host: HostFacts, environ: Mapping[str, str]) -> protocol.WarmStart:
        """Return the settings of a program's warm start, or those of a cold start if no preloader can serve
        it. `environ`: the program's whole environment."""
        warm, template = plan.warm, plan.software.template
        assert warm is not None
        if warm.runtime is None or template is None:
            why = warm.cold_because
        elif not host.has_namespaces:
            why = "isolation level session gives it a private copy of Python"
        elif self._idle is None:
            why = "nodes of a cluster have no preloaded frameworks"
        elif names := warm_start.differing(environ):
            names = ", ".join(names)
            why = f"{names}: an import may read that, and the preloader imported without it"
        else:
            own = warm_start.own_values(environ)
            key = _Key(plan.account.project, warm.runtime, warm.modules, own)
            preloader = self._found.get(key)
            if preloader is not None and preloader.is_ready:
                place, preloaded = str(self._socket(key)), preloader.modules
                return protocol.WarmStart(place, template, preloaded)
            if preloader is None:
                why = self._start_preloader(key)
            else:
                why = preloader.refusal or "its frameworks are still being imported"
        return protocol.WarmStart(cold_because=why)

    async def close(self) -> None:
        """End all preloaders. Their programs continue."""
        tasks = [preloader.task for preloader in self._found.values() if preloader.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _socket(self, key: _Key) -> Path:
        return self._directory / key.name

    def _start_preloader(self, key: _Key) -> str:
        """Start a preloader if the limit allows it. Return the reason why the current program starts cold."""
        if sum(preloader.task is not None for preloader in self._found.values()) >= _MAX_PRELOADERS:
            return f"the maximum of {_MAX_PRELOADERS} other sets of frameworks is preloaded"
        made = self._found[key] = _Preloader()
        made.task = begin(self._keep(key, made), f"keeping {', '.join(key.modules)} ready")
        return "its frameworks are being imported for the programs that follow"

    async def _keep(self, key: _Key, made: _Preloader) -> None:
        """Run a preloader until it exits. After that, the next program starts another one."""
        try:
            await self._run(key, made)
        except OSError as error:
            made.refusal = f"the process that imports its frameworks cannot be started ({error})"
        finally:
            made.task, made.is_ready = None, False
            with contextlib.suppress(OSError):
                self._socket(key).unlink()
            if not made.refusal and self._found.get(key) is made:
                del self._found[key]

    async def _run(self, key: _Key, made: _Preloader) -> None:
        ours, process = await asyncio.to_thread(self._start, key)
        reader, writer = await asyncio.open_connection(sock=ours)
        received = b""
        try:
            async with asyncio.timeout(_IMPORT_TIMEOUT):
                received = await reader.readline()
            if received.endswith(b"\n"):
                message = json.loads(received)
                made.refusal = message.get("refused")
                versions = message.get("imported", {}).items()
                made.modules = ", ".join(f"{name} {version}".strip() for name, version in versions)
                made.is_ready = made.refusal is None
            if made.is_ready:
                log.info("preloader %s: %s", process.pid, made.modules)
                await reader.read()  # Wait for its exit: the preloader sends nothing more.
        except TimeoutError:
            made.refusal = f"its frameworks were not imported within {_IMPORT_TIMEOUT:g} s"
        finally:
            writer.close()
            status = await asyncio.shield(asyncio.to_thread(_reap, process))
            if not received and not made.refusal and status:
                made.refusal = f"the process that imported its frameworks ended with {status}"
            if made.refusal:
                log.info("no preloader for %s: %s", key.runtime, made.refusal)

    def _start(self, key: _Key) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        unread, never = os.pipe()
        with theirs, listening.listen_unix(self._socket(key)) as listener:
            configuration = {
                "modules": key.modules,
                "control": theirs.fileno(),
                "listener": listener.fileno(),
                "root": str(Path(key.runtime).parent),
                "idle": self._idle,
            }
            binaries = f"{key.runtime}/bin"
            try:
                process = subprocess.Popen(
                    [f"{binaries}/python3", "-c", START, json.dumps(configuration), _SOURCE],
                    stdin=subprocess.DEVNULL,
                    # Use pipes, like the streams of programs, because Python checks the kind of its streams
                    # when it opens them.
                    stdout=never,
                    stderr=never,
                    cwd="/",
                    env={
                        **warm_start.ENVIRONMENT,
                        **dict(key.environ),
                        "HOME": "/",
                        "PATH": f"{binaries}:{SANE_PATH}",
                    },
                    pass_fds=(theirs.fileno(), listener.fileno()),
                    start_new_session=True,
                )
            finally:
                os.close(unread)
                os.close(never)
        return ours, process


def _reap(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the exit of a preloader whose control socket is closed; return its exit status."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_EXIT_TIMEOUT)
    process.kill()
    return process.wait()
