"""CPU seconds of each test, of its processes and of those that outlive them:

    ./dev test -p tests.accounting --cpu-to FILE [PATH ...]; python -m tests.accounting FILE

Each pytest process accounts in a control group of its own (version 1, `cpuacct`, as root), and in those of
the machines of its labs (tests.slurm.nodes), which are apart. Where there are none, only what it has
waited for counts. What a session's fixture costs is the first test's that asks for it.

It also says which files each of several workers ran last: so one sees if a run ends with one worker alone.
"""

import collections
import json
import os
import resource
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from tests.e2e import nursery

COLLECTING = "(until all tests are collected)"
_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_Row = tuple[str, float, float, str, float]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-to", metavar="FILE", help="Append the CPU seconds of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-to"):
        config.pluginmanager.register(_Account(Path(path)))


class _Account:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        #: Nanoseconds that machines of labs had used at the last look; some are gone by now.
        self._labs: dict[Path, int] = {}
        #: Of those whose group was made anew.
        self._former = 0
        # Nurseries of its own: what another worker's does for it would count as that one's.
        os.environ[nursery.RUN] = f"{os.getpid()} {os.getpid()}"
        self._group = _GROUPS / f"trainshed-tests-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            print(f"only processes that were waited for are accounted: {error}", file=sys.stderr)
            self._group = None

    def pytest_collection_finish(self) -> None:
        # What this process needed before its group was there is in no group.
        own = resource.getrusage(resource.RUSAGE_SELF)
        used = max(self._used(), own.ru_utime + own.ru_stime)
        self._write((COLLECTING, used, 0.0, self._worker, time.monotonic()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        cpu, wall = self._used(), time.monotonic()
        try:
            return (yield)
        finally:
            now = time.monotonic()
            self._write((item.nodeid, self._used() - cpu, now - wall, self._worker, now))

    def _write(self, row: _Row) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _used(self) -> float:
        if self._group is not None:
            for group in _GROUPS.glob(f"trainshed-lab-{os.getpid()}-*"):
                usage = _usage(group)
                if usage < (before := self._labs.get(group, 0)):
                    self._former += before
                self._labs[group] = usage
            return (_usage(self._group) + sum(self._labs.values()) + self._former) / 1e9
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)


def _usage(group: Path) -> int:
    """Nanoseconds."""
    return int((group / "cpuacct.usage").read_text())


def _print(
    title: str, seconds: Mapping[str, float], waited: Mapping[str, float], count: int
) -> None:
    print(f"\n{'CPU s':>8} {'wall s':>8}  {title}")
    for name in sorted(seconds, key=lambda name: -seconds[name])[:count]:
        print(f"{seconds[name]:8.1f} {waited[name]:8.1f}  {name}")


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print(f"{sum(row[1] for row in rows):.0f} CPU seconds in {len(rows)} tests")
    for title, count in (("folder", 20), ("file", 80), ("test", 80)):
        seconds: dict[str, float] = collections.defaultdict(float)
        waited: dict[str, float] = collections.defaultdict(float)
        for test, cpu, wall, *_ in rows:
            folder, file = str(Path(test.partition("::")[0]).parent), test.partition("::")[0]
            name = {"folder": folder, "file": file, "test": test}[title]
            seconds[name] += cpu
            waited[name] += wall
        _print(title, seconds, waited, count)
    _print_last(rows)


def _print_last(rows: list[_Row]) -> None:
    """What each worker ran last, and how long before the end of all it was done."""
    ends = [row[4] for row in rows]
    last: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for test, _, _, worker, end in rows:
        last[worker][test.partition("::")[0]] = max(ends) - end
    print(f"\n{'worker':>8} {'ended':>8}  file, by seconds before the end of all")
    for worker, files in sorted(last.items()):
        for file, before in list(files.items())[-3:]:
            print(f"{worker:>8} {before:8.1f}  {file}")


if __name__ == "__main__":
    main()
