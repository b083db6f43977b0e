"""Brings the environment that runs it to the state of a lock file: `tools/install.py LOCK`, as ./dev calls
it.

By the lock's own uv, from the indexes that pip is configured with: where pip takes two minutes of a
processor, uv takes ten seconds. Where uv cannot, by pip. Standard library only, since it is what installs the
rest.
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
    *(
        word
        for project in sorted((ROOT / "packages").iterdir())
        for word in ("--editable", str(project))
    ),
)
_RUN = ROOT / "locks" / "run.txt"


def locked(name: str, lock: str) -> str:
    """The lines of one package, with its hashes; "" = the lock has no such package."""
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
        sys.stderr.write("uv could not install these; pip does, in a minute or two ...\n")
        subprocess.run([*_PIP, "--require-hashes", "-r", lock], check=True)
        subprocess.run([*_PIP, *_PROJECT], check=True)


def _by_uv(lock: Path) -> bool:
    """Whether it did."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as alone:
        alone.write(locked("uv", lock.read_text()))
        alone.flush()
        itself = [*_PIP, "--no-deps", "--require-hashes", "-r", alone.name]
        if subprocess.run(itself, check=False).returncode:
            return False
    uv = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
    ]
    environ = os.environ | index_environment(os.environ)
    # What a service loads is compiled here, by whoever may write it; all else is by the first that loads it.
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
