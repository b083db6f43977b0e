"""Warm starts of programs (docs/warm-starts.md): the first statement of a PyTorch program, and trials per
hour.

`python -m bench.warm_starts` prints the rows. `--cache DIRECTORY` selects a cache that contains the runtime.
The first statement of a PyTorch program is the one after `import torch`. Trials train for a fixed time, so
the comparison shows the overhead.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.packages import source_package, upload
from tests.e2e.running import CACHE, Service, running
from tests.e2e.tuning_programs import TUNING_JOBS, study_spec
from tests.torch_runtime import IMAGE

from bench import report
from bench.measures import Connection, Row, measure_interleaved, medians
from trainshed.core.launch import WARM_LABEL

MAX_FIRST_STATEMENT_RATIO = 5.0
"""Maximum time to the first statement, as a multiple of a bare start of the plain interpreter."""
_TRIALS, _PARALLEL = 8, 2
_TASK = """
import torch
import time
print(time.time_ns(), flush=True)
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, default=0.5)
parser.add_argument("--seconds", type=float, default=0)
given = parser.parse_args()
torch.manual_seed(0)
inputs, weights = torch.randn(256, 8), torch.zeros(8, 1, requires_grad=True)
targets = inputs @ torch.ones(8, 1)
optimizer = torch.optim.SGD([weights], lr=given.x / 10)
end = time.monotonic() + given.seconds
while time.monotonic() < end:
    optimizer.zero_grad()
    loss = ((inputs @ weights - targets) ** 2).mean()
    loss.backward()
    optimizer.step()
if given.seconds:
    import hypertune
    hypertune.HyperTune().report_hyperparameter_tuning_metric("score", loss.item(), 1)
import sys
print("runs", sys.executable)
"""


def measure(rounds: int, cache: Path = CACHE, *, trials: bool = True) -> list[Row]:
    """Measure `rounds` single programs. If `trials` is set, also measure two tuning jobs for each duration of
    a trial."""
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory:
        config = Path(directory, "service.toml")
        config.write_text(f'cache = "{cache}"\n')
        with running(Path(directory, "data"), "--config", str(config)) as service:
            uri = upload(service, "pkg-1.0.tar.gz", source_package(_TASK))
            rows = _first_statements(service, uri, rounds)
            return [*rows, *_trials(service, uri)] if trials else rows


def _first_statements(service: Service, uri: str, rounds: int) -> list[Row]:
    connection = Connection(service)
    _, template = _run_job(connection, uri, "on")
    while "started warm" not in _beginnings(connection, _run_job(connection, uri, "on")[0]):
        time.sleep(0.5)

    def took(label: str) -> float:
        begun = time.time_ns()
        job, stamp = _run_job(connection, uri, label)
        if label == "on" and "started warm" not in _beginnings(connection, job):
            raise RuntimeError(_beginnings(connection, job))
        return (int(stamp.split()[0]) - begun) / 1e6

    python = template.split()[1]
    warm, cold, bare = measure_interleaved(
        rounds, lambda: took("on"), lambda: took("off"), lambda: _bare(python)
    )
    what = "PyTorch: submit → first statement after its import"
    return [
        medians(f"{what}, warm, p50", warm, bare, MAX_FIRST_STATEMENT_RATIO),
        medians(f"{what}, cold, p50", cold, bare),
    ]


def _bare(python: str) -> float:
    """Return the time from spawn to the first statement of a program without imports, in the job's
    interpreter."""
    begun = time.time_ns()
    done = subprocess.run(
        [python, "-c", "import time; print(time.time_ns())"], capture_output=True, check=True
    )
    return (int(done.stdout) - begun) / 1e6


def _run_job(connection: Connection, uri: str, label: str) -> tuple[str, str]:
    """Run a job. Return the job and its output: the time of its first statement, `runs`, and its
    interpreter."""
    job = connection.submit({"labels": {WARM_LABEL: label}, **_job(uri)})
    lines = [line for line in connection.messages(job) if line.isdigit() or line.startswith("runs ")]
    if len(lines) != 2:
        raise RuntimeError(f"{job} did not print the expected lines; see its log")
    return job, f"{lines[0]} {lines[1].split()[1]}"


def _job(uri: str) -> dict[str, Any]:
    return {"displayName": "warm", "jobSpec": {"workerPoolSpecs": [_pool(uri, [])]}}


def _pool(uri: str, args: list[str]) -> dict[str, Any]:
    package = {"executorImageUri": IMAGE, "packageUris": [uri], "pythonModule": "trainer.task", "args": args}
    machine = {"machineType": "n1-standard-4"}
    return {"machineSpec": machine, "replicaCount": 1, "pythonPackageSpec": package}


def _beginnings(connection: Connection, job: str) -> str:
    """Return the timeline's text about the start of the job's program."""
    entries = connection.call("GET", f"/trainshed/v1/jobs/{job}/timeline")["entries"]
    return " ".join(entry["message"] for entry in entries if entry["kind"] == "warm_start")


def _trials(service: Service, uri: str) -> list[Row]:
    rows: list[Row] = []
    for seconds in (10, 1):
        warm, cold = (_trials_per_hour(service, uri, seconds, label) for label in ("on", "off"))
        rows.append(
            Row(
                f"PyTorch trials of {seconds} s per hour, {_PARALLEL} at once: warm, against cold",
                f"{warm:.0f}",
                f"{cold:.0f}",
                warm / cold,
            )
        )
    return rows


def _trials_per_hour(service: Service, uri: str, seconds: int, label: str) -> float:
    spec = {"workerPoolSpecs": [_pool(uri, ["--seconds", str(seconds)])]}
    body = {
        "displayName": "trials",
        "labels": {WARM_LABEL: label},
        "studySpec": study_spec(),
        "maxTrialCount": _TRIALS,
        "parallelTrialCount": _PARALLEL,
        "trialJobSpec": spec,
    }
    begun = time.monotonic()
    name = service.call("POST", TUNING_JOBS, body)["name"]
    while True:
        job = service.call("GET", f"/v1/{name}")
        if job["state"] == "JOB_STATE_SUCCEEDED":
            return _TRIALS * 3600 / (time.monotonic() - begun)
        if job["state"] in ("JOB_STATE_FAILED", "JOB_STATE_CANCELLED"):
            raise RuntimeError(str(job.get("error")))
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--no-trials", action="store_true", help="measure only single programs")
    options = parser.parse_args()
    return report.tell(measure(options.rounds, options.cache, trials=not options.no_trials))


if __name__ == "__main__":
    sys.exit(main())
