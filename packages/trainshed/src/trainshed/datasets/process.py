"""The process that writes a dataset's splits: it reads one request from its standard input, and answers in
lines on its standard output.

It opens no file and can write none, has a limit of memory, and dies with the service: the data that it parses
were written by others.
"""

import os
import resource
import sys
from typing import Final

import msgspec

from trainshed.datasets.port import Answer, DataRefused, DataUnwritten, Request
from trainshed.datasets.step import write_splits
from trainshed.datasets.storage import Storage
from trainshed.replica.system import kernel

MEMORY: Final = 1 << 30
"""Bytes of address space that the process may have."""


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    kernel.help_parent(request.parent)
    kernel.forbid_new_privileges()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    storage = Storage(request.socket, request.account)
    try:
        written = write_splits(request.plan, storage, lambda text: _say(Answer(progress=text)))
    except DataRefused as failure:
        _say(Answer(refused=str(failure)))
    except DataUnwritten as failure:
        _say(Answer(failed=str(failure)))
    except MemoryError:
        _say(Answer(failed=f"The files need more than {MEMORY >> 20} MiB of memory."))
    else:
        _say(Answer(written=written))


def _say(answer: Answer) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")
