"""The public guide's example: gcloud, worker pools 0, 1 and 2, and a DDP program that knows nothing of
reducers (spec/reduction#reducers)."""

import re
from pathlib import Path

import pytest

from tests import torch_runtime
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.packages import packed, upload
from tests.e2e.running import Service, trainshed

_SECONDS = 240.0
_STEPS = 12
_WORKERS = f"executor-image-uri={torch_runtime.IMAGE},python-module=trainer.task,machine-type=n1-standard-4"
_REDUCER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
_REDUCERS = f"machine-type=n1-highcpu-16,replica-count=2,container-image-uri={_REDUCER}"
_POOLS = [f"--worker-pool-spec={_WORKERS},replica-count={count}" for count in (1, 2)]


def _train(service: Service, gcloud: Gcloud, package: str, *pools: str) -> str:
    """Run the program with these pools; the job's id, after its success."""
    created = gcloud.run(
        *("ai", "custom-jobs", "create", "--format=value(name)", "--display-name=wide"),
        *(f"--python-package-uris={package}", f"--args=--steps={_STEPS}", *pools),
    )
    uid = created.stdout.strip().rpartition("/")[2]
    state = service.finish(uid, _SECONDS)["state"]
    assert state == "SUCCEEDED", service.lines(uid) + service.lines(uid, "service")
    return uid


def _losses(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match(r"step \d+ loss ", line)]


@pytest.mark.gcloud
@needs_gcloud
@pytest.mark.soak
def test_an_unmodified_program_is_reduced_and_learns_the_same(
    service: Service, tmp_path: Path
) -> None:
    """spec/reduction#exactness: the same losses on all workers, to all digits printed, and by gloo; reducers
    in timeline, logs and figures. Each for itself: tests.reduction.test_torch (DDP and gloo),
    test_reduction.py (reducers of a job), test_gcloud_vertex.py (pools by gcloud)."""
    torch_runtime.service_python()  # Built once for all tests, and in their time.
    package = upload(service, "wide-0.1.tar.gz", packed("pytorch_wide", tmp_path).read_bytes())
    gcloud = Gcloud(service, tmp_path / "gcloud")
    reduced = _train(service, gcloud, package, *_POOLS, f"--worker-pool-spec={_REDUCERS}")

    lines = service.lines(reduced, "workerpool0-0")
    assert "rank 0 of 3, backend gloo" in lines
    assert len(_losses(lines)) == _STEPS
    native = _train(service, gcloud, package, *_POOLS)
    assert _losses(lines) == _losses(service.lines(native, "workerpool0-0"))
    assert _losses(lines) == _losses(service.lines(reduced, "workerpool1-1"))

    # What is chosen by measuring comes after it.
    mode, *_ = [line for line in lines if line.startswith("trainshed reduction: ")]
    assert "2 reducers" in mode
    assert (
        mode.removeprefix("trainshed reduction: ")
        in trainshed("jobs", "timeline", reduced, data=service.data).stdout
    )
    for reducer in ("workerpool2-0", "workerpool2-1"):
        assert any("group of 3 workers is complete" in x for x in service.lines(reduced, reducer))
    found = service.call("GET", f"/trainshed/v1/jobs/{reduced}/usage")
    moved = {
        each["id"]: each["reduction"]["metrics"]["received_bytes"]
        for each in found["replicas"]
        if each["id"].startswith("workerpool2")
    }
    # 12 MB of gradients from each of three workers, half to either reducer; the smallest tensors go by gloo,
    # and for a few steps all do, to measure it.
    each_step = 3 * 12_000_000 // 2
    for count in moved.values():
        assert 0.5 * _STEPS * each_step < count < 1.1 * _STEPS * each_step, moved
    assert set(moved) == {"workerpool2-0", "workerpool2-1"}
