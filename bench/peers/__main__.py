"""`python -m bench.peers`: Slurm's and Ray's rows alone, beside the floor of the same run.

Prints a table and writes it to build/bench/peers.md. A peer that cannot run here is left out, with a note.
"""

import argparse
import os
import platform
import sys

from tests.e2e.running import ROOT

from bench.measures import Row
from bench.peers import ray, slurm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each restart row")
    parser.add_argument("--jobs", type=int, default=120, help="jobs of the throughput rows")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    report = table(measure(options.rounds, options.jobs), load)
    print(report)
    target = ROOT / "build" / "bench" / "peers.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report + "\n")
    return 0


def measure(rounds: int, jobs: int) -> list[Row]:
    """All the peers' rows, one peer after the other."""
    return [*slurm.measure(rounds, jobs), *ray.measure(rounds, jobs)]


def table(rows: list[Row], load: float) -> str:
    """The rows as Markdown. `load`: the machine's before the run."""
    lines = [
        f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}, "
        f"load {load:.1f} before the run",
        "",
        "| what | there | bare interpreter, same run | ratio |",
        "|---|---|---|---|",
    ]
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}×"
        lines.append(f"| {row.name} | {row.value} | {row.floor} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
