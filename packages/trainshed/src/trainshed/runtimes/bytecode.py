"""Compiles the modules of a finished environment that are not compiled yet; run by the environment's own
Python, 3.6 or newer.

`python bytecode.py SITE_PACKAGES PROCESSES`. A single process runs at the lowest priority. Programs may use
the environment meanwhile, and the process may be killed at any time: each file appears by a rename, and a
program that finds none compiles for itself.
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
    # Only the owner may ever change it; an existing directory keeps its permission bits.
    before = stat.S_IMODE(os.stat(directory).st_mode)
    os.chmod(directory, before | stat.S_IWUSR)
    try:
        os.makedirs(cache, exist_ok=True)
    finally:
        os.chmod(directory, before)
    os.chmod(cache, before | stat.S_IWUSR)
    try:
        for path in missing:
            # Packages ship files that are no modules (templates, old syntax), whose import would fail anyway.
            compileall.compile_file(path, quiet=2)
            compiled = cache_from_source(path)
            if os.path.exists(compiled):
                os.chmod(compiled, 0o444)
    finally:
        os.chmod(cache, before)


def directories(site: str) -> "list[str]":
    """Return all directories that can hold modules, without test suites, which are half of the work and never
    imported."""
    places: "list[str]" = []
    for directory, names, _ in os.walk(site):
        names[:] = [name for name in names if name not in ("tests", "__pycache__")]
        places.append(directory)
    return places


def main(site: str, processes: int) -> None:
    if processes == 1:
        # Nobody waits for it.
        os.nice(19)
        for directory in directories(site):
            compile_directory(directory)
        return
    # Unlike a multiprocessing.Pool, it raises an error when one of its processes is killed.
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        for _ in pool.map(compile_directory, directories(site), chunksize=4):
            pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
