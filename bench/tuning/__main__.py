"""`./dev bench-tuning`: the quality of the tuning algorithms, compared with random search and other
libraries.

The problems are common test functions and pitfalls. Constants are tuned with seeds from 1000 on. Published
figures use seeds from 0 on.

Results are stored in build/bench/tuning.jsonl, one line per run. Stored results of the same code are reused,
so an interrupted benchmark continues. The program prints the tables and writes them to build/bench/tuning.md.
It exits with 1 if Trainshed's algorithm misses a budget. Candidates that cannot run on this machine are
skipped with a note.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.e2e.running import ROOT

from bench import report
from bench.tuning import environments, tables
from bench.tuning.figures import RANDOM
from bench.tuning.runs import (
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
QUICK = ("branin", "conditional")


def main() -> int:
    options = arguments()
    if options.quick:
        options.problems, options.seeds, options.trials = list(QUICK), 2, 12
        options.candidates = options.candidates or [RANDOM, tables.DEFAULT_ENGINE]
    results = work(list(tasks(options)), options)
    at = sorted({min(50, options.trials), options.trials})
    of_set = {
        name: [
            result
            for result in results
            if PROBLEMS[result.task.problem] in SETS[name] and result.task.trials == options.trials
        ]
        for name in SETS
    }
    texts = (tables.text(of_set[USUAL], at), tables.pitfalls(of_set[PITFALLS], options.trials))
    below = f"{report.machine()}; seeds: {options.seeds}; {options.note}."
    whole = "\n\n".join(f"{text}\n\n{below}" for text in texts if text)
    print(whole)
    target = ROOT / "build" / "bench" / "tuning.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(whole + "\n", "utf-8")
    verdicts = [] if options.quick else tables.verdicts(of_set[USUAL], options.trials)
    verdicts += [] if options.quick else tables.promises(of_set[PITFALLS], options.trials)
    for what, held in verdicts:
        say(f"{'held' if held else 'MISSED'}: {what}")
    return 0 if all(held for _, held in verdicts) else 1


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench-tuning", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds")
    parser.add_argument("--sets", nargs="+", default=[*SETS], choices=[*SETS])
    parser.add_argument("--problems", nargs="+", default=[], choices=sorted(PROBLEMS))
    parser.add_argument("--candidates", nargs="+", default=[], choices=CANDIDATES)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each case")
    parser.add_argument("--first-seed", type=int, default=0, help="first seed; use 1000 to choose constants")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument(
        "--note", default=f"commit {report.commit() or 'unknown'}", help="note below the tables"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="run nothing, report the stored results")
    return parser.parse_args(words)


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """Yield the tasks, ordered by seed, so that partial results cover all cases."""
    names: list[str] = options.candidates or list(CANDIDATES)
    problems: list[str] = options.problems or [
        problem.name for name in options.sets for problem in SETS[name]
    ]
    first: int = options.first_seed
    for seed in range(first, first + options.seeds):
        for problem in problems:
            for pending in PROBLEMS[problem].pending:
                for name in names:
                    yield Task(problem, pending, name, seed, options.trials)


def work(wanted: Sequence[Task], options: argparse.Namespace) -> list[Result]:
    """Run the tasks without a stored result. Return the results of all tasks that succeeded."""
    known = {result.task: result for result in kept(RESULTS) if result.version == version(result.task)}
    missing = [] if options.report else [task for task in wanted if task not in known]
    say(f"{len(wanted)} runs, {len(missing)} to do, {options.jobs} at a time ...")
    for done, result in enumerate(do(missing, options.jobs), start=1):
        known[result.task] = result
        keep(RESULTS, result)
        if done % 20 == 0:
            say(f"{done} of {len(missing)}")
    return [known[task] for task in wanted if task in known]


def do(missing: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Run tasks in separate processes. Yield the results in the order in which the tasks finish."""
    pythons: dict[str, Path] = {}
    for name in sorted({task.candidate for task in missing}):
        try:
            say(f"{name}: looking for its environment; the first time it is installed ...")
            pythons[name] = environments.python_for(name)
        except environments.NotInstalled as lost:
            say(f"SKIPPED: {name}: {lost}")
    with ThreadPoolExecutor(jobs) as pool:
        runs = [
            pool.submit(_apart, pythons[task.candidate], task)
            for task in missing
            if task.candidate in pythons
        ]
        for run in as_completed(runs):
            result = run.result()
            if isinstance(result, Result):
                yield result
            else:
                say(f"SKIPPED: {result}")


def _apart(python: Path, task: Task) -> Result | str:
    """Run a task in a separate process. Return its result or the error."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    paths = os.pathsep.join(map(str, (ROOT, *(ROOT / "packages").glob("*/src"))))
    process = subprocess.run(
        [python, "-m", "bench.tuning.runs"],
        input=json.dumps(asdict(task)) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, **one_thread, "PYTHONPATH": paths},
        cwd=ROOT,
        check=False,
    )
    for line in process.stdout.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            # Lines that are not a result were printed by a library.
            return from_json(line)
    last = "".join(process.stderr.strip().splitlines()[-1:])
    return f"{task}: {last or f'exit {process.returncode}'}"


def kept(path: Path) -> Iterator[Result]:
    """Yield the results of earlier runs. Ignore a line that an interruption has truncated."""
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
