"""The public tables: complete, consistent with each other, and right where the facts can be checked."""

import pytest

from trainshed.core.catalog import images, machines
from trainshed.core.errors import closest
from trainshed.core.names import Api

REPOSITORY = "us-docker.pkg.dev/vertex-ai/training/"


def test_accelerated_machines_say_which_accelerators_they_take() -> None:
    """A machine that needs accelerators has a way to name them."""
    for api in Api:
        for machine in machines.named_in(api):
            choices = machines.allowed(machine, api)
            if machine.needs_accelerators:
                assert choices, machine.name
            assert set(choices) <= set(machines.accelerator_types(api)), machine.name


def test_tiers_use_known_machines() -> None:
    tiers = machines.predefined_tiers()
    assert set(tiers) == {"BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU"}
    assert {pool.machine_type for pools in tiers.values() for pool in pools} <= set(
        machines.machine_types()
    )


def test_tiers_cost_the_sum_of_their_machines() -> None:
    """facts/machines#ml-units."""
    prices = {"BASIC": 0.3878, "STANDARD_1": 4.0571, "PREMIUM_1": 33.7829, "BASIC_GPU": 1.6939}
    for tier, pools in machines.predefined_tiers().items():
        units = [
            machines.units_per_hour(
                pool.machine_type, pool.accelerator_type or "", pool.accelerator_count
            )
            * pool.count
            for pool in pools
        ]
        assert sum(units) == pytest.approx(prices[tier], abs=1e-3)


def test_machines_and_accelerators_outside_the_price_list_cost_something() -> None:
    """A program that reads `consumedMLUnits` of a finished job must find it."""
    assert machines.units_per_hour("e2-standard-8") == pytest.approx(2 * 0.3878)
    plain = machines.units_per_hour("a2-highgpu-1g")
    with_gpu = machines.units_per_hour("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1)
    assert (plain, with_gpu - plain) == pytest.approx((12 * 0.3878 / 4, 5.0612))


def test_consumed_units() -> None:
    """facts/machines#ml-units: started minutes, ten node-minutes at least, as seen on a job of 6m26s."""
    minute = machines.MINUTE
    assert machines.consumed_units([0.3878], 386 * minute // 60) == 0.06
    assert machines.consumed_units([0.3878] * 3, 5 * minute) == 0.1
    assert machines.consumed_units([0.3878], 60 * minute) == 0.39
    assert machines.consumed_units([0.3878], 0) == 0
    assert machines.consumed_units([], minute) == 0


def test_every_listed_image_is_read() -> None:
    """facts/packaging#images: 91 images, in each of the three multi-regions."""
    assert len(images.listed_images()) == 91
    for place in ("us", "europe", "asia"):
        for name in images.listed_images():
            uri = f"{place}-docker.pkg.dev/vertex-ai/training/{name}:latest"
            assert images.parse_prebuilt(uri) is not None, uri


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sklearn-cpu.1-6.py310:latest", ("scikit-learn", "cpu", "1.6", "3.10")),
        ("scikit-learn-cpu.1-6:latest", ("scikit-learn", "cpu", "1.6", "3.10")),
        ("scikit-learn-cpu.0-23:latest", ("scikit-learn", "cpu", "0.23", "3.7")),
        ("tf-cpu.2-11:latest", ("tensorflow", "cpu", "2.11", "3.7")),
        ("tf-gpu.2-11.py310", ("tensorflow", "gpu", "2.11", "3.10")),
        ("tf-tpu.2-15.cp310:latest", ("tensorflow", "tpu", "2.15", "3.10")),
        ("training-tf-cpu.2-1:latest", ("tensorflow", "cpu", "2.1", "3.7")),
        ("pytorch-xla.1-11:latest", ("pytorch", "xla", "1.11", "3.7")),
        ("pytorch-cpu.2-4.py310", ("pytorch", "cpu", "2.4", "3.10")),
        ("ray-cpu.2-9.py310:latest", ("ray", "cpu", "2.9", "3.10")),
    ],
)
def test_image_names(name: str, expected: tuple[str, str, str, str]) -> None:
    """facts/packaging#images, old names included."""
    image = images.parse_prebuilt(REPOSITORY + name)
    assert image is not None
    assert (image.framework, image.device, image.version, image.python) == expected


@pytest.mark.parametrize(
    "uri",
    [
        "python:3.11",
        REPOSITORY + "tf-cpu.9-9:latest",
        REPOSITORY + "tf-cpu.2-11:v1",
        REPOSITORY + "tf-cpu.2-11.py39:latest",
        REPOSITORY + "caffe-cpu.1-0:latest",
        "gcr.io/mine/tf-cpu.2-11:latest",
        "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest",
    ],
)
def test_other_images_are_not_prebuilt(uri: str) -> None:
    assert images.parse_prebuilt(uri) is None


def test_near_names_are_proposed() -> None:
    assert images.nearest_prebuilt(REPOSITORY + "tf-cpu.2-2") == " Did you mean tf-cpu.2-2?"
    assert "sklearn-cpu.1-6" in images.nearest_prebuilt(REPOSITORY + "skleran-cpu.1-6.py310:latest")
    for name, near in {
        "sklearn-cpu.1-7": "sklearn-cpu.1-6",
        "tf-cpu.2-99": "tf-cpu.2-17",
        "tf-cpu.2-17.py312": "tf-cpu.2-17.py310",
        "pytroch-gpu.2-9": "pytorch-gpu.2-4",
        "pytroch-gpu.1-13.py310": "pytorch-gpu.1-13.py310",
    }.items():
        assert images.nearest_prebuilt(REPOSITORY + name) == f" Did you mean {near}?"
        assert images.parse_prebuilt(REPOSITORY + near) is not None
    assert closest("n1-standard4", ["n1-standard-4"]) == " Did you mean n1-standard-4?"
    assert closest("zzz", ["n1-standard-4"]) == ""
    assert closest("n1-standard-" + "4" * 5000, ["n1-standard-4"]) == " Did you mean n1-standard-4?"


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("n1-standard-3", "n1-standard-4"),
        ("n1-standard-6", "n1-standard-8"),
        ("n1-standard-128", "n1-standard-96"),
        ("n1-standrd-16", "n1-standard-16"),
        ("a2-highgpu-3g", "a2-highgpu-4g"),
    ],
)
def test_the_nearest_machine_is_the_one_with_the_nearest_numbers(unknown: str, near: str) -> None:
    """Letter by letter n1-standard-32 is as near to n1-standard-3 as n1-standard-4 is."""
    known = [machine.name for machine in machines.named_in(Api.VERTEX)]
    assert closest(unknown, known) == f" Did you mean {near}?"


@pytest.mark.parametrize(
    ("version", "python", "legal"),
    [
        ("1.4", "3.5", True),
        ("1.14", "3.5", True),
        ("1.15", "3.5", False),
        ("1.15", "3.7", True),
        ("1.14", "3.7", False),
        ("1.15", "2.7", True),
        ("2.1", "2.7", False),
        ("2.6", "3.7", True),
        ("2.6", "", True),
        ("2.6", "3.8", False),
        ("", "", True),
        ("", "3.7", True),
        ("", "2.7", False),
        ("7.0", "", False),
    ],
)
def test_runtime_and_python_pairs(version: str, python: str, legal: bool) -> None:
    """spec/submit#defaults."""
    assert (images.pair_fault(version, python) is None) is legal
