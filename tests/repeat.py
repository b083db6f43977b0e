"""Runs the tests again and again and tells how often each failed: `./dev test --repeat N [--stress]`.

Nothing that failed is asked a second time: one failure in one run ends the command with 1 (docs/adr/0054).
With `--stress` every second run has `stress-ng --cpu 4` beside it. Further arguments go to pytest; without
any, each run is a whole one.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct

_ROOT = Path(__file__).parents[1]
_STRESS = ("stress-ng", "--cpu", "4", "--quiet")


class Outcome(Struct, frozen=True):
    """What one run came to."""

    #: How many tests were run; 0 if the run wrote no report.
    tests: int
    #: The tests that failed, or whose set-up or tear-down did.
    failed: frozenset[str]
    #: The exit status of the run.
    status: int
    stressed: bool = False

    @property
    def is_good(self) -> bool:
        return self.status == 0 and not self.failed and self.tests > 0


def outcome(report: str, status: int, *, stressed: bool = False) -> Outcome:
    """What a run's report in JUnit's format says; "" if it wrote none."""
    if not report:
        return Outcome(0, frozenset(), status, stressed)
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    names = {
        f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("::")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return Outcome(len(cases), frozenset(names), status, stressed)


def table(outcomes: Sequence[Outcome]) -> str:
    """Every test that failed, the most frequent first, and what the runs came to."""
    quiet, beside = (
        Counter(name for run in outcomes if run.stressed is stressed for name in run.failed)
        for stressed in (False, True)
    )
    often = quiet + beside
    lines = [
        f"{often[name]:>4} of {len(outcomes)}  ({quiet[name]} quiet, {beside[name]} stressed)  {name}"
        for name in sorted(often, key=lambda name: (-often[name], name))
    ]
    for number, run in enumerate(outcomes, start=1):
        if not run.is_good and not run.failed:
            lines.append(
                f"run {number} ended with {run.status} after {run.tests} tests, and none failed"
            )
    good = sum(run.is_good for run in outcomes)
    stressed = sum(run.stressed for run in outcomes)
    lines.append(
        f"{good} of {len(outcomes)} runs were green, {stressed} of them all had stress-ng beside them; "
        f"{len(often)} tests failed at least once."
    )
    return "\n".join(lines)


@contextlib.contextmanager
def _beside(*, stressed: bool) -> Generator[None]:
    """Keeps the machine busy if `stressed`."""
    if not stressed:
        yield
        return
    with subprocess.Popen(_STRESS) as stress:
        try:
            yield
        finally:
            stress.terminate()


def _run(words: Sequence[str], *, stressed: bool) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        environ = os.environ | {"TRAINSHED_TEST_REPORT": str(report)}
        with _beside(stressed=stressed):
            script = ["sh", str(_ROOT / "tests" / "run.sh"), *words]
            status = subprocess.run(script, env=environ, check=False).returncode
        text = report.read_text() if report.exists() else ""
    return outcome(text, status, stressed=stressed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev test --repeat", description="Run the tests N times."
    )
    parser.add_argument("times", type=int, metavar="N")
    parser.add_argument(
        "--stress", action="store_true", help="every second run beside stress-ng --cpu 4"
    )
    options, words = parser.parse_known_args()
    if options.times < 1:
        parser.error("N is at least 1")
    if options.stress and not shutil.which(_STRESS[0]):
        parser.error("--stress needs stress-ng (Debian: apt-get install stress-ng)")
    outcomes: list[Outcome] = []
    for number in range(1, options.times + 1):
        began = time.monotonic()
        outcomes.append(_run(words, stressed=options.stress and number % 2 == 0))
        took = time.monotonic() - began
        # Also for who ends this before the last run.
        print(
            f"\nAfter run {number} of {options.times}, which took {took:.0f} s:\n{table(outcomes)}\n",
            flush=True,
        )
    return 0 if all(run.is_good for run in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
