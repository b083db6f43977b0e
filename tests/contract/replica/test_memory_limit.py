"""Memory limits with and without control groups lead to the same verdicts
(spec/failures#out-of-memory, spec/machines#memory)."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.commands import running
from tests.contract.replica.conftest import Place
from tests.isolation import strongest
from trainshed.replica.protocol import LEVEL_SESSION, Limits
from trainshed.replica.supervisor.memory_limit import MemoryLimit
from trainshed.replica.system import processes
from trainshed.replica.system.cgroups import ControlGroups

LIMIT = 120 << 20
GROWS = """
import time
print('up')
kept = []
while True: kept.append(b'x' * (4 << 20)); time.sleep(0.01)
"""
CHILD_GROWS = f"""
import subprocess, sys
child = subprocess.run([sys.executable, '-c', '''{GROWS}'''])
print('child', child.returncode)
raise SystemExit(3)
"""
SHARES = """
import mmap, os, time
with open('data', 'wb') as file: file.truncate(200 << 20)
with open('data', 'rb') as file: view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
assert sum(view[i] for i in range(0, len(view), 4096)) == 0
kept = b'x' * (60 << 20)
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        time.sleep(1)
        os._exit(0)
    children.append(child)
print('up')
for child in children: assert os.waitpid(child, 0)[1] == 0
"""
ENFORCEMENTS = tuple(
    dict.fromkeys(((strongest(), "polling"), (LEVEL_SESSION, "polling"), (strongest(), "kernel")))
)
"""Isolation levels and the enforcement of the limit. Polling finds a replica's processes in two
ways, the kernel in one."""
each_enforcement = pytest.mark.parametrize(("place", "limit_fields"), ENFORCEMENTS, indirect=True)


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory on a disk: file contents count as memory if the file system is in memory, like
    many systems' `/tmp`."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def limit_fields(request: pytest.FixtureRequest, memory_base: str) -> dict[str, object]:
    """The launch fields that enforce the limit."""
    if request.param == "polling":
        return {"memory_limit": LIMIT}
    if not memory_base:
        pytest.skip("this host has no control groups to offer")
    return {"memory_limit": LIMIT, "bases": {"memory": memory_base}}


@each_enforcement
def test_main_process_over_the_limit_is_out_of_memory(place: Place, limit_fields: dict[str, object]) -> None:
    record = place.python(GROWS, **limit_fields).record()
    assert (record["signal"], record["oom"], record["child_oom"]) == (signal.SIGKILL, True, 0)


@each_enforcement
def test_main_process_decides_the_exit_status_after_an_out_of_memory_child(
    place: Place, limit_fields: dict[str, object]
) -> None:
    record = place.python(CHILD_GROWS, **limit_fields).record()
    assert (record["exit_code"], record["oom"], record["child_oom"]) == (3, False, 1)
    assert place.texts() == ["up", "child -9"]


@each_enforcement
def test_shared_memory_counts_once_and_files_do_not_count(
    place: Place, limit_fields: dict[str, object]
) -> None:
    record = place.python(SHARES, **limit_fields).record()
    assert record["exit_code"] == 0, record


def test_process_that_ended_after_the_measurement_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a process that was killed a moment earlier."""
    with running("true") as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(processes, "resident", Mock(return_value={ended.pid: 2}))
        limit = MemoryLimit(ControlGroups(Limits()), 1, Mock(), Mock())
        limit._enforce()  # pyright: ignore[reportPrivateUsage]
    limit.close()
    assert limit.verdict(None) == (False, 0)
