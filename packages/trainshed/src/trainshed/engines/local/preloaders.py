"""Runs the preloaders of one engine: one for each runtime and project, and for each value of variables like
OMP_NUM_THREADS, made for the programs that come after the first (docs/adr/0083).

`trainshed.replica.preloader` is their own side. No request waits: a program whose preloader is not ready
starts by itself. Preloaders end by themselves when they are idle, and with the service.
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
_MOST: Final = 4
"""Preloaders at once. Each takes what its frameworks take, some 150 MB for PyTorch."""
_IMPORT_SECONDS: Final = 300.0
"""Until one is ready, or is given up."""
_END_SECONDS: Final = 5.0


class _Key(Struct, frozen=True):
    """What the programs of one preloader have in common. Projects are kept apart, because forks share the
    layout of their memory and the seed of their hashes."""

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
    """A preloader, or the reason why there is none."""

    is_ready: bool = False
    #: The modules that its programs find imported, as a text for people.
    preloaded: str = ""
    #: Why there is none, as a clause; None = there is one, or will be.
    refused: str | None = None
    task: "asyncio.Task[None] | None" = field(default=None)


class Preloaders:
    """The preloaders of an engine. `directory`: of their sockets. `idle`: seconds without a program after
    which one ends; None = none are made."""

    def __init__(self, directory: Path, idle: float | None) -> None:
        self._directory = directory
        self._idle = idle
        self._found: dict[_Key, _Preloader] = {}

    def beginning(
        self, plan: LaunchPlan, host: HostFacts, environ: Mapping[str, str]
    ) -> protocol.WarmStart:
        """Decide how a program that is to begin warm does so now: as a fork of a preloader, or cold.
        `environ`: its whole environment."""
        warm, template = plan.warm, plan.software.template
        assert warm is not None
        if warm.runtime is None or template is None:
            why = warm.cold_because
        elif not host.namespaced:
            why = "at isolation level session its Python is a copy of its own"
        elif self._idle is None:
            why = "no frameworks are kept imported there: it is a node of a cluster"
        elif names := warm_start.differing(environ):
            names = ", ".join(names)
            why = f"{names}: an import may read that, and the preloader imported without it"
        else:
            own = warm_start.own_values(environ)
            key = _Key(plan.account.project, warm.runtime, warm.modules, own)
            preloader = self._found.get(key)
            if preloader is not None and preloader.is_ready:
                place, preloaded = str(self._socket(key)), preloader.preloaded
                return protocol.WarmStart(place, template, preloaded)
            if preloader is None:
                why = self._make(key)
            else:
                why = preloader.refused or "its frameworks are still being imported"
        return protocol.WarmStart(cold_because=why)

    async def close(self) -> None:
        """End all of them. Programs go on."""
        tasks = [preloader.task for preloader in self._found.values() if preloader.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _socket(self, key: _Key) -> Path:
        return self._directory / key.name

    def _make(self, key: _Key) -> str:
        """Make a preloader if there is memory for it. Returns why the program that asks begins cold."""
        if sum(preloader.task is not None for preloader in self._found.values()) >= _MOST:
            return "frameworks of others are kept imported, and there is memory for no more"
        made = self._found[key] = _Preloader()
        made.task = begin(self._keep(key, made), f"keeping {', '.join(key.modules)} ready")
        return "its frameworks are being imported for the programs that follow"

    async def _keep(self, key: _Key, made: _Preloader) -> None:
        """Run a preloader until it ends; then the next program has another made."""
        try:
            await self._run(key, made)
        except OSError as error:
            made.refused = (
                f"the process that would import its frameworks cannot be started ({error})"
            )
        finally:
            made.task, made.is_ready = None, False
            with contextlib.suppress(OSError):
                self._socket(key).unlink()
            if not made.refused and self._found.get(key) is made:
                del self._found[key]

    async def _run(self, key: _Key, made: _Preloader) -> None:
        ours, process = await asyncio.to_thread(self._start, key)
        reader, writer = await asyncio.open_connection(sock=ours)
        received = b""
        try:
            async with asyncio.timeout(_IMPORT_SECONDS):
                received = await reader.readline()
            if received.endswith(b"\n"):
                message = json.loads(received)
                made.refused = message.get("refused")
                versions = message.get("imported", {}).items()
                made.preloaded = ", ".join(
                    f"{name} {version}".strip() for name, version in versions
                )
                made.is_ready = made.refused is None
            if made.is_ready:
                log.info("preloader %s: %s", process.pid, made.preloaded)
                await reader.read()  # It says nothing more until it ends.
        except TimeoutError:
            made.refused = f"its frameworks were not imported within {_IMPORT_SECONDS:g} s"
        finally:
            writer.close()
            status = await asyncio.shield(asyncio.to_thread(_reap, process))
            if not received and not made.refused and status:
                made.refused = f"the process that imported its frameworks ended with {status}"
            if made.refused:
                log.info("no preloader for %s: %s", key.runtime, made.refused)

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
                    # A pipe, as programs have: Python checks the kind of its streams when it opens them.
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
    """Wait for the end of a preloader whose control socket is closed; return its exit status."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_END_SECONDS)
    process.kill()
    return process.wait()
