"""Launches a local run: starts what it needs in the quickest order, and reports how it ended."""

import asyncio
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

import click

from trainshed.cli.text.printable import coloured
from trainshed.engines.local import spawner
from trainshed.serve.local_run.request import LocalRunRequest, NotRun
from trainshed.serve.local_run.workspace import Workspace
from trainshed.serve.settings import Settings

if TYPE_CHECKING:
    from trainshed.serve.local_run.runner import RunEnd
    from trainshed.serve.local_run.storage import Storage

NOT_RUN = 125
"""Exit status of the command if no program was run."""
_INTERRUPTED = 130
_PIPE = 141


def run(request: LocalRunRequest, settings: Settings) -> int:
    """Run the program and return its exit status. Raises NotRun."""
    # Files that are kept for a while are only for the user; programs get their own umask.
    os.umask(0o077)
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        workspace = Workspace(settings.data)
    except OSError as failure:
        raise NotRun(
            f"The data directory {settings.data} cannot be used: {failure.strerror}. Choose another one "
            "with --data or $TRAINSHED_DATA."
        ) from None
    try:
        return _run_in(workspace, request, settings, spawner.start())
    finally:
        # This takes a moment, and must not be done by half.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        workspace.close()


def _run_in(
    workspace: Workspace, request: LocalRunRequest, settings: Settings, zygote: spawner.ZygoteHandle
) -> int:
    from trainshed.serve.local_run.storage import Storage

    storage = Storage(settings)
    from trainshed.engines.port import EngineUnavailable, LaunchRejected, LevelUnavailable
    from trainshed.runtimes.port import BuildFailed, PackageFailed
    from trainshed.serve.certificates import CertificatesUnusable

    try:
        ended = asyncio.run(_begin(workspace, request, settings, storage, zygote))
    except (
        BuildFailed,
        PackageFailed,
        EngineUnavailable,
        LaunchRejected,
        LevelUnavailable,
        CertificatesUnusable,
    ) as failure:
        raise NotRun(str(failure)) from failure
    except BrokenPipeError:
        _close_off(sys.stdout)
        return _PIPE
    except (asyncio.CancelledError, KeyboardInterrupt):
        tell("Interrupted before the program began.")
        return _INTERRUPTED
    except OSError as failure:
        raise NotRun(
            f"The run could not be put together: {failure}. Check the disk of {settings.data}, and that "
            "the program's files can be read."
        ) from failure
    return _told(ended, request)


async def _begin(
    workspace: Workspace,
    request: LocalRunRequest,
    settings: Settings,
    storage: "Storage",
    zygote: spawner.ZygoteHandle,
) -> "RunEnd":
    """Start the engine and the buckets while the rest is loaded, then run the program."""
    from trainshed.serve.local_run.engine import EnvSecrets, new_engine

    engine = new_engine(settings, workspace.directory, EnvSecrets(request.secrets), zygote)
    started = asyncio.gather(engine.start(), storage.begin())
    try:
        await asyncio.to_thread(import_module, "trainshed.serve.local_run.runner")
        from trainshed.serve.local_run.runner import Run, RunPorts

        return await Run(
            request, RunPorts(settings, workspace, storage, engine, started, tell)
        ).run()
    finally:
        started.cancel()
        # In any case: the run has ended with a cause of its own.
        await asyncio.gather(started, return_exceptions=True)
        await engine.close()
        await storage.close()


def _told(ended: "RunEnd", request: LocalRunRequest) -> int:
    """Print what the exit status alone does not say, and return that status."""
    from trainshed.serve.local_run.runner import status_of

    record, status = ended.record, status_of(ended.record)
    if record.oom:
        tell(
            f"The program ran out of memory and was killed: its limit is {ended.memory_limit / 2**30:.1f} "
            f"GiB (machine type {request.machine_type}, the setting memory_per_replica and what this "
            "machine has, whichever is least)."
        )
    elif record.child_oom:
        tell(
            f"{record.child_oom} of the program's processes were killed because its memory limit of "
            f"{ended.memory_limit / 2**30:.1f} GiB was reached."
        )
    elif record.signal is not None:
        tell(f"The program was ended by signal {record.signal}.")
    if ended.kept:
        tell(f"Its files are kept in {ended.kept}")
    return status


def tell(line: str) -> None:
    """Write a line to the terminal (stderr). If nobody reads it any more, what called this goes on all the
    same."""
    try:
        click.echo(coloured(line), err=True)
    except BrokenPipeError:
        _close_off(sys.stderr)


def _close_off(stream: TextIO) -> None:
    """Redirect a stream that nobody reads any more to /dev/null. Otherwise the interpreter would complain and
    change its exit status when it flushes the rest at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
