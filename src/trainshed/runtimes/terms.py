"""On what terms the packages of jobs are installed: as their programs run, or tighter."""

from dataclasses import dataclass

MOST_MEMBERS = 100_000
"""Files, directories and links in one archive."""
MOST_FILES = 1_000_000
"""Files and directories that one installation may leave: the service looks at each of them."""
MOST_UNPACKED = 8 << 30
"""Bytes of one archive's content, and of the archive itself."""
MOST_METADATA = 4 << 20
"""Bytes of one of the files that say what a package is: pyproject.toml, PKG-INFO, METADATA, setup.py, setup.cfg."""
MOST_SECONDS = 60.0
"""For looking at one archive."""
MOST_MEMORY = 512 << 20
"""Bytes, for the same."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for each installation.

    `level`: the sandbox level of programs (`protocol.LEVEL_*`), never another. `hidden`: directories that look empty;
    `covered`: files that do; `visible`: what may be read by the operator's wish, wherever it lies. `memory_bytes`, `processes`, `disk_bytes`, `seconds`: limits, 0 = none; `cpu_weight`: 100
    per vCPU. `memory_base`, `cpu_base`, `pids_base`: directories of control groups, "" = none. `kept_ports`: those of the
    service and of replicas, which no script may listen on.
    """

    level: str
    hidden: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0
    cpu_weight: int = 0
    memory_base: str = ""
    cpu_base: str = ""
    pids_base: str = ""
    kept_ports: tuple[int, ...] = ()
    unpacked_bytes: int = MOST_UNPACKED
