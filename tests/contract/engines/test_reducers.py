"""Files and variables for replicas of a job with a Reduction Server (spec/reduction#reducers)."""

from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, EngineHarness
from tests.contract.runtimes.rootfs import image_root
from trainshed.core.launch import REDUCTION_PACKAGES, ImageRoot, Limits, ReductionPart, Software
from trainshed_reduction import variables as reduction


@pytest.fixture
def package(tmp_path: Path) -> Path:
    place = tmp_path / "package"
    place.mkdir()
    (place / "mine").write_text("of use")
    return place


def part(package: Path, image: ImageRoot | None = None, **variables: str) -> dict[str, object]:
    """Return the fields of a launch plan for a replica that uses or runs reducers."""
    return {
        "environ": tuple(variables.items()),
        "reduction": ReductionPart(str(package)),
        "software": Software(read_only=(str(package),), image=image),
    }


async def test_program_in_a_custom_image_finds_the_reduction_package_at_a_fixed_path(
    harness: EngineHarness, package: Path, tmp_path: Path
) -> None:
    """spec/reduction: custom containers use the reducers too."""
    if not harness.engine.capabilities().images:
        pytest.skip("container images need namespaces")
    uid = harness.job()
    await harness.allocate(uid, [PRIMARY])
    plan = harness.plan(
        uid, "cat", f"{REDUCTION_PACKAGES}/mine", **part(package, image_root(tmp_path / "image"))
    )
    await harness.engine.launch([plan])
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["of use"]


async def test_reducer_gets_a_thread_for_each_vcpu_up_to_the_cpus_of_the_machine(
    harness: EngineHarness, package: Path
) -> None:
    """spec/reduction#bandwidth: one reducer thread for each vCPU of the machine type, limited to
    this machine's CPUs."""
    here = (await harness.engine.capacity())[0].vcpus
    asks = f"import os; print(os.environ[{reduction.THREADS!r}])"
    for vcpus, expected in ((1, 1), (4096, int(here))):
        uid = harness.job()
        await harness.allocate(uid, [PRIMARY])
        fields = part(package, None, **{reduction.LISTEN: "here:2222"})
        plan = harness.plan(uid, PYTHON, "-c", asks, limits=Limits(cpu_weight=vcpus * 100), **fields)
        await harness.engine.launch([plan])
        await harness.exit(uid)
        assert harness.texts(uid) == [str(expected)]
