"""A reducer as it runs: its threads, its port, what it prints and reports. spec/reduction#reports,
spec/reduction#losses."""

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
    """By lane, the workers of a group that has started there."""
    lanes = [
        [Worker(port, rank, world, lane=lane) for rank in range(world)] for lane in range(count)
    ]
    assert {worker.start().position for lane in lanes for worker in lane} == {0}
    return lanes


def test_sums_come_back_from_every_thread(tmp_path: Path) -> None:
    """spec/reduction#exactness: reducers, one thread per core, all at one port; the end in good
    order."""
    source = np.random.default_rng(6)
    with reducer(tmp_path, threads=2) as running:
        lanes = _gather(running.port, 3, 2)
        assert lanes[0][0].accept.threads == lanes[1][2].accept.threads == 2
        with pytest.raises(proof.Refused, match="there are 2 threads"):
            Worker(running.port, 0, 3, lane=2)
        assert running.line() == "group of 3 workers is complete"
        for operation in range(4):
            inputs = source.normal(0, 1, (2, 3, 50_000)).astype(np.float32)
            for lane, parts in zip(lanes, inputs, strict=True):
                # The last rank first: what counts is the order of ranks.
                for worker, part in reversed([*zip(lane, parts, strict=True)]):
                    worker.send_array(part, operation=operation)
            for lane, parts in zip(lanes, inputs, strict=True):
                want = ((parts[0] + parts[1]) + parts[2]).tobytes()
                assert [worker.result() == want for worker in lane] == [True] * 3
        assert running.end() == 0
        report = json.loads(running.report_file.read_text())
    assert [note["id"] for note in report["notes"]] == ["serving"]
    assert all(worker.end() == "" for lane in lanes for worker in lane)


def test_an_error_is_read_although_the_worker_is_still_sending(tmp_path: Path) -> None:
    """spec/reduction: mismatched sizes are an immediate error that names the rank."""
    with reducer(tmp_path) as running:
        (workers,) = _gather(running.port, 2)
        workers[0].send(bytes(1 << 20))
        workers[0].send(bytes(1 << 20), operation=1)
        workers[1].send(bytes(1 << 19))
        with contextlib.suppress(ConnectionError):  # It is read for two seconds only.
            workers[0].send(bytes(1 << 20), operation=2)
        text = (
            "operation 1: rank 0 has the SUM of 262144 elements of FLOAT32, rank 1 has the SUM of 131072 "
            "elements of FLOAT32"
        )
        assert [worker.end() for worker in workers] == [text, text]
        with pytest.raises(proof.Refused, match=text):
            Worker(running.port, 0, 2)


def test_an_idle_reducer_does_nothing(tmp_path: Path) -> None:
    """spec/reduction#frameworks: no process wakes up while a group has nothing to reduce."""
    with reducer(tmp_path) as running:
        (workers,) = _gather(running.port, 2)
        for worker in workers:
            worker.send_array(np.zeros(8, np.float32))
            assert worker.rank == 1 or running.line() == "group of 2 workers is complete"
        assert all(len(worker.result()) == 32 for worker in workers)
        deadline = time.monotonic() + SECONDS
        while (before := _switches(running.process.pid)) and time.monotonic() < deadline:
            time.sleep(1.2)  # Whatever comes back every second would show.
            if _switches(running.process.pid) == before:
                break
        else:
            pytest.fail("it never came to rest")


def _switches(process: int) -> list[str]:
    """How often each of its threads has given up the processor by itself."""
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
        ({variables.THREADS: "0"}, "no whole number from 1 to 256"),
        ({variables.LISTEN: "192.0.2.1:4000"}, "cannot listen on 192.0.2.1:4000"),
    ],
)
def test_what_it_cannot_begin_with_it_says(
    environ: dict[str, str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """spec/reduction#reports: on standard error, with exit status 2."""
    variables_set = {variables.TOKEN: TOKEN.decode(), variables.LISTEN: "127.0.0.1:0", **environ}
    for name, value in variables_set.items():
        monkeypatch.setenv(name, value)
    assert main() == 2
    output = capsys.readouterr()
    assert text in output.err
    assert not output.out


def test_without_the_part_in_c_it_says_so_once(tmp_path: Path) -> None:
    """spec/reduction#reports: to the service, or on standard error. It stays, or it would be begun anew."""
    fields = {
        **environment(),
        variables.NATIVE: str(tmp_path),
        variables.TOKEN: TOKEN.decode(),
        variables.LISTEN: "127.0.0.1:0",
    }
    command = [sys.executable, "-m", "trainshed_reduction.reducer"]
    with subprocess.Popen(command, env=fields, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "need the package's part in C" in process.stderr.readline()
        process.terminate()
        assert (process.wait(SECONDS), process.stderr.read()) == (0, "")
