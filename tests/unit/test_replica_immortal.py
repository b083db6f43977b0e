"""Objects whose references are not counted (ADR 152), in processes of their own: what is marked stays so."""

import subprocess
import sys

import pytest

_COUNTS = """
import os, sys
from trainshed.replica.system import immortal

class Closed:
    def __del__(self): os.write(1, b"closed\\n")

def function(): return "text"
closed, reading = Closed(), open(os.devnull)
made = immortal.make_immortal()
before = sys.getrefcount(function), sys.getrefcount(function.__code__)
references = [function, function.__code__] * 500
print(made > 1000, (sys.getrefcount(function), sys.getrefcount(function.__code__)) == before, flush=True)
print(sys.getrefcount(reading) < 5, flush=True)
del closed
"""

_COPIED = """
import gc, os, sys, types
from trainshed.replica.system import immortal
import asyncio, decimal, email.message, http.client, logging.handlers, unittest.mock, xml.dom.minidom
gc.collect(); gc.disable(); gc.freeze()
if sys.argv[1] == "marked": immortal.make_immortal()
functions = [one for module in list(sys.modules.values()) for one in vars(module).values()]
read, write = os.pipe()
if os.fork() == 0:
    held = [(one, type(one), getattr(one, "__code__", None)) for one in functions * 2]
    rollup = open("/proc/self/smaps_rollup").read()
    os.write(write, rollup.partition("Private_Dirty:")[2].split()[0].encode())
    os._exit(0)
os.close(write)
print(os.read(read, 100).decode())
"""

_MARKS = (3, 12) <= sys.version_info[:2] <= (3, 13)


def _said(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_what_does_something_when_it_ends_still_ends() -> None:
    assert _said(_COUNTS) == [str(_MARKS), str(_MARKS), "True", "closed"]


@pytest.mark.skipif(
    not _MARKS, reason="this Python counts all references, or marks in a way of its own"
)
def test_a_fork_copies_fewer_pages_of_what_its_parent_loaded() -> None:
    (counted,), (marked,) = _said(_COPIED, "counted"), _said(_COPIED, "marked")
    assert int(marked) < 0.7 * int(counted)
