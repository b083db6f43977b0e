"""Installs the packages of a lock file into this environment: `tools/install.py LOCK`. ./dev calls it.

It uses the uv version in the lock, and the package indexes that pip uses. uv takes ten seconds, pip takes two
minutes of CPU time. If uv fails, pip installs the packages. This program uses only the standard library,
because nothing else is installed yet.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "packages/trainshed/src"))

from trainshed.runtimes.indexes import index_environment  # noqa: E402 - found since the line above

_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
_PROJECT = (
    "--no-deps",
    *(word for project in sorted((ROOT / "packages").iterdir()) for word in ("--editable", str(project))),
)
_RUN = ROOT / "locks" / "run.txt"


def find_locked(name: str, lock: str) -> str:
    """Return the lock's lines for one package, with hashes, or "" if the lock does not contain it."""
    kept: list[str] = []
    for line in lock.splitlines():
        if kept or line.startswith(f"{name}=="):
            kept.append(line)
            if not line.endswith("\\"):
                break
    return "\n".join(kept)


def main() -> None:
    lock = Path(sys.argv[1])
    if not _by_uv(lock):
        sys.stderr.write("uv failed. Installing with pip instead, which takes a minute or two ...\n")
        subprocess.run([*_PIP, "--require-hashes", "-r", lock], check=True)
        subprocess.run([*_PIP, *_PROJECT], check=True)


def _by_uv(lock: Path) -> bool:
    """Return whether uv has installed all packages."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as alone:
        alone.write(find_locked("uv", lock.read_text()))
        alone.flush()
        itself = [*_PIP, "--no-deps", "--require-hashes", "-r", alone.name]
        if subprocess.run(itself, check=False).returncode:
            return False
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", sys.executable]
    environ = os.environ | index_environment(os.environ)
    # Compile the modules that a service loads, because this user has write access. Other modules are compiled
    # when they are first imported.
    for words in (
        ("--compile-bytecode", "--require-hashes", "-r", str(_RUN)),
        ("--require-hashes", "-r", str(lock)),
        _PROJECT,
    ):
        if subprocess.run([*uv, *words], env=environ, check=False).returncode:
            return False
    return True


if __name__ == "__main__":
    main()
