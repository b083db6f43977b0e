"""Random worlds for as long as one likes: `python -m tests.sim.run --minutes 10 [--seed N] [--only N]`.

Prints what was lived through, and for the first world that broke a rule its seed and the shortest scenario found
that still breaks it. `--only`: that one world, with all that can be said of it. Exit status 1: a rule was broken.
"""

import argparse
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tests.sim.scenario import Scenario, Submit, scenario
from tests.sim.traces import Life
from tests.sim.universe import Tally, Universe

SECOND = 10**9
YEAR = 365.25 * 24 * 3600 * SECOND
_TRACES = 200
"""Lives without a service that are compared after each world."""
_LINES = 80
_ENOUGH = 30
"""Seconds of real time; a world takes a tenth of one."""


def main() -> int:
    options = _options()
    if options.only is not None:
        return _show(scenario(options.only))
    until = time.monotonic() + options.minutes * 60
    total, worlds, traces, seed = Tally(), 0, 0, options.seed
    while time.monotonic() < until:
        lived = _lived(scenario(seed))
        if lived.wrong:
            print(f"seed {seed}: {_first(lived)}\nlooking for a shorter story …", flush=True)
            _show(_shortest(scenario(seed), by=time.monotonic() + 120))
            _report(total, worlds, traces, options.seed)
            return 1
        _add(total, lived.tally)
        worlds += 1
        for life in range(seed * _TRACES, (seed + 1) * _TRACES):
            judge = Life(life).live()
            traces += 1
            if judge.differences:
                print(f"life {life}:\n{judge.told()}")
                return 1
        seed += 1
    _report(total, worlds, traces, options.seed)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.sim.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int)
    return parser.parse_args()


class Endless(SystemExit):
    """A world takes far longer than any should."""


def _give_up(*_: object) -> None:
    raise Endless(f"not over after {_ENOUGH} s of real time")


def _lived(world: Scenario) -> Universe:
    made = Universe(world)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_ENOUGH)
    try:
        return made.run()
    except (Exception, Endless) as failure:  # whatever it is, it is found in this world
        trace = "".join(traceback.format_exception(failure)[-12:])
        at = made.clock.now / SECOND
        made.books.wrong.append(f"at {at:.3f} s the run failed: {failure!r}\n{trace}")
        return made
    finally:
        signal.alarm(0)


def _first(lived: Universe) -> str:
    return lived.wrong[0].splitlines()[0]


def _add(total: Tally, tally: Tally) -> None:
    total.virtual_ns += tally.virtual_ns
    total.jobs += tally.jobs
    total.commits += tally.commits
    total.steps += tally.steps
    total.crashes += tally.crashes
    total.starts += tally.starts
    total.faults += tally.faults
    total.ends += tally.ends


def _report(total: Tally, worlds: int, traces: int, seed: int) -> None:
    print(
        f"seed {seed}: {worlds} worlds, {total.virtual_ns / YEAR:.1f} years, {total.jobs} jobs, "
        f"{total.starts} programs, {total.commits} commits, {total.crashes} crashes of the service, "
        f"{total.steps} steps and {traces} lives compared with the reference"
    )
    crashes = Counter({k: n for k, n in total.faults.items() if k.startswith("crash")})
    faults = total.faults - crashes
    print("ends:", ", ".join(f"{kind} {count}" for kind, count in total.ends.most_common()))
    print("faults:", ", ".join(f"{kind} {count}" for kind, count in faults.most_common()))
    print("crashes:", ", ".join(f"{kind} {count}" for kind, count in crashes.most_common()))


def _show(world: Scenario) -> int:
    """One world and what was wrong with it, the end of each story first of all."""
    lived = _lived(world)
    print(f"seed {world.seed}: {len(world.requests)} requests, {len(world.mishaps)} mishaps")
    if lived.wrong:
        for request in world.requests:
            print(f"{request.at / SECOND:14.3f}  {_short(request)}")
        for mishap in world.mishaps:
            print(f"{mishap.at / SECOND:14.3f}  {mishap}")
        print(f"crashes: commits {world.crash_commits}, at {world.crash_times}")
    for wrong in lived.wrong:
        lines = wrong.splitlines()
        print("\n".join(lines[:1] + (["…"] if len(lines) > _LINES else []) + lines[1:][-_LINES:]))
    tally = Tally()
    _add(tally, lived.tally)
    _report(tally, 1, 0, world.seed)
    return 1 if lived.wrong else 0


def _short(request: object) -> str:
    if isinstance(request, Submit):
        pools = ", ".join(f"{p.replica_count} {p.machine.type}" for p in request.job.spec.pools)
        return f"Submit({request.job.uid}: {pools}; {request.job.spec.scheduling})"
    return str(request)


def _shortest(world: Scenario, by: float) -> Scenario:
    """The same world with less and less in it, as long as it still breaks some rule."""
    shrinking = True
    while shrinking and time.monotonic() < by:
        shrinking = False
        for smaller in _smaller(world):
            if time.monotonic() > by:
                break
            if _lived(smaller).wrong:
                world, shrinking = smaller, True
                break
    return world


def _smaller(world: Scenario) -> Iterator[Scenario]:
    """Halves first, then single things."""
    yield replace(world, crash_times=(), crash_commits=())
    for size in (8, 4, 2, 1):
        for field in ("requests", "mishaps", "crash_times", "crash_commits"):
            held = getattr(world, field)
            for start in range(0, len(held), size):
                left = held[:start] + held[start + size :]
                if field == "requests":
                    submitted = {r.job.uid for r in left if isinstance(r, Submit)}
                    left = tuple(r for r in left if getattr(r, "uid", None) in {None, *submitted})
                if len(left) < len(held):
                    yield replace(world, **{field: left})


if __name__ == "__main__":
    sys.exit(main())
