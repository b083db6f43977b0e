"""Who begins warm (spec/program#warm-starts)."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from tests.unit.specs_requests import FakeRuntimes, custom_job, package
from trainshed.controller.launch_plans import LaunchDefaults, launch_plans
from trainshed.core.launch import WARM_LABEL, WarmStart
from trainshed.core.lifecycle.records import Replica
from trainshed.core.names import ReplicaId
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.core.warm_start import ENVIRONMENT, WarmStarts, differing, is_asked_for, of_program
from trainshed.engines.port import Slot
from trainshed.runtimes.port import Preloadable, PreparedRuntime

MODULE = ("python3", "-m", "trainer.task", "--lr", "1")


@pytest.mark.parametrize(
    ("label", "setting", "trial", "asked"),
    [
        ("", "trials", True, True),
        ("", "trials", False, False),
        ("", "on", False, True),
        ("", "off", True, False),
        ("on", "off", False, True),
        ("off", "on", True, False),
        # Changed into something else after the submit: it says nothing.
        ("perhaps", "trials", True, True),
    ],
)
def test_the_label_wins_over_the_setting(
    label: str, setting: WarmStarts, trial: bool, asked: bool
) -> None:
    assert is_asked_for(label, setting, is_trial_of_package=trial) is asked


def of(argv: tuple[str, ...] = MODULE, **facts: object) -> WarmStart:
    given = {"in_image": False, "gpus": 0, "reduces": False, "modules": ("numpy", "torch")}
    return of_program(argv, runtime="/runtime", **(given | facts))  # pyright: ignore[reportArgumentType] - by name


def test_a_module_of_a_runtime_with_frameworks_begins_warm() -> None:
    assert of() == WarmStart("/runtime", ("numpy", "torch"))
    assert of(("python", "-m", "x")) == WarmStart("/runtime", ("numpy", "torch"))


@pytest.mark.parametrize(
    ("warm", "why"),
    [
        (of(in_image=True), "container image"),
        (of(modules=()), "names no framework"),
        (of(gpus=1), "it has GPUs"),
        (of(reduces=True), "it reduces"),
        (of(("python3", "train.py")), "not python3 -m MODULE"),
        (of(("python3", "-u", "-m", "x")), "not python3 -m MODULE"),
        (of(("python3", "-m")), "not python3 -m MODULE"),
        (of(("sh", "-c", "python3 -m x")), "not python3 -m MODULE"),
        (of(()), "not python3 -m MODULE"),
        (of(("python3", "-m", "trainshed_program.train")), "submit it as a package"),
    ],
)
def test_others_begin_cold_and_say_why(warm: WarmStart, why: str) -> None:
    assert (warm.runtime, warm.modules) == ("", ())
    assert why in warm.cold_because


def test_variables_that_an_import_may_read_are_as_they_were_there() -> None:
    same = {**ENVIRONMENT, "HOME": "/slot", "PYTHONUSERBASE": "/slot/user", "TF_CONFIG": "{}"}
    assert differing(same) == ()
    other = {
        **same,
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C",
        "LD_PRELOAD": "/evil.so",
        "NCCL_DEBUG": "INFO",
    }
    assert differing(other) == ("LC_ALL", "LD_PRELOAD", "OMP_NUM_THREADS")
    assert differing({**same, "PYTHONUNBUFFERED": ""}) == ("PYTHONUNBUFFERED",)
    # Not set is not the same as set.
    assert differing({name: value for name, value in same.items() if name != "LANG"}) == ("LANG",)
    assert differing({**same, "CUDA_VISIBLE_DEVICES": "0"}) == ("CUDA_VISIBLE_DEVICES",)


PRIMARY = ReplicaId(0, 0)
RUNTIME = PreparedRuntime(
    "/layer/template", preloadable=Preloadable("/runtime/template", ("torch",))
)
WARM = WarmStart("/runtime/template", ("torch",))


def planned(
    label: str,
    *,
    trial: str = "",
    setting: WarmStarts = "trials",
    runtime: PreparedRuntime = RUNTIME,
) -> WarmStart | None:
    """Of a job whose program is a package."""
    spec = parse_custom_job(
        custom_job(package()), region="us-central1", runtimes=FakeRuntimes()
    ).spec
    program = spec.pool(0).program
    subject = replace(
        job(1),
        spec=replace(spec, trial=trial),
        replicas=(Replica(PRIMARY, node="node", incarnation=1),),
        attempt=1,
        labels=((WARM_LABEL, label),) if label else (),
    )
    slots = [Slot(PRIMARY, "node", "host-0", "127.64.0.1", "host-0", 2222)]
    defaults = LaunchDefaults(warm_starts=setting)
    prepared = {(program.runtime, program.package_uris): runtime}
    return launch_plans(subject, slots, prepared, defaults, {PRIMARY: 1})[0].warm


def test_trials_of_a_package_begin_warm_and_other_jobs_by_their_label() -> None:
    assert planned("", trial="1") == WARM
    assert planned("") is None
    assert planned("on") == WARM
    assert planned("off", trial="1") is None
    assert planned("", setting="on") == WARM


def test_only_who_asks_is_told_that_a_runtime_has_nothing_to_import_ahead() -> None:
    plain = PreparedRuntime("/layer/template", preloadable=Preloadable("/runtime/template", ()))
    assert planned("", trial="1", runtime=plain) is None
    told = planned("on", runtime=plain)
    assert told is not None and "names no framework" in told.cold_because
