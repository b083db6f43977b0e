"""`python -m tests.chaos`: jobs through the API while service and zygote are killed; exit status 0 or 1."""

import argparse
import secrets
import sys

from tests.chaos.plans import KINDS, Pace
from tests.chaos.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6), help="to run the same again"
    )
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="spread the kills over so many minutes"
    )
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
    parser.add_argument(
        "--replicas", type=int, default=24, help="how many run at once; the others wait"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the directory even if all is well"
    )
    given = parser.parse_args()
    options = Options(
        jobs=given.jobs,
        kills=given.kills,
        seed=given.seed,
        minutes=given.minutes,
        pace=Pace(*given.life),
        kinds=tuple(given.kinds),
        replicas=given.replicas,
        keep=given.keep,
    )
    print(f"chaos: {options.jobs} jobs, {options.kills} kills, seed {options.seed}", flush=True)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
