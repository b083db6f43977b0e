"""What replicas of a job with a Reduction Server find beside their programs, and what they are told later
(spec/reduction#losses)."""

import shutil
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, House, Run
from tests.contract.runtimes.rootfs import with_programs
from trainshed.core import reduction
from trainshed.core.launch import (
    LOST_REDUCERS,
    REDUCTION_PACKAGES,
    ImageRoot,
    Limits,
    ReductionPart,
    Software,
)
from trainshed.core.names import JobUid, ReplicaId
from trainshed.replica.protocol import LEVEL_SESSION

FIRST, SECOND = ReplicaId(2, 0), ReplicaId(2, 1)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    place = tmp_path / "package"
    place.mkdir()
    (place / "mine").write_text("of use")
    return place


async def gang(house: House, *replicas: ReplicaId) -> tuple[JobUid, list[str]]:
    """A job with these replicas besides its primary; their places as HOST:PORT."""
    uid = house.job()
    slots = await house.allocate(uid, [PRIMARY, *replicas])
    return uid, [f"{slot.host}:{slot.port}" for slot in slots[1:]]


def part(package: Path, image: ImageRoot | None = None, **variables: str) -> dict[str, object]:
    """What a plan says of a replica that has to do with reducers."""
    environ = {reduction.LOST_FILE: LOST_REDUCERS, **variables}
    return {
        "environ": tuple(environ.items()),
        "reduction": ReductionPart(str(package)),
        "software": Software(read_only=(str(package),), image=image),
    }


def test_a_program_cannot_change_what_it_is_told(house: Run, package: Path) -> None:
    """spec/program, spec/reduction: the list is the gang's, and the package every job's."""

    async def test(house: House) -> None:
        if house.engine.capabilities().isolation == LEVEL_SESSION:
            pytest.skip("without namespaces programs may do what the service's user may")
        uid, _ = await gang(house)
        writes = f"""
import os
for path in (os.environ[{reduction.LOST_FILE!r}], {str(package / "mine")!r}):
    try:
        open(path, "a")
        print("written")
    except OSError:
        print("refused")
"""
        await house.engine.launch([house.plan(uid, PYTHON, "-c", writes, **part(package))])
        await house.exit(uid)
        assert house.texts(uid) == ["refused", "refused"]

    house(test)


def test_programs_of_an_image_find_both_at_fixed_places(
    house: Run, package: Path, tmp_path: Path
) -> None:
    """spec/reduction: custom containers use the reducers as well."""

    async def test(house: House) -> None:
        if not house.engine.capabilities().images:
            pytest.skip("container images need namespaces")
        root = tmp_path / "image"
        with_programs(tmp_path / "image.tar")
        shutil.unpack_archive(tmp_path / "image.tar", root, filter="tar")
        uid, places = await gang(house, FIRST)
        fields = part(package, ImageRoot(str(root)))
        await house.engine.launch([house.plan(uid, "true", **fields)])
        await house.exit(uid)
        await house.engine.drop_reducers(uid, 1, (FIRST,))
        program = (
            f"cat {REDUCTION_PACKAGES}/mine; echo; cat ${reduction.LOST_FILE}; (echo x > "
            f"${reduction.LOST_FILE}) 2>/dev/null || echo refused"
        )
        second = house.plan(uid, "sh", "-c", program, incarnation=2, **fields)
        await house.engine.launch([second])
        assert (await house.exit(uid, incarnation=2)).exit.exit_code == 0, house.texts(uid)
        assert house.texts(uid) == ["of use", *places, "refused"]

    house(test)


def test_a_reducer_is_told_how_many_processors_it_has(house: Run, package: Path) -> None:
    """spec/reduction#bandwidth: one reducer for each vCPU of its machine, as far as this one has them."""

    async def test(house: House) -> None:
        here = (await house.engine.capacity())[0].vcpus
        asks = f"import os; print(os.environ[{reduction.THREADS!r}])"
        for vcpus, expected in ((1, 1), (4096, int(here))):
            uid, _ = await gang(house)
            fields = part(package, None, **{reduction.LISTEN: "here:2222"})
            plan = house.plan(
                uid, PYTHON, "-c", asks, limits=Limits(cpu_weight=vcpus * 100), **fields
            )
            await house.engine.launch([plan])
            await house.exit(uid)
            assert house.texts(uid) == [str(expected)]

    house(test)
