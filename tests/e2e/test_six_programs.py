"""Six training programs as people publish them, run unmodified by the clients they were written for
(spec/submit, spec/program, spec/runtimes).

The programs lie in `programs/`; none knows anything of this service. Those whose libraries are large are run
by `./dev test-runtimes`, in the cache that $TRAINSHED_CACHE names.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.packages import PROGRAMS, packed
from tests.e2e.running import CACHE, Service, running
from tests.e2e.sdk import pointed_sdk

IMAGES = "us-docker.pkg.dev/vertex-ai/training"
BUCKET = "trainshed"
MINUTES = 60.0
MACHINE = {"machine_type": "n1-standard-4"}


class House:
    """A running service, and what its jobs leave."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.bucket = Path(service.extra["buckets"]) / BUCKET

    def upload(self, name: str, directory: Path) -> str:
        """Put the program's package into the bucket; its URI."""
        self.service.put(
            BUCKET, f"packages/{name}-0.1.tar.gz", packed(name, directory).read_bytes()
        )
        return f"gs://{BUCKET}/packages/{name}-0.1.tar.gz"

    def run(self, uid: str, seconds: float = 3 * MINUTES) -> list[str]:
        """Wait for the job's success; the lines of its primary replica."""
        state = self.service.finish(uid, seconds)["state"]
        assert state == "SUCCEEDED", self.service.lines(uid) + self.service.lines(uid, "service")
        return self.service.lines(uid, "workerpool0-0")

    def left(self, prefix: str) -> list[str]:
        """Names of the files in the bucket below `prefix`, relative to it."""
        root = self.bucket / prefix
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A service whose runtimes of gigabytes are kept for the next time."""
    place = tmp_path_factory.mktemp("large")
    config = place / "service.toml"
    config.write_text(f'cache = "{os.environ.get("TRAINSHED_CACHE") or CACHE}"\n')
    with running(place / "data", "--config", str(config)) as service:
        yield House(service)


def created(gcloud: Gcloud, *arguments: str) -> str:
    """The id of a CustomJob that gcloud has created."""
    create = ("ai", "custom-jobs", "create", "--format=value(name)")
    return gcloud.run(*create, *arguments).stdout.strip().rpartition("/")[2]


@pytest.mark.runtimes
@pytest.mark.gcloud
@needs_gcloud
def test_xgboost(large: House, tmp_path: Path) -> None:
    """`gcloud ai custom-jobs`, by a configuration file; the booster is saved below /gcs."""
    config = tmp_path / "job.yaml"
    pool: dict[str, Any] = {
        "machineSpec": {"machineType": MACHINE["machine_type"]},
        "replicaCount": 1,
        "pythonPackageSpec": {
            "executorImageUri": f"{IMAGES}/xgboost-cpu.1-6:latest",
            "packageUris": [large.upload("xgboost", tmp_path)],
            "pythonModule": "trainer.task",
            "args": ["--boost-rounds=60"],
        },
    }
    output = {"outputUriPrefix": f"gs://{BUCKET}/diabetes"}
    # JSON is YAML, too.
    config.write_text(json.dumps({"workerPoolSpecs": [pool], "baseOutputDirectory": output}))
    gcloud = Gcloud(large.service, tmp_path / "gcloud")
    lines = large.run(
        created(gcloud, "--display-name=diabetes", f"--config={config}"), 10 * MINUTES
    )
    (error, baseline) = map(float, re.findall(r"\d+\.\d+", lines[-1]))
    assert lines[-1].startswith("rmse ")
    assert error < 0.9 * baseline
    assert large.left("diabetes") == ["model/model.bst"]


@pytest.mark.runtimes
@pytest.mark.gcloud
@needs_gcloud
def test_pytorch_ddp(large: House, tmp_path: Path) -> None:
    """Two replicas meet by `env://`; a second job goes on from the first one's checkpoint below /gcs."""
    package = large.upload("pytorch_ddp", tmp_path)
    gcloud = Gcloud(large.service, tmp_path / "gcloud")
    pool = (
        f"machine-type={MACHINE['machine_type']},replica-count=1,"
        f"executor-image-uri={IMAGES}/pytorch-cpu.2-4.py310:latest,python-module=trainer.task"
    )

    def train(epochs: int) -> tuple[list[str], list[str]]:
        uid = created(
            gcloud,
            f"--display-name=ddp-{epochs}",
            f"--worker-pool-spec={pool}",
            f"--worker-pool-spec={pool}",
            f"--python-package-uris={package}",
            f"--args=--epochs={epochs},--checkpoint=/gcs/{BUCKET}/ddp/last.pt",
        )
        return large.run(uid, 10 * MINUTES), large.service.lines(uid, "workerpool1-0")

    chief, worker = train(5)
    assert any(line.startswith("rank 0 of 2, cmle-training-workerpool0-") for line in chief)
    assert any(line.startswith("rank 1 of 2, cmle-training-workerpool0-") for line in worker)
    assert (large.bucket / "ddp/last.pt").stat().st_size > 0
    chief, worker = train(10)
    assert "resumed at epoch 5" in chief
    assert "resumed at epoch 5" in worker
    assert chief[-1].endswith("weights [1.0, -2.0, 3.0, 0.5]"), chief


@pytest.mark.runtimes
def test_tensorflow_multi_worker_mirrored_strategy(large: House) -> None:
    """The SDK packs a script; two workers of one machine serve gRPC on port 2222 each, as TF_CONFIG says;
    checkpoints and model go to gs:// by TensorFlow's own file system."""
    with pointed_sdk(large.service, BUCKET) as sdk:
        job = sdk.CustomJob.from_local_script(
            display_name="mirrored",
            script_path=str(PROGRAMS / "tensorflow" / "task.py"),
            container_uri=f"{IMAGES}/tf-cpu.2-11.py310:latest",
            args=["--epochs", "4"],
            replica_count=2,
            base_output_dir=f"gs://{BUCKET}/mirrored",
        )
        job.submit()
        uid = job.resource_name.rpartition("/")[2]
    chief = large.run(uid, 20 * MINUTES)
    worker = large.service.lines(uid, "workerpool1-0")
    assert "chief 0 of 2" in chief
    assert "worker 0 of 2" in worker
    assert _losses(chief) == _losses(worker)
    assert float(_losses(chief)[0]) < 0.01
    checkpoints = large.left("mirrored/checkpoints")
    assert {"checkpoint", "ckpt-1.index", "history.json"} <= set(checkpoints)
    assert "saved_model.pb" in large.left("mirrored/model")


def _losses(lines: Sequence[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith("loss ")]
