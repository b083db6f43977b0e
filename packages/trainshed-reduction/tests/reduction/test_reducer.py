"""Tests of a running reducer: threads, port, output and reports (spec/reduction#reports,
spec/reduction#losses)."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.reduction.reducers import TOKEN, environment, reducer
from tests.reduction.workers import SECONDS, Worker
from trainshed_reduction import proof, variables
from trainshed_reduction.reducer.__main__ import main


def _gather(port: int, world: int, count: int = 1) -> list[list[Worker]]:
    """Return the workers of a started group, by lane (index of the reducer's thread)."""
    lanes = [[Worker(port, rank, world, lane=lane) for rank in range(world)] for lane in range(count)]
    assert {worker.start().position for lane in lanes for worker in lane} == {0}
    return lanes


def test_every_reducer_thread_returns_sums(tmp_path: Path) -> None:
    """spec/reduction#exactness: A reducer has one thread per core, all at one port, and exits with status
    0."""
    source = np.random.default_rng(6)
    with reducer(tmp_path, threads=2) as running:
        lanes = _gather(running.port, 3, 2)
        assert lanes[0][0].accept.threads == lanes[1][2].accept.threads == 2
        with pytest.raises(proof.WorkerRejected, match="there are 2 threads"):
            Worker(running.port, 0, 3, lane=2)
        assert running.line() == "group of 3 workers is complete"
        for operation in range(4):
            inputs = source.normal(0, 1, (2, 3, 50_000)).astype(np.float32)
            for lane, parts in zip(lanes, inputs, strict=True):
                # The last rank sends first, because only the order of ranks decides.
                for worker, part in reversed([*zip(lane, parts, strict=True)]):
                    worker.send_array(part, operation=operation)
            for lane, parts in zip(lanes, inputs, strict=True):
                want = ((parts[0] + parts[1]) + parts[2]).tobytes()
                assert [worker.result() == want for worker in lane] == [True] * 3
        assert running.end() == 0
        report = json.loads(running.report_file.read_text())
    assert [note["id"] for note in report["notes"]] == ["serving"]
    assert all(worker.end() == "" for lane in lanes for worker in lane)


def test_worker_that_is_still_sending_receives_the_error_about_mismatched_sizes(tmp_path: Path) -> None:
    """spec/reduction: The error is immediate and contains the ranks."""
    with reducer(tmp_path) as running:
        (workers,) = _gather(running.port, 2)
        workers[0].send(bytes(1 << 20))
        workers[0].send(bytes(1 << 20), operation=1)
        workers[1].send(bytes(1 << 19))
        with contextlib.suppress(ConnectionError):  # The reducer reads for two seconds only.
            workers[0].send(bytes(1 << 20), operation=2)
        text = (
            "operation 1: rank 0 has the SUM of 262144 elements of FLOAT32, rank 1 has the SUM of 131072 "
            "elements of FLOAT32"
        )
        assert [worker.end() for worker in workers] == [text, text]
        with pytest.raises(proof.WorkerRejected, match=text):
            Worker(running.port, 0, 2)


def test_idle_reducer_uses_no_processor_time(tmp_path: Path) -> None:
    """spec/reduction#frameworks: No thread wakes up while a group has no operations."""
    with reducer(tmp_path) as running:
        (workers,) = _gather(running.port, 2)
        for worker in workers:
            worker.send_array(np.zeros(8, np.float32))
            assert worker.rank == 1 or running.line() == "group of 2 workers is complete"
        assert all(len(worker.result()) == 32 for worker in workers)
        deadline = time.monotonic() + SECONDS
        while (before := _switches(running.process.pid)) and time.monotonic() < deadline:
            time.sleep(1.2)  # Long enough for work that repeats every second.
            if _switches(running.process.pid) == before:
                break
        else:
            pytest.fail("it never came to rest")


def _switches(process: int) -> list[str]:
    """Return the number of voluntary context switches of each thread."""
    return [
        line
        for status in Path(f"/proc/{process}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    ]


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({variables.TOKEN: ""}, "neither TRAINSHED_REDUCTION_TOKEN nor"),
        ({variables.LISTEN: "nowhere"}, "must be HOST:PORT"),
        ({variables.THREADS: "0"}, "not a whole number from 1 to 256"),
        ({variables.LISTEN: "192.0.2.1:4000"}, "cannot listen on 192.0.2.1:4000"),
    ],
)
def test_reducer_reports_invalid_environment_variables_and_exits_with_status_2(
    environ: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """spec/reduction#reports: It writes the error to standard error."""
    variables_set = {variables.TOKEN: TOKEN.decode(), variables.LISTEN: "127.0.0.1:0", **environ}
    for name, value in variables_set.items():
        monkeypatch.setenv(name, value)
    assert main() == 2
    output = capsys.readouterr()
    assert text in output.err
    assert not output.out


def test_reducer_without_the_c_library_reports_the_missing_library_once(tmp_path: Path) -> None:
    """spec/reduction#reports: It reports to the service, or writes to standard error. It does not exit,
    because it would be restarted."""
    fields = {
        **environment(),
        variables.NATIVE: str(tmp_path),
        variables.TOKEN: TOKEN.decode(),
        variables.LISTEN: "127.0.0.1:0",
    }
    command = [sys.executable, "-m", "trainshed_reduction.reducer"]
    with subprocess.Popen(command, env=fields, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "need the package's C library" in process.stderr.readline()
        process.terminate()
        assert (process.wait(SECONDS), process.stderr.read()) == (0, "")
