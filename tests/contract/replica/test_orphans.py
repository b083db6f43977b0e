"""Processes whose parent has ended when they begin, by one copy of memory and by two."""

import errno
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.ordinary_user import NOBODY, as_root_only, interpreter_of_nobody

_SOURCES = Path(__file__).parents[3] / "src"
_PROGRAM = """
import json, os, random, sys, threading
from trainshed.replica.system import kernel, orphans

kernel.adopt_orphans()
bear = orphans.forker() if sys.argv[1] == "forker" else orphans.in_two_copies
hooks = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: hooks.append("before"),
        after_in_parent=lambda: hooks.append("parent"),
        after_in_child=lambda: hooks.append("child"),
    )
drawn = random.Random(7)
heap = [bytes(4096) for _ in range(500)]
told = []
for turn in range(3):
    reading, writing = os.pipe()
    between = bear()
    if between == 0:
        waiter = threading.Thread(target=heap.append, args=(b"",))
        waiter.start()
        waiter.join()
        with os.fdopen(writing, "w") as file:
            file.write(json.dumps([os.getpid(), threading.get_ident() != 0, turn, len(heap), hooks]))
        sys.exit(40 + turn)
    os.close(writing)
    with os.fdopen(reading) as file:
        own, *said = json.loads(file.read())
    ended = dict(os.waitpid(-1, 0) for _ in range(2))
    assert sorted(ended) == sorted([between, own]), (between, own, ended)
    assert [ended[between], ended[own] >> 8] == [0, 40 + turn], ended
    told.append(said)
print(json.dumps([bear is orphans.in_two_copies, told, hooks]))
"""


@pytest.mark.parametrize("way", ["forker", "in_two_copies"])
def test_an_orphan_goes_on_where_it_was_born(way: str) -> None:
    argv = [sys.executable, "-c", _PROGRAM, way]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    twice, told, hooks = json.loads(done.stdout)
    assert twice == (way == "in_two_copies" or platform.machine() != "x86_64")
    for turn, said in enumerate(told):
        before = ["before", "parent"] * turn
        copies = 2 if twice else 1
        assert said[:3] == [True, turn, 501]
        assert said[3] == before + (["before", "child"] * copies)
    assert hooks == ["before", "parent"] * 3


_REFUSED = """
import resource
from trainshed.replica.system import orphans

bear = orphans.forker()
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    bear()
except OSError as error:
    print(error.errno)
"""


@as_root_only
def test_a_fork_that_is_refused_is_told() -> None:
    done = subprocess.run(
        [interpreter_of_nobody(), "-c", _REFUSED],
        user=NOBODY,
        env={"PYTHONPATH": str(_SOURCES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == f"{errno.EAGAIN}\n", done.stderr
