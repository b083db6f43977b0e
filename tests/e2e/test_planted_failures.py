"""The reason of a job's failure names its cause in one sentence (spec/failures#user-code):
planted failures of many kinds, real programs."""

import re
from collections.abc import Iterator
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
PLANTED: list[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("planted_failures.yaml").read_text()
)
SHARE = 0.95


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
    job["jobSpec"]["scheduling"] = {
        "disableRetries": True,
        "timeout": planted.get("timeout", "60s"),
    }
    command = job["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"]
    if "shell" in planted:
        command[:] = ["bash", "-c", planted["shell"]]
    return job


def is_wrong(planted: dict[str, str], text: str) -> bool:
    return "\n" in text or len(text) > 300 or not re.search(planted["says"], text)


@needs_view
def test_reasons_name_the_cause_in_one_sentence(service: Service) -> None:
    """Every second program, and in `./dev test-all` all of them."""
    programs = [planted for planted in PLANTED if "prints" not in planted][:: 1 if SOAKS else 2]
    jobs = {planted["name"]: submit(service, body(planted)) for planted in programs}
    wrong: dict[str, str] = {}
    for planted in programs:
        view = service.finish(jobs[planted["name"]])
        text = view.get("failure", {}).get("reason", f"it is {view['state']}")
        if is_wrong(planted, text):
            wrong[planted["name"]] = text
    assert len(wrong) <= len(programs) * (1 - SHARE), wrong


def test_so_do_those_of_what_programs_of_libraries_print() -> None:
    printed = [planted for planted in PLANTED if "prints" in planted]
    texts = {p["name"]: reason(p["prints"].splitlines(), status=1, number=None) for p in printed}
    wrong = {p["name"]: texts[p["name"]] for p in printed if is_wrong(p, texts[p["name"]])}
    assert len(wrong) <= len(printed) * (1 - SHARE), wrong
