"""The demo program as a job runs it: one process per replica, talking over loopback addresses."""

import functools
import json
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from trainshed_demo.digits import UNTRAINED, load_digits, train

from tests.e2e.nursery import Nursery
from trainshed.cli.sdist import demo_program_directory

PATIENCE = 60.0


@functools.cache
def _nursery() -> Nursery:
    """Has loaded what the program loads: scikit-learn takes three times as long as the training."""
    places = os.pathsep.join([str(Path.cwd()), str(demo_program_directory())])
    alone = os.environ | {"PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return Nursery(("numpy", "sklearn.datasets", "multiprocessing.managers"), environ=alone)


class Replica:
    """A process of the demo program, whose lines can be waited for."""

    def __init__(self, job: "Job", pool: int, index: int) -> None:
        task = {"type": f"workerpool{pool}", "index": index}
        spec = {"cluster": job.cluster, "environment": "cloud", "task": task}
        output, told = os.pipe()
        self.process = _nursery().fork(
            ["-m", "tests.contract.demo.disk_storage", *job.arguments],
            os.environ
            | {
                "CLUSTER_SPEC": json.dumps(spec),
                "AIP_CHECKPOINT_DIR": "gs://b/run/checkpoints/",
                "AIP_MODEL_DIR": "gs://b/run/model/",
                "BUCKETS": str(job.buckets),
            },
            stdout=told,
            stderr=told,
        )
        os.close(told)
        self._output = os.fdopen(output)
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self._fresh.put(line.rstrip("\n"))
        self._fresh.put(None)

    def wait_for(self, text: str) -> None:
        """Returns when a line with the text has been printed since the last call."""
        while True:
            line = self._fresh.get(timeout=PATIENCE)
            assert line is not None, f"{text!r} never came: {self.lines}"
            self.lines.append(line)
            if text in line:
                return

    def end(self) -> int:
        """Waits for the end; all lines are there then."""
        status = self.process.wait(PATIENCE)
        while (line := self._fresh.get(timeout=PATIENCE)) is not None:
            self.lines.append(line)
        return status

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._output.close()


class Job:
    """One primary, two workers, an evaluator; pool 2 skipped."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        # Only the primary listens, so the other hosts' addresses need not exist.
        self.cluster = {
            "workerpool0": [f"127.0.0.1:{port}"],
            "workerpool1": [f"127.0.0.2:{port}", f"127.0.0.3:{port}"],
            "workerpool3": [f"127.0.0.4:{port}"],
        }
        self.buckets = directory
        self.arguments = ["--epochs", "12", "--poll-seconds", "0.05"]
        self._replicas: list[Replica] = []

    def be_alone(self) -> None:
        """Has no replica but the primary."""
        self.cluster = {"workerpool0": self.cluster["workerpool0"]}

    def folder(self, name: str) -> Path:
        """A folder below the job's output, on the disk."""
        return self.buckets / "b/run" / name

    def start(self, pool: int, index: int = 0) -> Replica:
        replica = Replica(self, pool, index)
        self._replicas.append(replica)
        return replica

    def clear(self) -> None:
        for replica in self._replicas:
            replica.stop()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.clear()


@pytest.mark.soak  # As a job: test_demo.py and test_drills.py; checkpoints: below.
def test_a_job_survives_the_loss_of_a_worker_and_of_the_primary(job: Job) -> None:
    """spec/failures#lost-replicas: a lost replica is started again under its own address; the program goes
    on."""
    job.arguments += ["--checkpoint-epochs", "1", "--epoch-seconds", "0.1"]
    workers = [job.start(1, 0), job.start(1, 1)]
    evaluator = job.start(3)
    primary = job.start(0)

    primary.wait_for("epoch 2/12")
    workers[0].process.kill()
    workers[0] = job.start(1, 0)
    primary.wait_for("worker 1 joined")
    primary.wait_for("epoch 5/12")

    primary.process.kill()
    workers[1].wait_for("lost the primary")
    primary = job.start(0)
    primary.wait_for("resuming from the checkpoint after epoch")
    primary.wait_for("epoch 12/12")

    assert primary.end() == 0
    assert [worker.end() for worker in workers] == [0, 0]
    assert "final accuracy 0.9" in primary.lines[-1]
    assert "(3 replicas)" in " ".join(primary.lines)

    # The service shuts the evaluator down when the primary has succeeded.
    evaluator.process.send_signal(signal.SIGTERM)
    assert evaluator.end() == 0
    assert "after epoch 12: accuracy 0.9" in evaluator.lines[-1]

    # Nothing was lost, nothing was done twice.
    weights, (examples, _) = UNTRAINED, load_digits()
    for epoch in range(12):
        parts = [train(weights, examples.share(rank, 3), epoch) for rank in range(3)]
        weights = np.mean(parts, axis=0)
    with np.load(job.folder("model") / "model.npz") as model:
        np.testing.assert_allclose(model["weights"], weights, atol=1e-3)


def test_a_primary_that_is_asked_to_end_saves_what_it_has(job: Job) -> None:
    """spec/program#stopping: SIGTERM comes with a grace time, so that a program can checkpoint."""
    job.be_alone()
    job.arguments += ["--checkpoint-epochs", "100", "--epoch-seconds", "0.2"]
    primary = job.start(0)
    primary.wait_for("epoch 3/12")
    primary.process.send_signal(signal.SIGTERM)
    assert primary.end() == -signal.SIGTERM
    assert primary.lines[-1].startswith("asked to end; saved epoch-00")
    assert list(job.folder("checkpoints").iterdir())


def test_a_finished_job_is_not_trained_again(job: Job) -> None:
    job.be_alone()
    job.arguments += ["--epoch-seconds", "0"]

    def epochs() -> list[str]:
        primary = job.start(0)
        assert primary.end() == 0
        return [line.split()[1] for line in primary.lines if line.startswith("epoch ")]

    every = [f"{epoch}/12" for epoch in range(1, 13)]
    assert epochs() == every
    metrics = json.loads((job.folder("model") / "metrics.json").read_bytes())
    assert metrics["accuracy"] > 0.95
    assert metrics["epochs"] == 12
    assert epochs() == []


def test_not_having_learned_is_a_failure(job: Job) -> None:
    job.be_alone()
    job.arguments += ["--epochs", "0"]
    primary = job.start(0)
    assert primary.end() == 1
    assert "has not learned enough" in primary.lines[-1]
