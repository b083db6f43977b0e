"""`./dev bench-reduction`: all-reduce by reducers compared with gloo's ring, on links of a known rate.

Every host is a network namespace of this machine. The links between hosts are shaped in both directions. The
compared sides have separate processes and are measured in turn. A run of all cases takes about 20 minutes.
Results are stored in build/bench/reduction, one file per case.

Exits with 1 if a budget is missed or a side fails, and with 3 if this machine cannot run the benchmark.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.e2e.running import ROOT

from bench.reduction import environments, faults, tables
from bench.reduction.cases import ADVERSE, CASES, QUICK, Case
from bench.reduction.faults import FAULTS, Fault, Finding
from bench.reduction.figures import Comparison, comparisons
from bench.reduction.network import CannotRun, check
from bench.reduction.processes import SideFailed, say
from bench.reduction.running import Bench, Results, load
from bench.reduction.sides import GLOO, REDUCERS, SIDES, Side

RESULTS = ROOT / "build" / "bench" / "reduction"
PICTURE = ROOT / "build" / "bench" / "reduction.svg"
SWEEP = "sizes"
EVERY = (*CASES, *ADVERSE)
CANNOT_RUN = 3
INTERRUPTED = 130


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    cases = [QUICK] if options.quick else [case for case in EVERY if _is_wanted(options, case.name)]
    tests = [] if options.quick else [test for test in FAULTS if _is_wanted(options, test.name)]
    sound = True
    if not options.report:
        try:
            check()
            sound = measure(options, cases, tests)
        except CannotRun as why:
            say(f"CANNOT RUN HERE: {why}")
            return CANNOT_RUN
        except KeyboardInterrupt:
            say("interrupted; finished results are stored, and --report shows them")
            return INTERRUPTED
    if options.plot:
        # Add stored results of the other cases, because a plot with only some cases would look complete.
        cases, tests = list(EVERY), list(FAULTS)
    results = {case: case_results for case in cases if (case_results := load(RESULTS, case.name))}
    findings = [finding for test in tests for finding in faults.load(RESULTS, test.name)]
    return 0 if show(options, results, findings) and sound else 1


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    names = [choice.name for choice in (*EVERY, *FAULTS)]
    about = [f"{case.name} ({case.title}, ~{case.seconds} s a round)" for case in EVERY]
    about += [f"{test.name} ({test.about}, ~{test.seconds} s)" for test in FAULTS]
    parser = argparse.ArgumentParser(
        prog="./dev bench-reduction", description=__doc__, epilog=f"Cases: {'; '.join(about)}."
    )
    parser.add_argument("--quick", action="store_true", help="one case, about a minute")
    parser.add_argument("--only", type=_list_of(names), default=[], help="as in 4+4,2+2")
    parser.add_argument("--rounds", type=int, default=2, help="fresh processes of every side")
    parser.add_argument(
        "--sides", type=_list_of([side.name for side in SIDES]), default=[GLOO.name, REDUCERS.name]
    )
    parser.add_argument(
        "--python", type=Path, help="a Python with PyTorch; default: the service's own runtime"
    )
    parser.add_argument("--report", action="store_true", help="run nothing, report the stored results")
    parser.add_argument("--plot", action="store_true", help="draw the stored results into build/bench")
    return parser.parse_args(words)


def _list_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        if strange := sorted(set(chosen) - set(known)):
            raise argparse.ArgumentTypeError(
                f"{', '.join(strange)} does not exist; choose from {', '.join(known)}"
            )
        return chosen

    return read


def _is_wanted(options: argparse.Namespace, name: str) -> bool:
    return not options.only or name in options.only


def measure(options: argparse.Namespace, cases: Sequence[Case], tests: Sequence[Fault]) -> bool:
    """Run all cases and tests. Return whether all sides succeeded. Each result is stored when it is
    available. Raises CannotRun."""
    sound = True
    python = options.python or environments.python_with_torch()
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory:
        package = Path(directory)
        environments.package(package, python)
        sides = [side for side in SIDES if side.name in options.sides]
        bench = Bench(python, package)
        for case in cases:
            say(f"{case.name}: about {case.seconds * options.rounds} s ...")
            sound &= _came_through(lambda case=case: bench.run(case, sides, options.rounds).keep(RESULTS))
        for test in tests:
            say(f"{test.name}: about {test.seconds} s ...")
            sound &= _came_through(
                lambda test=test: faults.keep(RESULTS, test.name, test.find(bench, REDUCERS))
            )
    return sound


def _came_through(run: Callable[[], None]) -> bool:
    try:
        run()
    except SideFailed as failure:
        say(f"FAILED: {failure}")
        return False
    return True


def show(options: argparse.Namespace, results: Mapping[Case, Results], findings: Sequence[Finding]) -> bool:
    """Print the tables, write them to build/bench and, if requested, draw the plot. Return whether all
    budgets are met."""
    usual = {case: case_results for case, case_results in results.items() if not case.about}
    best = _comparisons(usual, REDUCERS)
    adverse = {case: case_results for case, case_results in results.items() if case.about}
    hindered = _comparisons(adverse, REDUCERS)
    log_lines = {
        case_results.case: case_results.about.get("said", {}).get(REDUCERS.name, [])
        for case_results in adverse.values()
    }
    parts = {
        "reduction-adverse": [tables.against(hindered, log_lines)] if hindered else [],
        "reduction": [tables.budget_table(best)] if best else [],
        "reduction-costs": [tables.costs(best)] if best else [],
        "reduction-numerics": [tables.numerics(best)] if best else [],
        "reduction-faults": [tables.faults(findings)] if findings else [],
    }
    if best:
        parts["reduction"].append(_about(usual))
    if hindered:
        parts["reduction-adverse"].append(_about(adverse))
    texts = {name: "\n\n".join(part) for name, part in parts.items() if part}
    text = "\n\n".join(texts.values())
    print(text)
    target = RESULTS.with_suffix(".md")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", "utf-8")
    if options.plot:
        _draw(best)
    return _verdicts([*best, *hindered], findings)


def _comparisons(results: Mapping[Case, Results], side: Side) -> list[Comparison]:
    return [
        comparison
        for case, case_results in results.items()
        for comparison in comparisons(case, case_results, side.name)
    ]


def _about(results: Mapping[Case, Results]) -> str:
    machines = sorted({case_results.about["machine"] for case_results in results.values()})
    return f"{'; '.join(machines)}; PyTorch {_versions(results)}; {_circumstances(results)}."


def _draw(compared: Sequence[Comparison]) -> None:
    # Import the plot's libraries only if the plot is requested.
    from bench.reduction import plot

    swept = [comparison for comparison in compared if comparison.case.name == SWEEP]
    plot.draw([comparison for comparison in compared if comparison not in swept], swept, PICTURE)


def _versions(results: Mapping[Case, Results]) -> str:
    facts = {
        case_results.about.get(GLOO.name, {}).get("torch", "not used") for case_results in results.values()
    }
    return ", ".join(sorted(facts))


def _circumstances(results: Mapping[Case, Results]) -> str:
    """Return notes about conditions that make the figures less reliable."""
    rounds = [len(case_results.rounds) for case_results in results.values()]
    loads = [case_results.about["load"] for case_results in results.values() if "load" in case_results.about]
    load = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not noted"
    count = f"{min(rounds)}" if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"
    return f"rounds of a case: {count}; load before a case: {load}"


def _verdicts(compared: Sequence[Comparison], findings: Sequence[Finding]) -> bool:
    missed = [
        f"{comparison.case.title}, {comparison.task.title}: {_why(comparison)}"
        for comparison in compared
        if not comparison.held
    ]
    missed += [f"{finding.what}: {finding.value}" for finding in findings if finding.held is False]
    for what in missed:
        say(f"MISSED: {what}")
    return not missed


def _why(comparison: Comparison) -> str:
    sent = f"{comparison.ours.sent:.3f} times the tensor left a worker"
    reasons = {
        f"{comparison.ratio:.3f} times as fast, {comparison.task.target:g} budget_table": comparison.fast,
        f"{sent}, {comparison.case.wire:g} budget_table": comparison.frugal,
        "training went another way than with gloo": comparison.same_training,
    }
    return "; ".join(reason for reason, held in reasons.items() if held is False)


if __name__ == "__main__":
    sys.exit(main())
