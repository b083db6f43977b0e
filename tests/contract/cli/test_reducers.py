"""`trainshed reducers`: what it computes, prints and writes; it asks no service."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.contract.cli.conftest import Invoke

PLAN = ("reducers", "plan")
A2 = (*PLAN, "--workers", "8", "--machine", "a2-megagpu-16g")
V100 = (*PLAN, "--workers", "5", "--machine", "n1-highmem-96", "--accelerator")


def test_the_public_example(trainshed: Invoke) -> None:
    """spec/reduction#bandwidth: 8 × a2-megagpu-16g need 25 × n1-highcpu-16."""
    lines = trainshed(*A2).stdout.splitlines()
    assert lines[0] == "25 × n1-highcpu-16 as reducers for 8 × a2-megagpu-16g"
    told = {label: text for label, _, text in (line.partition("  ") for line in lines[2:9])}
    told = {label: text.strip() for label, text in told.items()}
    assert told["workers"].startswith("8 × a2-megagpu-16g, 100 Gbps each, 800 Gbps together")
    assert told["reducers"].startswith("25 × n1-highcpu-16, 32 Gbps each, 800 Gbps together")
    assert told["rule"] == "met"
    assert told["mode"].startswith("pure")
    assert told["limit"] == "1.75 × as fast as the ring, at most"
    assert told["break-even"].startswith("15 reducers alone are faster than the ring")
    assert told["per GB"] == "80 ms at least; the ring 140 ms"


def test_fewer_reducers_have_a_row_each(trainshed: Invoke) -> None:
    """spec/reduction#hybrid: hybrid mode gains with every one of them."""
    lines = trainshed(*A2).stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("REDUCERS"))
    rows = [line.split() for line in lines[at + 1 : at + 5]]
    assert [row[:3] for row in rows] == [
        ["7", "224", "hybrid"],
        ["13", "416", "hybrid"],
        ["19", "608", "hybrid"],
        ["25", "800", "pure"],
    ]
    limits = [float(row[4]) for row in rows]
    assert limits == sorted(limits)
    assert limits[0] > 1


def test_the_flags_can_be_pasted(trainshed: Invoke) -> None:
    """spec/reduction: pools 0, 1 and 2 as gcloud takes them, the machine's own accelerators named."""
    lines = trainshed(*A2).stdout.splitlines()
    flags = [line.strip() for line in lines if "--worker-pool-spec=" in line]
    gpus = "accelerator-type=NVIDIA_TESLA_A100,accelerator-count=16"
    assert flags == [
        f"--worker-pool-spec=machine-type=a2-megagpu-16g,replica-count=1,{gpus},container-image-uri=IMAGE",
        f"--worker-pool-spec=machine-type=a2-megagpu-16g,replica-count=7,{gpus},container-image-uri=IMAGE",
        "--worker-pool-spec=machine-type=n1-highcpu-16,replica-count=25,container-image-uri="
        "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest",
    ]


def test_the_public_advice_is_given(trainshed: Invoke) -> None:
    """spec/reduction."""
    said = trainshed(*A2).stdout
    assert "bucket_cap_mb=64" in said
    assert "HOROVOD_FUSION_THRESHOLD=134217728" in said


@pytest.mark.parametrize(
    "given", ["type=NVIDIA_TESLA_V100,count=8", "count=8,type=nvidia-tesla-v100"]
)
def test_accelerators_count(trainshed: Invoke, given: str) -> None:
    """spec/reduction#bandwidth: 5 machines of 100 Gbps need 16; without its GPUs the same machine has 32
    Gbps."""
    found = json.loads(trainshed(*V100, given, "--format", "json").stdout)
    assert (found["reducersNeeded"], found["reducers"]["totalGbps"]) == (16, 512)
    assert found["workers"]["accelerators"] == {"type": "NVIDIA_TESLA_V100", "count": 8}
    plain = json.loads(trainshed(*V100[:-1], "--format", "json").stdout)
    assert plain["reducersNeeded"] == 5


def test_a_number_that_one_has_is_judged(trainshed: Invoke) -> None:
    """spec/reduction#bandwidth: too few by the rule, still faster than the ring; more than enough."""
    found = json.loads(trainshed(*A2, "--reducers", "12", "--format", "json").stdout)
    assert (found["ruleIsMet"], found["mode"], found["reducersNeeded"]) == (False, "hybrid", 25)
    assert 1 < found["limitOverRing"] < 1.75
    assert 0 < found["workerShare"] < 1 / 8
    assert "not met: 25 would be enough (800 Gbps)" in trainshed(*A2, "--reducers", "12").stdout
    said = trainshed(*A2, "--reducers", "30").stdout
    assert "met, with 5 more than needed" in said
    assert "replica-count=30" in said


def test_the_time_of_a_step(trainshed: Invoke) -> None:
    """spec/reduction#bandwidth: from the size of the gradients, in decimal or binary units."""
    assert "104 ms at least; the ring 182 ms (1.3 GB of gradients)" in (
        trainshed(*A2, "--gradients", "1.3GB").stdout
    )
    for size in ("1GiB", "1024 MiB", "1073741824"):
        found = json.loads(trainshed(*A2, "--gradients", size, "--format", "json").stdout)
        assert found["gradientsBytes"] == 2**30
        assert found["secondsPerStep"] == pytest.approx(2**30 * 8 / 100e9, abs=1e-6)


def test_two_workers_gain_nothing(trainshed: Invoke) -> None:
    """spec/reduction: both ways send each gradient once, however many reducers there are."""
    pair = (*PLAN, "--workers", "2", "--machine", "n1-standard-16", "--reducers", "9")
    found = json.loads(trainshed(*pair, "--format", "json").stdout)
    assert {case["limitOverRing"] for case in found["cases"]} == {1.0}
    assert found["breakEvenReducers"] is None
    assert "two workers gain nothing" in trainshed(*pair).stdout


def test_small_machines_are_allowed_and_noted(trainshed: Invoke) -> None:
    """spec/reduction#bandwidth: 16 vCPUs and more are recommended."""
    small = trainshed(*A2, "--reducer-machine", "n1-standard-4").stdout
    assert small.startswith("80 × n1-standard-4")
    assert "n1-standard-4 has 4 vCPUs; reducers of 16 and more are recommended" in small
    assert "recommended" not in trainshed(*A2).stdout


def test_a_bandwidth_may_be_given(trainshed: Invoke) -> None:
    """spec/reduction#bandwidth: for machines that the table does not know."""
    a4 = (*PLAN, "--workers", "4", "--machine", "a4-highgpu-8g")
    refused = trainshed(*a4)
    assert refused.exit_code == 2
    assert "'--machine'" in refused.stderr
    assert "give it with --worker-gbps" in refused.stderr
    told = ("--worker-gbps", "400", "--reducer-gbps", "50", "--format", "json")
    assert json.loads(trainshed(*a4, *told).stdout)["reducersNeeded"] == 32


@pytest.mark.parametrize(
    ("arguments", "flag", "words"),
    [
        (("--machine", "n1-standard8"), "--machine", "Did you mean n1-standard-8?"),
        (("--reducer-machine", "n1-highcpu16"), "--reducer-machine", "Did you mean n1-highcpu-16?"),
        (("--reducer-machine", "a2-highgpu-1g"), "--reducer-machine", "reducers do not use"),
        (("--accelerator", "V100"), "--accelerator", "type=NVIDIA_TESLA_V100,count=8"),
        (
            ("--accelerator", "type=NVIDIA_TESLA_V10,count=8"),
            "--accelerator",
            "Did you mean NVIDIA_TESLA_V100?",
        ),
        (("--accelerator", "type=NVIDIA_TESLA_V100,count=3"), "--accelerator", "use 2, 4 or 8"),
        (("--accelerator", "type=NVIDIA_TESLA_V100,number=8"), "--accelerator", "is not like"),
        (("--workers", "1"), "--workers", "nothing to reduce"),
        (("--gradients", "big"), "--gradients", "is not a size such as 1.3GB"),
        (("--gradients", "0"), "--gradients", "is not a size"),
        (("--gradients", "1.3"), "--gradients", "is not a size such as 1.3GB"),
        (("--worker-gbps", "nan"), "--worker-gbps", "is not a number of Gbps"),
        (("--reducers", "0"), "--reducers", "0 is not in the range"),
    ],
)
def test_errors_name_the_flag_and_what_is_near(
    trainshed: Invoke, arguments: tuple[str, ...], flag: str, words: str
) -> None:
    """spec/reduction."""
    given = (*PLAN, "--workers", "8", "--machine", "n1-standard-16", *arguments)
    result = trainshed(*given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{flag}'" in result.stderr
    assert words in result.stderr


def test_the_wheel_is_written(trainshed: Invoke, tmp_path: Path) -> None:
    """spec/reduction: what images of users install."""
    directory = tmp_path / "made" / "here"
    path = Path(trainshed("reducers", "wheel", "-o", str(directory)).stdout.strip())
    assert path.parent == directory
    assert path.suffix == ".whl"
    with zipfile.ZipFile(path) as wheel:
        assert "trainshed_reduction/__init__.py" in wheel.namelist()
    (tmp_path / "file").write_text("")
    refused = trainshed("reducers", "wheel", "-o", str(tmp_path / "file" / "below"))
    assert refused.exit_code == 1
    assert "cannot be written" in refused.stderr
