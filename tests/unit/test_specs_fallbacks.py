"""Where else a job may run, as its labels say: `trainshed.core.specs.fallbacks`."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import SECOND, job
from trainshed.core.catalog.machines import machine_types
from trainshed.core.errors import InvalidRequest
from trainshed.core.job.spec import Accelerators, JobSpec
from trainshed.core.names import Api
from trainshed.core.specs.fallbacks import AFTER, MACHINE_TYPES, REGIONS, with_fallbacks
from trainshed.core.specs.machines import resolve


def spec_of(*types: str, devices: Accelerators | None = None) -> JobSpec:
    """A pool of each type."""
    spec = job(*[1] * len(types)).spec
    pools = tuple(
        replace(pool, machine=resolve(machine_types()[name], devices))
        for pool, name in zip(spec.pools, types, strict=True)
    )
    return replace(spec, pools=pools)


def wrong(spec: JobSpec, **labels: str) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        with_fallbacks(spec, tuple((name.replace("_", "-"), text) for name, text in labels.items()))
    return {violation.field: violation.description for violation in caught.value.violations}


def test_machine_types_come_before_regions() -> None:
    spec = spec_of("n1-standard-16", "n1-standard-16", "n1-highmem-8")
    labels = {MACHINE_TYPES: "n1-standard-8_n1-standard-4", REGIONS: "us-east1", AFTER: "60"}
    found = with_fallbacks(spec, labels.items())
    assert [str(choice) for choice in found.choices] == [
        f"n1-standard-{size} and n1-highmem-8 in {region}"
        for region in ("us-central1", "us-east1")
        for size in (16, 8, 4)
    ]
    assert found.patience == 60 * SECOND
    taken = found.chosen(4)
    assert (taken.region, taken.pools[1].machine.vcpus) == ("us-east1", 8)
    assert taken.chosen(0) == found


def test_a_job_without_the_labels_has_no_choice() -> None:
    spec = spec_of("n1-standard-4")
    assert with_fallbacks(spec, ()) is spec


def test_devices_go_along_or_are_those_that_the_machine_comes_with() -> None:
    t4, a100 = Accelerators("NVIDIA_TESLA_T4", 1), Accelerators("NVIDIA_TESLA_A100", 1)
    found = with_fallbacks(
        spec_of("n1-standard-8", devices=t4), [(MACHINE_TYPES, "n1-standard-4_g2-standard-12")]
    )
    given = [choice.machines[0].accelerators for choice in found.choices]
    assert given == [t4, t4, Accelerators("NVIDIA_L4", 1)]
    told = wrong(
        spec_of("a2-highgpu-1g", devices=a100), trainshed_fallback_machine_types="n1-standard-8"
    )
    assert "NVIDIA_TESLA_A100" in told[f"labels.{MACHINE_TYPES}"]


def test_everything_that_is_wrong_is_named_at_once() -> None:
    told = wrong(
        spec_of("n1-standard-16"),
        trainshed_fallback_machine_types="n1-standard-3",
        trainshed_fallback_regions="us-central1_mars-east1",
        trainshed_fallback_after="soon",
    )
    assert "Did you mean n1-standard-4?" in told[f"labels.{MACHINE_TYPES}"]
    assert "mars-east1" in told[f"labels.{REGIONS}"]
    assert "whole number of seconds" in told[f"labels.{AFTER}"]
    assert (
        "says nothing without"
        in wrong(spec_of("n1-standard-4"), trainshed_fallback_after="5")[f"labels.{AFTER}"]
    )
    empty = wrong(spec_of("n1-standard-4"), trainshed_fallback_machine_types="")
    assert f"labels.{MACHINE_TYPES}" in empty


def test_legacy_types_name_no_devices_of_their_own() -> None:
    spec = replace(spec_of("standard_gpu"), api=Api.ML)
    found = with_fallbacks(spec, [(MACHINE_TYPES, "n1-standard-4")])
    assert found.choices[1].machines[0].accelerators is None
