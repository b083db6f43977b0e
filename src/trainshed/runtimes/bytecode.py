"""Compiles what is not compiled yet of a finished environment: run by the environment's own Python, 3.6 or
newer.

`python bytecode.py SITE_PACKAGES PROCESSES`. One process gives way to everything else on the machine.
Programs may use the environment meanwhile and at any time it may be killed: each file appears by a rename,
and who finds none compiles for itself.
"""

import compileall
import concurrent.futures
import os
import stat
import sys
from importlib.util import cache_from_source


def compile_directory(directory: str) -> None:
    """Compile the modules of one directory, and leave it and its bytecode read-only."""
    modules = [name for name in os.listdir(directory) if name.endswith(".py")]
    paths = [os.path.join(directory, name) for name in modules]
    missing = [path for path in paths if not os.path.exists(cache_from_source(path))]
    if not missing:
        return
    cache = os.path.dirname(cache_from_source(missing[0]))
    # The owner may always change it, and only the owner; a directory that is there keeps its bits.
    before = stat.S_IMODE(os.stat(directory).st_mode)
    os.chmod(directory, before | stat.S_IWUSR)
    try:
        os.makedirs(cache, exist_ok=True)
    finally:
        os.chmod(directory, before)
    os.chmod(cache, before | stat.S_IWUSR)
    try:
        for path in missing:
            # Packages ship files that are no modules (templates, old syntax): their import would fail anyway.
            compileall.compile_file(path, quiet=2)
            compiled = cache_from_source(path)
            if os.path.exists(compiled):
                os.chmod(compiled, 0o444)
    finally:
        os.chmod(cache, before)


def directories(site: str) -> "list[str]":
    """All that can hold modules: no test suites, which are half of the work and never imported."""
    found: "list[str]" = []
    for directory, names, _ in os.walk(site):
        names[:] = [name for name in names if name not in ("tests", "__pycache__")]
        found.append(directory)
    return found


def main(site: str, processes: int) -> None:
    if processes == 1:
        # Nobody waits for it.
        os.nice(19)
        for directory in directories(site):
            compile_directory(directory)
        return
    # Unlike a multiprocessing.Pool it ends with an error when one of its processes is killed.
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        for _ in pool.map(compile_directory, directories(site), chunksize=4):
            pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
