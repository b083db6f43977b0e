"""`python -m tests.mutants [NAME ...]`: plant one bug after the other in a copy of the tree, and run the
command that must detect it.

Prints a table: mutant, caught by, seconds. Exits with 1 if a bug is not detected, a patch does not apply, or
a command fails on the unchanged tree. The working tree never changes.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Catcher, DoesNotApply, Mutant, apply_mutant, text_of
from tests.mutants.table import MUTANTS
from tests.sources import search_path

ROOT: Final = Path(__file__).resolve().parents[2]
_NOT_COPIED: Final = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "shared", ".*_cache", "__pycache__", ".hypothesis"
)
_FAILED: Final = 1
"""Exit statuses of Python, pytest and the simulation after a failure."""
_LINES: Final = 25


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a command. `status` None: it did not finish in time."""

    status: int | None
    seconds: float
    output: str


class Copies:
    """Copies of the tree, one for each parallel command. Each is unchanged when it is returned."""

    def __init__(self, directory: Path, count: int) -> None:
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(count):
            copy = directory / f"tree-{number}"
            shutil.copytree(ROOT, copy, symlinks=True, ignore=_NOT_COPIED)
            # Compile once: later runs write no bytecode, so that stale bytecode cannot hide a bug.
            compiling = ("-m", "compileall", "-q", "packages", "tests")
            subprocess.run((sys.executable, *compiling), cwd=copy, check=True)
            self._free.put(copy)

    @contextmanager
    def one(self, mutant: Mutant | None) -> Generator[Path]:
        """Return a copy with the bug. Raises DoesNotApply."""
        copy = self._free.get()
        try:
            if mutant is None:
                yield copy
                return
            file, before = copy / mutant.file, text_of(mutant, copy)
            times = file.stat()
            file.write_text(apply_mutant(mutant, before), "utf-8")
            try:
                yield copy
            finally:
                file.write_text(before, "utf-8")
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        finally:
            self._free.put(copy)


def run(catcher: Catcher, copy: Path) -> Run:
    """Run the command in that copy, and clean up."""
    environ = {
        **os.environ,
        "PYTHONPATH": search_path(root=copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    began = time.monotonic()
    process = subprocess.Popen(
        (sys.executable, *catcher.arguments),
        cwd=copy,
        env=environ,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=catcher.limit)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = None
    return Run(status, time.monotonic() - began, output)


class Judgement:
    """The results of all mutants, printed as they arrive. `bad`: number of unexpected results."""

    def __init__(self, copies: Copies) -> None:
        self.bad = 0
        self._copies = copies
        self._telling = threading.Lock()

    def passes_without_bug(self, catcher: Catcher) -> bool:
        """Return whether the command passes without a bug. Otherwise its failure proves nothing."""
        with self._copies.one(None) as copy:
            outcome = run(catcher, copy)
        is_sound = outcome.status == 0
        self._print_result("(none)", catcher, outcome, "" if is_sound else "FAILS WITHOUT ANY BUG")
        return is_sound

    def judge(self, mutant: Mutant) -> None:
        """Run the command with the bug, and record whether it detects the bug."""
        try:
            with self._copies.one(mutant) as copy:
                outcome = run(mutant.caught_by, copy)
        except DoesNotApply as why:
            with self._telling:
                self.bad += 1
                print(why, flush=True)
            return
        wrong = {_FAILED: "", 0: "SURVIVED", None: f"NOT NOTICED WITHIN {mutant.caught_by.limit} s"}
        what = wrong.get(outcome.status, f"ENDED WITH STATUS {outcome.status}, SAYS NOTHING")
        self._print_result(mutant.name, mutant.caught_by, outcome, what)

    def _print_result(self, name: str, catcher: Catcher, outcome: Run, wrong: str) -> None:
        with self._telling:
            print(f"{name:38}{catcher.name[:70]:72}{outcome.seconds:6.1f} s  {wrong}".rstrip(), flush=True)
            if wrong:
                self.bad += 1
                if outcome.status:
                    lines = outcome.output.splitlines()[-_LINES:]
                    print("\n".join(f"    {line}" for line in lines))


def main() -> int:
    options = _options()
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if unknown := set(options.names) - {mutant.name for mutant in chosen}:
        print(f"there is no mutant {', '.join(sorted(unknown))}; --list names them", file=sys.stderr)
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:38}{mutant.file}\n{'':38}{mutant.why}")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainshed-mutants-") as directory:
        Path(directory).chmod(0o755)  # Some tests run as another user.
        judgement = Judgement(Copies(Path(directory), options.jobs))
        print(f"{'mutant':38}{'caught by':72}{'took':>8}", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            catchers = list(dict.fromkeys(mutant.caught_by for mutant in chosen))
            passes_without_bug = dict(
                zip(catchers, pool.map(judgement.passes_without_bug, catchers), strict=True)
            )
            judged = [mutant for mutant in chosen if passes_without_bug[mutant.caught_by]]
            _all(pool.map(judgement.judge, judged))
    took = time.monotonic() - began
    print(f"{len(judged)} of {len(chosen)} mutants judged, {judgement.bad} lines are bad; {took:.0f} s")
    return 1 if judgement.bad else 0


def _all(results: Iterable[None]) -> None:
    """Wait for the results, and collect errors."""
    for _ in results:
        pass


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time")
    parser.add_argument("--list", action="store_true", help="say what they are, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
