"""The reason of a job's failure contains its cause in one sentence (spec/failures#user-code): many kinds of
planted failures in real programs.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.packages import package_job
from tests.e2e.running import Service, container_job, running, submit
from tests.isolation import needs_view
from tests.soaks import SOAKS
from trainshed.core.failure.reasons import reason

pytestmark = pytest.mark.e2e
PLANTED: list[dict[str, str]] = yaml.safe_load(Path(__file__).with_name("planted_failures.yaml").read_text())
PROGRAMS = [planted for planted in PLANTED if "prints" not in planted]
SOME = 1 if SOAKS else 2
"""Every second program runs; in `./dev test-all` all of them."""
MIN_MATCH_RATIO = 0.95


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = "grace = 1\nmemory_per_replica = 512\nmax_replicas = 4\n"
    with running(tmp_path_factory.mktemp("planted") / "data", settings=settings) as started:
        yield started


def body(planted: dict[str, str]) -> dict[str, Any]:
    if "package" in planted:
        return package_job(planted["package"])
    workers = int(planted.get("replicas", 0))
    job = container_job(planted.get("python", ""), pools=(1, workers), name=planted["name"])
    job["jobSpec"]["scheduling"] = {"disableRetries": True, "timeout": planted.get("timeout", "60s")}
    command = job["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"]
    if "shell" in planted:
        command[:] = ["bash", "-c", planted["shell"]]
    return job


def expect_causes(programs: list[dict[str, str]], reasons: Mapping[str, str]) -> None:
    """The reasons of nearly all programs match their patterns."""
    wrong: dict[str, str] = {}
    for planted in programs:
        text = reasons[planted["name"]]
        if "\n" in text or len(text) > 300 or not re.search(planted["says"], text):
            wrong[planted["name"]] = text
    assert len(wrong) <= len(programs) * (1 - MIN_MATCH_RATIO), wrong


@needs_view
def test_failure_reasons_contain_the_cause_in_one_sentence(service: Service) -> None:
    """This test runs the programs that only fail in a job. `./dev test-all` runs all programs."""
    programs = [p for p in PROGRAMS if SOAKS or "in_job" in p][::SOME]
    jobs = {planted["name"]: submit(service, body(planted)) for planted in programs}
    views = {name: service.finish(job) for name, job in jobs.items()}
    reasons = {
        name: view.get("failure", {}).get("reason", f"it is {view['state']}") for name, view in views.items()
    }
    expect_causes(programs, reasons)


def failure_reason(planted: dict[str, str], place: Path) -> str:
    """Return the reason for a program's output and exit, outside a job."""
    words = [sys.executable, "-IS", "-c", planted.get("python", "")]
    if "shell" in planted:
        words = ["bash", "-c", planted["shell"]]
    run = subprocess.run(
        words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    number = -run.returncode if run.returncode < 0 else None
    status = run.returncode if number is None else 128 + number
    return reason(run.stdout.splitlines(), status=status, number=number)


def test_failure_reason_of_a_program_run_without_a_job_contains_the_expected_cause(tmp_path: Path) -> None:
    """The programs have cheap imports. Exceptions look the same in the other programs."""
    ours = [p for p in PROGRAMS if "in_job" not in p]
    programs = [p for p in ours if not re.search("numpy|sklearn|joblib", p.get("python", ""))]
    programs = programs[::SOME]
    expect_causes(programs, {p["name"]: failure_reason(p, tmp_path) for p in programs})


def test_failure_reason_of_recorded_library_output_contains_the_expected_cause() -> None:
    printed = [planted for planted in PLANTED if "prints" in planted]
    expect_causes(
        printed, {p["name"]: reason(p["prints"].splitlines(), status=1, number=None) for p in printed}
    )
