"""Tests of the decision between warm and cold starts (spec/program#warm-starts)."""

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.unit.specs_requests import custom_job, launch_plan, package, placed_job, vertex
from trainshed.cli.jobs.describe import description
from trainshed.cli.jobs.views import JobView
from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.core.launch import WARM_LABEL, WarmStart
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.units import Nanos
from trainshed.core.warm_start import ENVIRONMENT, WarmStarts, differing, of_program, own_values
from trainshed.replica.supervisor.warm_start import NotWarm, become
from trainshed.runtimes.port import Preloadable, PreparedRuntime
from trainshed.wire.trainshed_v1 import jobs as records

MODULE = ("python3", "-m", "trainer.task", "--lr", "1")


def warm_start_of(argv: tuple[str, ...] = MODULE, **facts: object) -> WarmStart:
    values = {"in_image": False, "gpus": 0, "reduces": False, "modules": ("numpy", "torch")}
    return of_program(argv, runtime="/runtime", **(values | facts))  # pyright: ignore[reportArgumentType] - by name


def test_python_program_that_imports_frameworks_starts_in_a_preloaded_interpreter() -> None:
    assert warm_start_of() == WarmStart("/runtime", ("numpy", "torch"))
    for argv in (("python", "-m", "x"), ("python3", "train.py", "--lr", "1")):
        assert warm_start_of(argv) == WarmStart("/runtime", ("numpy", "torch"))


NO_MODULE = "not python3 -m MODULE, python3 -c TEXT or python3 FILE"


@pytest.mark.parametrize(
    ("warm", "why"),
    [
        (warm_start_of(in_image=True), "container image"),
        (warm_start_of(modules=()), "has no framework"),
        (warm_start_of(gpus=1), "it has GPUs"),
        (warm_start_of(reduces=True), "it reduces"),
        (warm_start_of(("python3", "-u", "-m", "x")), NO_MODULE),
        (warm_start_of(("python3", "-m")), NO_MODULE),
        (warm_start_of(("sh", "-c", "python3 -m x")), NO_MODULE),
        (warm_start_of(()), NO_MODULE),
    ],
)
def test_program_that_cannot_use_a_preloader_starts_cold_with_a_reason(warm: WarmStart, why: str) -> None:
    assert (warm.runtime, warm.modules) == (None, ())
    assert warm.cold_because and why in warm.cold_because


def test_variables_that_affect_python_imports_prevent_a_warm_start() -> None:
    same = {**ENVIRONMENT, "HOME": "/slot", "PYTHONUSERBASE": "/slot/user", "TF_CONFIG": "{}"}
    assert differing(same) == ()
    # torch.load reads this variable at each call.
    assert differing({**same, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}) == ()
    other = {
        **same,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "/evil.so",
        "LC_ALL": "C",
        "LD_PRELOAD": "/evil.so",
        "NCCL_DEBUG": "INFO",
    }
    assert differing(other) == ("LC_ALL", "LD_PRELOAD", "MKL_NUM_THREADS")
    assert own_values(other) == (("OMP_NUM_THREADS", "1"),)
    assert differing({**same, "PYTHONUNBUFFERED": ""}) == ("PYTHONUNBUFFERED",)
    # An unset variable differs from a set one.
    assert differing({name: value for name, value in same.items() if name != "LANG"}) == ("LANG",)
    assert differing({**same, "CUDA_VISIBLE_DEVICES": "0"}) == ("CUDA_VISIBLE_DEVICES",)


RUNTIME = PreparedRuntime("/layer/template", preloadable=Preloadable("/runtime/template", ("torch",)))
WARM = WarmStart("/runtime/template", ("torch",))


def submit_job(label: str, trial: str | None = None, **environ: str) -> Job:
    """Return a job whose program is a package."""
    env = [{"name": name, "value": value} for name, value in environ.items()]
    spec = vertex(custom_job(package(env=env)))
    return placed_job(replace(spec, trial=trial), WARM_LABEL, label)


@pytest.mark.parametrize(
    ("label", "setting", "trial", "is_warm"),
    [
        ("", "trials", "1", True),
        ("", "trials", None, False),
        ("", "on", None, True),
        ("", "off", "1", False),
        ("on", "off", None, True),
        ("on", "trials", None, True),
        ("off", "on", "1", False),
        ("off", "trials", "1", False),
        # The label was changed to another value after the submission, so it has no effect.
        ("perhaps", "trials", "1", True),
    ],
)
def test_package_trials_start_warm_and_all_other_jobs_only_on_request(
    label: str, setting: WarmStarts, trial: str | None, is_warm: bool
) -> None:
    plan = launch_plan(submit_job(label, trial), RUNTIME, LaunchDefaults(warm_starts=setting))
    assert plan.warm == (WARM if is_warm else None)


@pytest.mark.parametrize("answer", [b"ready 0\n", b"ready 1\n", b"ready me\n"])
def test_invalid_process_id_from_a_preloader_causes_a_cold_start(answer: bytes) -> None:
    """Packages of the job run in the forked process before it sends its process ID, and could send a
    different ID."""
    template = str(Path(sys.executable).parent.parent)
    main = SimpleNamespace(argv=[sys.executable], environ={}, directory="/", output=1, errors=2)
    main.groups = SimpleNamespace(entry_handles=())
    plan = SimpleNamespace(isolation=SimpleNamespace(level="session"), warm=SimpleNamespace())
    plan.warm.template = template
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        with pytest.raises(NotWarm, match="no valid process ID"):
            become(ours, cast(Any, main), cast(Any, plan), owner=None, connects=None, shim=theirs)


def test_describe_command_shows_whether_replicas_started_warm_or_cold() -> None:
    def replica_record(index: int, began: str) -> records.Replica:
        task = f"workerpool0-{index}"
        return records.Replica(id=task, task=task, state="RUNNING", node="node", began=began)

    def start_lines(*beginnings: str) -> list[str]:
        replicas = tuple(replica_record(index, began) for index, began in enumerate(beginnings))
        job = JobView(state=JobState.RUNNING, replicas=replicas)
        lines = description(job, Nanos(2), None, {})
        return [" ".join(line.split()) for line in lines if "started" in line]

    warm, cold = "started warm: torch 2.13", "started cold: it has GPUs"
    assert start_lines("", "") == []
    assert start_lines(warm, warm) == [f"Began {warm}"]
    several = [f"Began workerpool0-0 and 1 more {warm}", f"workerpool0-1 {cold}"]
    assert start_lines(warm, cold, warm) == several
