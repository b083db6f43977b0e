"""The cost of capturing a program's lines, and the speed of reading logs over REST and of printing them. The
floor is a plain reader of the same bytes. Budgets are fractions of the reader's speed, which depends on the
machine."""

import http.client
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.running import CUSTOM_JOBS, Service, command, common_place, container_job, environment, running

from bench.measures import Connection, Row, cpu_seconds, median

LINES = 1_000_000
ROUNDS = 5
PROGRAM = f"""
import os, signal
lines = [b"Epoch %d step %d loss 0.%03d accuracy 0.%03d\\n" % (n // 100, n, n % 1000, n * 7 % 1000)
         for n in range(1000)]
for _ in range({LINES} // 1000):
    for line in lines:
        os.write(1, line)
open({{done!r}}, "w").close()
signal.pause()
"""
"""The program, which writes each line separately, as a program that flushes after each line does."""


def measure() -> list[Row]:
    """Return the rows: lines per second of the readers, and captured lines per second of the shim's CPU
    time."""
    with (
        tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory,
        running(Path(directory) / "data") as service,
    ):
        connection = Connection(service)
        service.finish(connection.submit(container_job("pass")))
        job, captured = _capture(service, connection)
        files = sorted(service.data.glob(f"logs/{job}/1/workerpool0-0/*.jsonl"))
        decoded = _plain(files, time.process_time)
        plain: list[float] = []
        rest: list[float] = []
        shown: list[float] = []
        for _ in range(ROUNDS):
            plain.append(_plain(files, time.perf_counter))
            rest.append(_rest(service, job))
            shown.append(_print_log(service, job))
        return [
            _row("lines captured per second of CPU time, a write per line", captured, decoded, 2),
            _row("lines of a log read back over REST per second", median(rest), median(plain), 0.6),
            _row("lines printed by `jobs logs` per second", median(shown), median(plain), 0.4),
        ]


def _row(name: str, rate: float, floor: float, least: float) -> Row:
    ratio = rate / floor
    return Row(name, f"{rate:,.0f}/s", f"{floor:,.0f}/s", ratio, f"≥ {least:g}×", ratio >= least)


def _capture(service: Service, connection: Connection) -> tuple[str, float]:
    """Run a job that writes all lines. Return the finished job, and the number of lines that its shim
    captured per second of CPU time."""
    done = common_place() / "written"
    os.mkfifo(done)
    done.chmod(0o666)
    job = connection.submit(container_job(PROGRAM.format(done=str(done))))
    # The program opens `done` after it has written all lines. At this time, the output pipe contains only a
    # thousandth of the lines.
    with done.open():
        pass
    done.unlink()
    journal = service.data / "slots" / job / "1" / "workerpool0-0" / "journal"
    spent = cpu_seconds(json.loads(journal.read_text().splitlines()[1])["shim"])
    connection.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    service.finish(job)
    return job, LINES / spent


def _plain(files: Sequence[Path], clock: Callable[[], float]) -> float:
    """Return the lines per second of a reader that only decodes each line of the files."""
    begun = clock()
    count = sum(1 for file in files for line in file.open("rb") if json.loads(line))
    return count / (clock() - begun)


def _rest(service: Service, job: str) -> float:
    address = urlsplit(service.rest)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=300)
    begun, count = time.perf_counter(), 0
    headers = {"Authorization": f"Bearer {service.token}"}
    connection.request("GET", f"/trainshed/v1/jobs/{job}/logs", None, headers)
    response = connection.getresponse()
    while data := response.read1(1 << 20):
        count += data.count(b"\n")
    return _check_count(count, begun)


def _print_log(service: Service, job: str) -> float:
    begun = time.perf_counter()
    words = command("jobs", "logs", job, "--data", str(service.data))
    done = subprocess.run(words, env=environment(service.data), stdout=subprocess.PIPE, check=True)
    return _check_count(done.stdout.count(b"\n"), begun)


def _check_count(count: int, begun: float) -> float:
    seconds = time.perf_counter() - begun
    if count < LINES:
        raise RuntimeError(f"{count} lines arrived of {LINES}")
    return count / seconds
