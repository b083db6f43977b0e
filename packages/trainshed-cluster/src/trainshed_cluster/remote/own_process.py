"""Runs a module of this package in a process of its own, without site-packages, so that it starts at once."""

import os
import sys
from pathlib import Path

import trainshed
import trainshed_cluster

_RUN = """\
import sys
from importlib import import_module
sys.path[:0] = sys.argv[1].split(":")
module = sys.argv[2]
sys.argv[:3] = ["-"]
import_module(module).main()
"""
_SOURCES = ":".join(
    dict.fromkeys(
        os.path.realpath(Path(package.__path__[0]).parent)
        for package in (trainshed_cluster, trainshed)
    )
)


def own_process(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that calls `main()` of a module below `trainshed_cluster.remote`."""
    name = f"trainshed_cluster.remote.{module}"
    return sys.executable, "-I", "-S", "-c", _RUN, _SOURCES, name, *arguments
