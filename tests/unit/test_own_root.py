"""Whose programs have root directories of their own (docs/adr/0019)."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from tests.unit.specs_requests import FakeRuntimes, custom_job, package
from trainshed.controller.launch_plans import LaunchDefaults, launch_plans
from trainshed.core.launch import OWN_ROOT_LABEL
from trainshed.core.lifecycle.records import Replica
from trainshed.core.names import ReplicaId
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.engines.port import Slot
from trainshed.runtimes.port import Image, PreparedRuntime

PRIMARY = ReplicaId(0, 0)
PREBUILT = PreparedRuntime("/layer/template")


def is_own(label: str, runtime: PreparedRuntime = PREBUILT) -> bool:
    spec = parse_custom_job(
        custom_job(package()), region="us-central1", runtimes=FakeRuntimes()
    ).spec
    subject = replace(
        job(1),
        spec=spec,
        replicas=(Replica(PRIMARY, node="node", incarnation=1),),
        attempt=1,
        labels=((OWN_ROOT_LABEL, label),) if label else (),
    )
    program = spec.pool(0).program
    slots = [Slot(PRIMARY, "node", "host-0", "127.64.0.1", "host-0", 2222)]
    prepared = {(program.runtime, program.packages): runtime}
    defaults = LaunchDefaults()
    return launch_plans(subject, slots, prepared, defaults, {PRIMARY: 1})[0].software.own_root


@pytest.mark.parametrize(("label", "own"), [("", False), ("on", True), ("off", False)])
def test_a_label_asks_for_it(label: str, own: bool) -> None:
    assert is_own(label) == own


def test_an_image_of_ones_own_has_its_root_anyway() -> None:
    image = Image("/cache/images/a/root", "a", entrypoint=("python",))
    assert not is_own("on", PreparedRuntime("", image=image))
