"""Public tables of machines and images: complete, consistent, and equal to the checked facts."""

import pytest

from trainshed.core.catalog import images, machines
from trainshed.core.errors import closest
from trainshed.core.names import Api

REPOSITORY = "us-docker.pkg.dev/vertex-ai/training/"


def test_machine_types_that_require_accelerators_list_valid_accelerators() -> None:
    """A machine type that requires accelerators has at least one accelerator type."""
    for api in Api:
        for machine in machines.requestable_types(api):
            choices = machines.allowed_accelerators(machine, api)
            if machine.needs_accelerators:
                assert choices, machine.name
            assert set(choices) <= set(machines.accelerator_types(api)), machine.name


def test_scale_tiers_use_known_machine_types() -> None:
    tiers = machines.predefined_tiers()
    assert set(tiers) == {"BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU"}
    assert {pool.machine_type for pools in tiers.values() for pool in pools} <= set(machines.machine_types())


def test_price_of_a_scale_tier_is_the_sum_of_the_machine_prices() -> None:
    """facts/machines#ml-units: the public price list of the scale tiers."""
    prices = {"BASIC": 0.3878, "STANDARD_1": 4.0571, "PREMIUM_1": 33.7829, "BASIC_GPU": 1.6939}
    for tier, pools in machines.predefined_tiers().items():
        units = [
            machines.units_per_hour(pool.machine_type, pool.accelerator_type or "", pool.accelerator_count)
            * pool.count
            for pool in pools
        ]
        assert sum(units) == pytest.approx(prices[tier], abs=1e-3)


def test_machine_types_without_a_public_price_have_an_estimated_price() -> None:
    """Clients read `consumedMLUnits` of every finished job, so it must never be missing."""
    assert machines.units_per_hour("e2-standard-8") == pytest.approx(2 * 0.3878)
    plain = machines.units_per_hour("a2-highgpu-1g")
    with_gpu = machines.units_per_hour("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1)
    assert (plain, with_gpu - plain) == pytest.approx((12 * 0.3878 / 4, 5.0612))


def test_consumed_units_are_rounded_to_minutes_with_a_minimum() -> None:
    """facts/machines#ml-units: each started minute counts, with a minimum of ten node-minutes."""
    minute = machines.MINUTE
    assert machines.consumed_units([0.3878], 386 * minute // 60) == 0.06
    assert machines.consumed_units([0.3878] * 3, 5 * minute) == 0.1
    assert machines.consumed_units([0.3878], 60 * minute) == 0.39
    assert machines.consumed_units([0.3878], 0) == 0
    assert machines.consumed_units([], minute) == 0


def test_every_listed_prebuilt_image_name_is_parsed() -> None:
    """facts/packaging#images: 91 images, in each of the three multi-regions."""
    assert len(images.list_images()) == 91
    for place in ("us", "europe", "asia"):
        for name in images.list_images():
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
def test_prebuilt_image_name_is_parsed(name: str, expected: tuple[str, str, str, str]) -> None:
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
def test_custom_image_is_not_parsed_as_prebuilt(uri: str) -> None:
    assert images.parse_prebuilt(uri) is None


def test_misspelled_names_get_a_suggestion() -> None:
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
def test_suggested_machine_type_has_the_nearest_numbers(unknown: str, near: str) -> None:
    """By edit distance, n1-standard-32 is as close to n1-standard-3 as n1-standard-4 is."""
    known = [machine.name for machine in machines.requestable_types(Api.VERTEX)]
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
def test_runtime_version_and_python_version_must_match(version: str, python: str, legal: bool) -> None:
    """spec/submit#defaults: each runtime version supports certain Python versions."""
    assert (images.pair_fault(version, python) is None) is legal
