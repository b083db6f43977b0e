"""Writes the splits of a service's datasets (`datasets.port.SplitFiles`): each step in a process of its own,
a few at a time."""

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
from trainshed.datasets.port import (
    Account,
    Answer,
    DataRefused,
    DataUnwritten,
    Progress,
    Request,
    Written,
)

log = logging.getLogger(__name__)

_AT_ONCE: Final = 2
"""Steps that run at a time; others wait."""
_LONGEST_LINE: Final = 64 << 20
_SHOWN: Final = 2_000
"""Characters of a failed process's errors that are shown."""
_START: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from trainshed.datasets.step import main
main()
"""


class SplitProcesses:
    """Runs the processes. `socket`: the bucket process's socket for programs."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._turns = asyncio.Semaphore(_AT_ONCE)
        #: A lock for each directory: jobs that need the same files wait for the first of them.
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        """See the port. Cancelling it kills the process."""
        request = Request(str(self._socket), account, os.getpid(), plan)
        answer = await self._run(request, plan.directory, progress)
        assert answer.written is not None
        return answer.written

    async def copy(self, copy: DirectoryCopy, account: Account) -> None:
        """See the port. Cancelling it kills the process."""
        request = Request(str(self._socket), account, os.getpid(), copy=copy)
        await self._run(request, copy.target, lambda _: None)

    async def _run(self, request: Request, directory: str, progress: Progress) -> Answer:
        """Run a process, and return its last answer. Raises DataRefused, DataUnwritten."""
        lock = self._writing.setdefault(directory, asyncio.Lock())
        async with lock, self._turns:
            # The request is a file that is complete before anybody reads it: writing to a pipe could fail
            # because the process has died already.
            with await asyncio.to_thread(_written, msgspec.json.encode(request)) as file:
                # Isolated (-I): modules come neither from a user's own packages nor from the working
                # directory.
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", "-c", _START, json.dumps(sys.path)),
                    stdin=file,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=_LONGEST_LINE,
                    env={"LC_ALL": "C.UTF-8"},
                    start_new_session=True,
                )
            try:
                return await _answer(child, progress)
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()


def _written(request: bytes) -> BinaryIO:
    """Returns a file without a name that holds the request, open at its beginning."""
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
    errors = (await child.stderr.read(_SHOWN)).decode("utf-8", "replace").strip()
    status = await child.wait()
    log.error("dataset step died with status %d: %s", status, errors)
    raise DataUnwritten(f"The process that writes the files died with status {status}.")
