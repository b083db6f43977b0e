"""The Python that Pods with an image of a job's are brought: it runs by nothing of the machine's but the
kernel."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import execute
from trainshed_cluster.kubernetes import carried_python

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Pods are Linux's")
def test_it_brings_all_that_it_loads(tmp_path: Path) -> None:
    made, source = tmp_path / "python", Path(carried_python.__file__).read_text()
    subprocess.run([sys.executable, "-I", "-S", "-c", source, str(made)], check=True)
    libraries, python = made / "lib", made / "bin" / "python3"
    command = [libraries / carried_python.LOADER, "--library-path", libraries, python, "-I", "-S"]
    done = execute(*command, "-c", LOADS_ALL, env={})
    assert (done.stdout, done.stderr) == (f"{python}\n", "")
