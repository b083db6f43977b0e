"""Run the tests several times and count the failures of each: `./dev test --repeat N`.

A failed test is not retried: one failure in one run makes the command exit with 1 (docs/adr/0054). Further
arguments are passed to pytest. Without arguments, each run is a whole run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

_SCRIPT = Path(__file__).with_name("run.sh")


def _run(words: Sequence[str]) -> tuple[int, set[str]]:
    """Return the exit status of a run, and the tests whose call or set-up failed."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        environ = os.environ | {"TRAINSHED_TEST_REPORT": str(report)}
        status = subprocess.run(["sh", _SCRIPT, *words], env=environ, check=False).returncode
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        failed = {
            f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("::")
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        }
    return status, failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev test --repeat", description="Run the tests N times.")
    parser.add_argument("times", type=int, metavar="N")
    options, words = parser.parse_known_args()
    failures, red = Counter[str](), 0
    for number in range(1, options.times + 1):
        began = time.monotonic()
        status, failed = _run(words)
        failures.update(failed)
        red += status != 0
        # Also shown if the user interrupts the command before the last run.
        took = time.monotonic() - began
        print(f"\nRun {number} of {options.times} took {took:.0f} s; {red} were red.", flush=True)
        for name, count in failures.most_common():
            print(f"{count:>4} times: {name}")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
