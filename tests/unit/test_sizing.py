"""What is said of machines and GPUs that were asked for and hardly used."""

import pytest
from msgspec.structs import replace

from trainshed.core.catalog.machines import GIB, machine_types
from trainshed.core.job.spec import Accelerators, Machine
from trainshed.core.names import Api
from trainshed.core.sizing import Used, hints

USED = Used(memory=GIB, cpus=0.9, host_cpus=64, seconds=3600.0)


def machine(name: str = "n1-standard-8", accelerators: Accelerators | None = None) -> Machine:
    kind = machine_types()[name]
    return Machine(name, kind.vcpus, kind.memory_bytes, kind.memory_limit_bytes, accelerators)


def said(*used: Used, asked: Machine | None = None) -> tuple[str, ...]:
    return hints(Api.VERTEX, asked or machine(), used)


def test_a_smaller_machine_of_the_same_series_is_named() -> None:
    (text,) = said(USED)
    assert "n1-standard-8 (8 vCPUs, 30.0 GiB) and used 0.9 vCPUs and 1.0 GiB at most" in text
    assert text.endswith("n1-highmem-2 (2 vCPUs, 13.0 GiB) would do.")


def test_who_needs_the_processors_needs_only_less_memory() -> None:
    (text,) = said(replace(USED, cpus=7.9), asked=machine("n4-standard-8"))
    assert "n4-highcpu-8" in text


def test_the_most_that_any_replica_used_counts() -> None:
    assert said(USED, replace(USED, memory=20 * GIB)) == ()


@pytest.mark.parametrize(
    "used",
    [
        pytest.param(replace(USED, memory=8 * GIB), id="more than a fourth of the memory"),
        pytest.param(replace(USED, seconds=30.0), id="too short to tell"),
    ],
)
def test_nothing_is_said_where_nothing_is_certain(used: Used) -> None:
    assert said(used) == ()
    assert said() == ()


def test_of_a_host_that_was_too_small_the_processors_are_not_judged() -> None:
    """spec/queue#capacity, relaxed mode: eight vCPUs may be shown by a laptop that has two."""
    (text,) = said(replace(USED, cpus=1.9, host_cpus=2), asked=machine("n4-standard-8"))
    assert "n4-highcpu-8" in text


def test_the_smallest_machine_is_small_enough() -> None:
    assert said(replace(USED, memory=1 << 20), asked=machine("n4-highcpu-2")) == ()


def test_machines_whose_size_is_not_known_are_not_judged() -> None:
    assert said(USED, asked=replace(machine(), type="tpu-of-tomorrow")) == ()
    assert said(USED, asked=replace(machine(), memory_limit_bytes=0)) == ()


def test_gpus_that_were_never_at_work_are_named() -> None:
    asked = machine("n1-standard-8", Accelerators("NVIDIA_TESLA_T4", 2))
    (text,) = said(replace(USED, gpus=(0.0, 0.0)), asked=asked)
    assert "2 NVIDIA_TESLA_T4" in text and "no GPU was ever at work" in text
    assert said(replace(USED, gpus=(0.0, 0.2)), asked=asked) == ()


def test_of_gpus_that_do_not_tell_nothing_is_said() -> None:
    asked = machine("n1-standard-8", Accelerators("NVIDIA_TESLA_T4", 1))
    assert said(replace(USED, gpus=(None,)), asked=asked) == ()
    assert said(USED, asked=asked) == ()
