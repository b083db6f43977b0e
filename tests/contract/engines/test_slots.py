"""A program's slot: names, addresses, files, environment (spec/program). The Python for Pods with a
job's image uses nothing of the machine but the kernel. A copied data directory refers to live
processes: the copy's service does not touch them."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import execute
from tests.contract.engines.conftest import PRIMARY, EngineHarness
from trainshed.core.launch import Software
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.replica.protocol import process_start
from trainshed_cluster.kubernetes import python_copy

PRINTS_SURROUNDINGS = """
import os
def is_open(handle):
    try:
        return bool(os.fstat(handle))
    except OSError:
        return False
print(os.listdir('.'), os.getcwd(), os.getpid(), oct(os.umask(0)), open(0).read() == '')
print([handle for handle in range(50) if is_open(handle)])
"""


async def test_program_starts_with_standard_streams_in_its_own_directory(harness: EngineHarness) -> None:
    uid = await harness.python(PRINTS_SURROUNDINGS)
    await harness.exit(uid)
    first, handles = map(str, harness.texts(uid))
    listing, directory, pid, umask, at_end = first.split()
    assert (listing, umask, at_end) == ("[]", "0o22", "True")
    assert directory.endswith("/files/work")
    # Reading standard input to its end has closed it.
    assert handles == "[1, 2]"
    if harness.engine.capabilities().process_namespace:
        assert int(pid) < 10


async def test_traceback_shows_paths_relative_to_the_program(harness: EngineHarness) -> None:
    uid = await harness.python("import os; print(f'File \"{os.getcwd()}/task.py\", line 1'); exit(3)")
    ended = await harness.exit(uid)
    assert harness.texts(uid) == [ended.exit.tail] == ['File "task.py", line 1']


async def test_program_cannot_modify_its_shared_environment(harness: EngineHarness, tmp_path: Path) -> None:
    """spec/runtimes#environments: the environment is mounted read-only, or is a copy at levels
    without mounts."""
    template = tmp_path / "template"
    (template / "bin").mkdir(parents=True)
    (template / "bin" / "greet").write_text(
        "#!/bin/sh\necho hello; exec 2> /dev/null; echo changed > $0; exit 0\n"
    )
    (template / "bin" / "greet").chmod(0o555)
    (template / "link").symlink_to("bin/greet")
    uid = await harness.run("greet", software=Software(template=str(template)))
    assert (await harness.exit(uid)).exit.exit_code == 0
    assert harness.texts(uid) == ["hello"]
    assert "hello" in (template / "bin" / "greet").read_text()


async def test_buckets_are_mounted_below_gcs(harness: EngineHarness, tmp_path: Path) -> None:
    """spec/program#storage: /gcs/bucket/..."""
    (tmp_path / "buckets" / "b").mkdir(parents=True)
    (tmp_path / "buckets" / "b" / "data").write_text("42\n")
    if not harness.engine.capabilities().process_namespace:
        pytest.skip("this level has no mounts")
    uid = await harness.run(
        "sh", "-c", "ls /gcs; cat /gcs/b/data; echo new > /gcs/b/out; echo m > /var/hypertune/x",
        # The other bucket was just deleted.
        buckets=tuple((name, str(tmp_path / "buckets" / name)) for name in ("a", "b")),
    )  # fmt: skip
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["b", "42"]
    assert (tmp_path / "buckets" / "b" / "out").read_text() == "new\n"


async def test_program_starts_in_a_data_directory_whose_path_is_too_long_for_sockets(
    tmp_path: Path, harness: EngineHarness
) -> None:
    await harness.engine.close()
    harness.data = tmp_path / ("d" * 120)
    await harness.restart()
    uid = await harness.run("sh", "-c", "echo up; exec sleep 60")
    await harness.line(uid, lambda text: text == "up")
    await harness.restart()
    assert (await harness.wait_for_start(uid)).replica == PRIMARY


LOADS_ALL = """
import ctypes, os, sys
extensions = os.path.join(sys.prefix, 'lib', f'python3.{sys.version_info.minor}', 'lib-dynload')
for name in os.listdir(extensions):
    ctypes.CDLL(os.path.join(extensions, name))
ctypes.CDLL('libpthread.so.0')
import asyncio, sqlite3, ssl
print(sys.executable)
for line in open('/proc/self/maps'):
    if '.so' in line and sys.prefix not in line:
        print('not ours:', line)
"""


def test_copied_python_contains_all_libraries_that_its_modules_load(tmp_path: Path) -> None:
    made, source = tmp_path / "python", Path(python_copy.__file__).read_text()
    subprocess.run([sys.executable, "-I", "-S", "-c", source, str(made)], check=True)
    libraries, python = made / "lib", made / "bin" / "python3"
    command = [libraries / python_copy.LOADER, "--library-path", libraries, python, "-I", "-S"]
    done = execute(*command, "-c", LOADS_ALL, env={})
    assert (done.stdout, done.stderr) == (f"{python}\n", "")


SLEEPS = "import time; print('up', flush=True); time.sleep(60)"


def copy(source: Path, target: Path) -> None:
    def sockets(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if stat.S_ISSOCK(Path(directory, name).lstat().st_mode)]

    shutil.copytree(source, target, symlinks=True, ignore=sockets)


async def test_service_on_a_copied_data_directory_does_not_affect_running_processes(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The copy is started twice."""
    uid = await harness.python(SLEEPS)
    await harness.line(uid, lambda text: text == "up")
    ids = harness.shim(uid)
    shim, since = ids["shim"], ids["shim_since"]
    copy(harness.data, tmp_path / "copy")
    twin = EngineHarness(tmp_path / "copy", harness.rules.isolation)
    await twin.open()
    for _ in range(2):
        lost = await twin.end(uid)
        assert isinstance(lost, ReplicaLost) and "another service owns them" in lost.cause
        await twin.restart()
    # The next incarnation starts in the same slot and deletes the files of its predecessor, but
    # none of the original.
    plan = twin.plan(uid, "true", incarnation=2, hostname=f"host-{uid}-{PRIMARY}")
    await twin.engine.launch([plan])
    await twin.end(uid, incarnation=2)
    assert process_start(shim) == since
    await twin.close()
