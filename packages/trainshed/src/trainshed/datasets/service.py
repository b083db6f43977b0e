"""Writes the splits of a service's datasets (`datasets.port.SplitFiles`). Each step runs in its own process.
The number of concurrent steps is limited."""

import asyncio
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO, Final
from weakref import WeakValueDictionary

import msgspec

from trainshed.core.datasets.plans import DirectoryCopy, SplitPlan
from trainshed.datasets.port import Account, Answer, DataRefused, DataUnwritten, Progress, Request, Written

log = logging.getLogger(__name__)

_MAX_STEPS: Final = 2
"""Maximum number of steps that run at the same time. Further steps wait."""
_MAX_LINE: Final = 64 << 20
_MAX_EXCERPT: Final = 2_000
"""Maximum number of characters of a failed process's errors in the log."""
_START: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from trainshed.datasets.step import main
main()
"""


class SplitProcesses:
    """Runs the processes that write files. `socket`: the bucket process's socket for programs."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._turns = asyncio.Semaphore(_MAX_STEPS)
        #: A lock per directory, so that jobs which need the same files wait for the first of these jobs.
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        """See `SplitFiles`. If the call is cancelled, the process is killed."""
        request = Request(str(self._socket), account, os.getpid(), plan)
        answer = await self._run(request, plan.directory, progress)
        assert answer.written is not None
        return answer.written

    async def copy(self, copy: DirectoryCopy, account: Account) -> None:
        """See `ExportFiles`. If the call is cancelled, the process is killed."""
        request = Request(str(self._socket), account, os.getpid(), copy=copy)
        await self._run(request, copy.target, lambda _: None)

    async def _run(self, request: Request, directory: str, progress: Progress) -> Answer:
        """Run a process and return its last line. Raises DataRefused, DataUnwritten."""
        lock = self._writing.setdefault(directory, asyncio.Lock())
        async with lock, self._turns:
            # Pass the request as a complete file. Writing to a pipe would fail if the process has already
            # died.
            with await asyncio.to_thread(_file_of, msgspec.json.encode(request)) as file:
                # Isolated (-I): do not load modules from a user's packages or the working directory.
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", "-c", _START, json.dumps(sys.path)),
                    stdin=file,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=_MAX_LINE,
                    env={"LC_ALL": "C.UTF-8"},
                    start_new_session=True,
                )
            try:
                return await _answer(child, progress)
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()


def _file_of(request: bytes) -> BinaryIO:
    """Return an unnamed file that contains the request, open at its start."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its caller closes it
    file.write(request)
    file.flush()
    file.seek(0)
    return file


async def _answer(child: asyncio.subprocess.Process, progress: Progress) -> Answer:
    assert child.stdout is not None and child.stderr is not None
    async for line in child.stdout:
        answer = msgspec.json.decode(line, type=Answer)
        if answer.refused is not None:
            raise DataRefused(answer.refused)
        if answer.failed is not None:
            raise DataUnwritten(answer.failed)
        if answer.written is not None or answer.is_copied:
            return answer
        if answer.progress is not None:
            progress(answer.progress)
    errors = (await child.stderr.read(_MAX_EXCERPT)).decode("utf-8", "replace").strip()
    status = await child.wait()
    log.error("dataset step died with status %d: %s", status, errors)
    raise DataUnwritten(
        f"The process that writes the files exited with status {status}. Its errors are in the service's log."
    )
