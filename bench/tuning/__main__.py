"""`./dev bench-tuning`: how good the tuning algorithms are, against random search and the libraries of
others.

Three sets of problems: the usual ones, pitfalls, and the judge (`coco`), by which no constant was chosen.
Constants are chosen on seeds from 1000 on; what is published has seeds from 0 on.

Results are kept in build/bench/tuning.jsonl, one line a run; what is there and still of the same code is not
run again, so a run that was broken off goes on where it was. Prints the tables and writes them to
build/bench/tuning.md. Exits 1 if something promised of our own algorithm does not hold; what others cannot
run here is skipped with a note.
"""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.e2e.running import ROOT

from bench import report
from bench.tuning import environments, tables
from bench.tuning.figures import RANDOM
from bench.tuning.runs import (
    BBOB,
    CANDIDATES,
    PITFALLS,
    PROBLEMS,
    SETS,
    USUAL,
    Result,
    Task,
    from_json,
    to_json,
    version,
)

RESULTS = ROOT / "build" / "bench" / "tuning.jsonl"
SLOW_CASES = (
    ("branin", 1),
    ("ellipsoid-5", 1),
    ("hartmann-6", 1),
    ("hartmann-6", 8),
    ("rastrigin-3", 1),
    ("rosenbrock-4", 1),
    ("ellipsoid-6-rotated", 1),
    ("rastrigin-3-rotated", 1),
    ("failing-oblique-5", 1),
    ("far-well-4", 1),
    ("hartmann-6-unsaid", 1),
    ("sphere-5-outliers", 1),
)
"""What google-vizier and all others are compared on, with fewer trials: it takes seconds per suggestion."""
QUICK = ("branin", "conditional")


def main() -> int:
    options = arguments()
    if options.quick:
        options.problems, options.seeds, options.trials = list(QUICK), 2, 12
        options.candidates = options.candidates or [RANDOM, tables.OURS]
    results = work(list(tasks(options)), options)
    at = sorted({min(50, options.trials), options.trials})
    of_set = {
        name: [
            one
            for one in results
            if PROBLEMS[one.task.problem] in SETS[name] and one.task.trials == options.trials
        ]
        for name in SETS
    }
    compared = set(slow_tasks(options))
    parts = {
        (USUAL, options.seeds): tables.text(of_set[USUAL], at),
        (PITFALLS, options.seeds): tables.pitfalls(of_set[PITFALLS], options.trials),
        (BBOB, options.seeds): tables.text(of_set[BBOB], at),
        ("vizier", options.slow_seeds): tables.slow(
            [one for one in results if one.task in compared], options.slow_trials
        ),
    }
    parts = {
        name: f"{text}\n\n{report.machine()}; seeds: {seeds}; {options.note}."
        for (name, seeds), text in parts.items()
        if text
    }
    whole = "\n\n".join(parts.values())
    print(whole)
    target = ROOT / "build" / "bench" / "tuning.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(whole + "\n", "utf-8")
    found = [] if options.quick else tables.verdicts(of_set[USUAL], options.trials)
    found += [] if options.quick else tables.promises(of_set[PITFALLS], options.trials)
    for what, held in found:
        say(f"{'held' if held else 'MISSED'}: {what}")
    return 0 if all(held for _, held in found) else 1


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench-tuning", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds")
    parser.add_argument("--sets", nargs="+", default=[*SETS], choices=[*SETS])
    parser.add_argument("--problems", nargs="+", default=[], choices=sorted(PROBLEMS))
    parser.add_argument("--candidates", nargs="+", default=[], choices=CANDIDATES)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each case")
    parser.add_argument(
        "--slow-seeds", type=int, default=1, help=f"the same for the comparison with {tables.SLOW}"
    )
    parser.add_argument("--slow-trials", type=int, default=30, help="of each of its runs")
    parser.add_argument("--first-seed", type=int, default=0, help="to choose constants: 1000")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument(
        "--note",
        default=f"commit {report.commit() or 'unknown'}",
        help="what stands below the tables",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument(
        "--report", action="store_true", help="run nothing, report what is there already"
    )
    return parser.parse_args(words)


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Seed by seed, so that whatever is there after a break covers all cases; the slow ones last."""
    names: list[str] = options.candidates or list(CANDIDATES)
    problems: list[str] = options.problems or [
        problem.name for name in options.sets for problem in SETS[name]
    ]
    first: int = options.first_seed
    for seed in range(first, first + options.seeds):
        for problem in problems:
            for pending in PROBLEMS[problem].pending:
                for name in names:
                    if name != tables.SLOW:
                        yield Task(problem, pending, name, seed, options.trials)
    if tables.SLOW in names:
        yield from slow_tasks(options)


def slow_tasks(options: argparse.Namespace) -> Iterator[Task]:
    """The comparison with the slow candidate: on some cases, and by fewer trials of all."""
    for seed in range(options.first_seed, options.first_seed + options.slow_seeds):
        for name in options.candidates or CANDIDATES:
            for problem, pending in SLOW_CASES:
                if problem in (options.problems or (problem,)):
                    yield Task(problem, pending, name, seed, options.slow_trials)


def work(wanted: Sequence[Task], options: argparse.Namespace) -> list[Result]:
    """The results of the tasks, those that could be had."""
    known = {one.task: one for one in kept(RESULTS) if one.version == version(one.task)}
    missing = [] if options.report else [one for one in wanted if one not in known]
    say(f"{len(wanted)} runs, {len(missing)} to do, {options.jobs} at a time ...")
    for done, result in enumerate(do(missing, options.jobs), start=1):
        known[result.task] = result
        keep(RESULTS, result)
        if done % 20 == 0:
            say(f"{done} of {len(missing)}")
    return [known[one] for one in wanted if one in known]


def do(missing: Sequence[Task], jobs: int) -> Iterator[Result]:
    """In processes of their own, in the order in which they end."""
    pythons: dict[str, Path] = {}
    for name in sorted({one.candidate for one in missing}):
        try:
            say(f"{name}: looking for its environment; the first time it is installed ...")
            pythons[name] = environments.python_for(name)
        except environments.NotInstalled as lost:
            say(f"SKIPPED: {name}: {lost}")
    library: Path | None = None
    if any(one.problem.startswith(BBOB) for one in missing):
        try:
            library = environments.coco()
        except environments.NotInstalled as lost:
            say(f"SKIPPED: {BBOB}: {lost}")
            missing = [one for one in missing if not one.problem.startswith(BBOB)]
    told: queue.SimpleQueue[Result | str | None] = queue.SimpleQueue()
    groups = _together([one for one in missing if one.candidate in pythons])
    with ThreadPoolExecutor(jobs) as pool:
        begun = [
            pool.submit(_apart, pythons[group[0].candidate], group, library, told.put)
            for group in groups
        ]
        ended = 0
        while ended < len(begun):
            one = told.get()
            if isinstance(one, Result):
                yield one
            elif one:
                say(f"SKIPPED: {one}")
            else:
                ended += 1
    for each in begun:
        each.result()


def _together(missing: Sequence[Task]) -> list[list[Task]]:
    """What one process does: a run; of the slow candidate, which takes long to begin, all of a seed."""
    groups: dict[object, list[Task]] = {}
    for one in missing:
        groups.setdefault(one.seed if one.candidate == tables.SLOW else one, []).append(one)
    return list(groups.values())


def _apart(
    python: Path,
    group: Sequence[Task],
    library: Path | None,
    tell: Callable[[Result | str | None], object],
) -> None:
    """Do these in a process of their own. `tell`: takes each result as it comes, and what went wrong; last
    None."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(RESULTS.parent / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    folders = (ROOT, ROOT / "src", *([library] if library else []))
    paths = os.pathsep.join(map(str, folders))
    left = list(group)
    try:
        with tempfile.TemporaryFile("w+") as complaints:
            process = subprocess.Popen(
                [python, "-m", "bench.tuning.runs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env={**os.environ, **one_thread, **cache, "PYTHONPATH": paths},
                cwd=ROOT,
            )
            with process:
                assert process.stdin and process.stdout
                process.stdin.write("".join(json.dumps(asdict(one)) + "\n" for one in group))
                process.stdin.close()
                for line in process.stdout:
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        # But for what a library says itself.
                        result = from_json(line)
                        left.remove(result.task)
                        tell(result)
            complaints.seek(0)
            last = "".join(complaints.read().strip().splitlines()[-1:])
            for one in left:
                tell(f"{one}: {last or f'exit {process.returncode}'}")
    finally:
        tell(None)


def kept(path: Path) -> Iterator[Result]:
    """What earlier runs left; a line that was torn by a break is passed over."""
    if not path.exists():
        return
    for line in path.read_text("utf-8").splitlines():
        try:
            yield from_json(line)
        except (ValueError, KeyError, TypeError):
            continue


def keep(path: Path, result: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(result) + "\n")


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
