"""`./dev bench`: all budgets for time and memory, as ratios to floors of the same run.

Prints a table for each part and writes the tables to build/bench/main.md. Exits with 1 if a target is missed
or a part of Trainshed fails. The figures of other systems (`peers`) never change the exit status.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.running import ROOT

from bench import (
    cold,
    control_plane,
    decision,
    experiments,
    lists,
    logs,
    loop,
    main_job,
    peers,
    recovery,
    report,
    restarts,
    slurm,
    warm_starts,
)
from bench.measures import Row
from bench.report import Section

BARE = "bare interpreter, same run"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark. `seconds`: its approximate duration on two cores. `disk`: GB of temporary
    files. `counts`: whether its failure changes the exit status."""

    name: str
    about: str
    seconds: int
    run: Callable[[argparse.Namespace], Sequence[Row]]
    ours: str = "Trainshed"
    floor: str = BARE
    disk: float = 0.5
    counts: bool = True


def _control_plane(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory:
        finished = (control_plane.FINISHED[0], options.finished)
        return control_plane.rows(control_plane.measure(Path(directory), finished))


def _list_rows(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory:
        return lists.measure(Path(directory), options.finished)


PARTS = (
    Part(
        "main",
        "start-up, throughput, submit cost, memory",
        90,
        lambda options: main_job.measure(options.rounds, options.jobs, options.seconds),
    ),
    Part(
        "restarts",
        "restart in place and whole-job retry",
        25,
        lambda options: restarts.measure(max(5, options.rounds // 2)),
    ),
    Part(
        "cold",
        "the first job of a runtime, and the job repeated",
        110,
        lambda options: cold.measure(max(10, options.rounds // 2)),
        floor="the other, same run",
        disk=3,
    ),
    Part(
        "warm-starts",
        "the first statement of a PyTorch program, trials per hour, warm and cold",
        150,
        lambda options: warm_starts.measure(max(5, options.rounds // 3)),
        disk=3,
    ),
    Part(
        "recovery",
        "the service killed with 1,000 running and with 1,000 queued jobs",
        75,
        lambda options: recovery.measure(max(3, options.rounds // 6)),
        floor="empty service, same run",
    ),
    Part(
        "control-plane",
        "store and scheduling pass with 1,000,000 finished and 10,000 queued jobs",
        150,
        _control_plane,
        ours="{finished:,} finished",
        floor="1,000 finished",
        disk=6,
    ),
    Part(
        "lists",
        "lists over REST, and the shutdown of a service, with 1,000,000 finished jobs",
        150,
        _list_rows,
        ours="{finished:,} finished",
        floor="1,000 finished",
        disk=6,
    ),
    Part(
        "decision",
        "one decision at 10,000 nodes and 100,000 queued jobs",
        10,
        lambda options: decision.measure(),
        floor="–",
    ),
    Part(
        "loop",
        "a status call during a gang of 200, a build, floods of lines, 100,000 objects, a hung zygote",
        75,
        lambda options: loop.measure(),
        floor="the caller's own echo server, same run",
        disk=1,
    ),
    Part(
        "logs",
        "lines captured from a program, read over REST, printed by the command line",
        60,
        lambda options: logs.measure(),
        floor="a loop over the files, same run",
        disk=1,
    ),
    Part(
        "experiments",
        "a million points of curves, the SDK's table of 100 runs",
        45,
        lambda options: experiments.measure(),
        floor="file, or the SDK's own time, same run",
    ),
    Part(
        "slurm",
        "the Slurm engine compared with srun, salloc and sbatch, on a local cluster of three nodes (root)",
        150,
        lambda options: slurm.measure(max(6, options.rounds // 3), options.jobs // 2),
        floor="manual Slurm, same run",
        disk=3,
    ),
    Part(
        "peers",
        "Slurm and Ray on this machine (installs them if possible)",
        90,
        lambda options: peers.measure(max(5, options.rounds // 2), options.jobs),
        ours="there",
        disk=3,
        counts=False,
    ),
)


def main() -> int:
    options = arguments()
    _leave_tmp()
    chosen = [part for part in PARTS if not options.only or part.name in options.only]
    seconds = sum(part.seconds for part in chosen)
    say(f"{len(chosen)} parts, about {seconds // 60} min {seconds % 60} s on two quiet cores.")
    sections: list[Section] = []
    broken = False
    for part in chosen:
        section, failed = run(part, options)
        sections.append(section)
        broken |= part.counts and (failed or not section.held)
    text = report.text(sections)
    print(text)
    target = ROOT / "build" / "bench" / "main.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", "utf-8")
    return 1 if broken else 0


def _leave_tmp() -> None:
    """Store temporary files, including data directories, below build/bench, unless TMPDIR is set.

    Few users have their data below /tmp. With data below /tmp, each start takes a millisecond longer: a
    program has its own /tmp, in which the path to its files must be created.
    """
    if "TMPDIR" not in os.environ:
        tempfile.tempdir = str(ROOT / "build" / "bench")
        Path(tempfile.tempdir).mkdir(parents=True, exist_ok=True)


def arguments() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description=__doc__,
        epilog="Parts: " + "; ".join(f"{p.name} ({p.about}, ~{p.seconds} s)" for p in PARTS),
    )
    parser.add_argument("--only", type=_names(names), default=[], help="parts, as in main,restarts")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each start-up row")
    parser.add_argument("--jobs", type=int, default=120, help="jobs of the throughput rows")
    parser.add_argument("--seconds", type=int, default=5, help="length of the submit load")
    parser.add_argument(
        "--finished", type=int, default=control_plane.FINISHED[1], help="jobs of the long history"
    )
    return parser.parse_args()


def _names(known: list[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(
                f"part {unknown[0]!r} does not exist; choose from {','.join(known)}"
            )
        return chosen

    return read


def run(part: Part, options: argparse.Namespace) -> tuple[Section, bool]:
    """Run one part and return whether it failed. After an error, the next parts still run."""
    load = os.getloadavg()[0]
    ours = part.ours.format(finished=options.finished)
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    if free < part.disk:
        lost = (
            f"{part.name} needs {part.disk:g} GB in {tempfile.gettempdir()}, and {free:.1f} GB are free; "
            "make room or point TMPDIR to where there is some."
        )
        say(f"SKIPPED: {lost}")
        return Section(part.name, ours, part.floor, (), load, lost), False
    say(f"{part.name}: {part.about}, about {part.seconds} s ...")
    begun = time.monotonic()
    try:
        rows = tuple(part.run(options))
    except Exception as failure:
        traceback.print_exc()
        lost = f"{part.name} failed: {failure}"
        say(f"SKIPPED: {lost}")
        return Section(part.name, ours, part.floor, (), load, lost), True
    say(f"{part.name}: {time.monotonic() - begun:.0f} s")
    lost = "" if rows else f"{part.name} could not be measured here. The notes above contain the reason."
    return Section(part.name, ours, part.floor, rows, load, lost), False


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
