"""`python -m tests.chaos`: run jobs through the API while the service, zygotes and other processes are killed
or hang, and the disk is full. Exits with 0 or 1.
"""

import argparse
import secrets
import signal
import sys

from tests.chaos.kinds import KINDS
from tests.chaos.plans import Pace
from tests.chaos.run import run
from tests.chaos.run_load import FAULTS, Options


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="to run the same again")
    parser.add_argument(
        "--life",
        type=float,
        nargs=2,
        default=(1.0, 5.0),
        metavar="SECONDS",
        help="shortest and longest life of a program",
    )
    parser.add_argument(
        "--kinds", nargs="*", choices=tuple(KINDS), default=(), help="these kinds of jobs alone"
    )
    parser.add_argument("--nodes", type=int, default=1, help="virtual nodes; several are drained at random")
    parser.add_argument(
        "--strict", action="store_true", help="nodes have room for so many replicas and no more"
    )
    parser.add_argument(
        "--at-ends", action="store_true", help="kill service and zygote whenever a program is about to end"
    )
    parser.add_argument(
        "--faults",
        nargs="*",
        choices=FAULTS,
        default=None,
        help="what else comes: the advisor is killed, the zygote stopped, the disk filled; "
        "all of it, but nothing if nodes are drained",
    )
    parser.add_argument(
        "--tunings", type=int, default=None, help="tuning jobs among the others; 2, but 0 with drains"
    )
    values = vars(parser.parse_args())
    is_drained = values["nodes"] > 1
    if values["faults"] is None:
        values["faults"] = () if is_drained else FAULTS
    if values["tunings"] is None:
        # A drain restarts programs of trials, which cannot be distinguished from programs that ran twice.
        values["tunings"] = 0 if is_drained else 2
    options = Options(pace=Pace(*values.pop("life")), **values)
    signal.signal(signal.SIGTERM, _end_early)
    print(f"chaos: {options.jobs} jobs, {options.kills} kills, seed {options.seed}", flush=True)
    return run(options)


def _end_early(number: int, frame: object) -> None:
    """A signal ends the run, its service and its programs. A second signal, as sent by `timeout`, has no
    effect.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
