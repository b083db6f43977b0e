"""What jobs with useless reducers are told."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    REDUCER,
    SKLEARN,
    TENSORFLOW,
    Request,
    container,
    custom_job,
    package,
    vertex,
)
from trainshed.core.runtime import REDUCERS
from trainshed.core.specs.worker_pool import USE_NONE
from trainshed.runtimes.families import FAMILIES, GSUTIL, TENSORBOARD
from trainshed_reduction import settings, variables

REPOSITORY = "us-docker.pkg.dev/vertex-ai/training/"
PYTORCH = f"{REPOSITORY}pytorch-cpu.2-4.py310:latest"
XGBOOST = f"{REPOSITORY}xgboost-cpu.1-1:latest"


def warnings(*pools: Request) -> tuple[str, ...]:
    return vertex(custom_job(*pools)).warnings


def workers(
    count: int, kind: str = "n1-standard-16", image: str = PYTORCH, **machine: Any
) -> list[Request]:
    """Pools 0 and 1 with `count` replicas in all; an own image if it is none that is prebuilt."""
    spec = {"machineSpec": {"machineType": kind, **machine}}
    made = container(imageUri=image) if image == CUSTOM_IMAGE else package(executorImageUri=image)
    more: Request = made | spec | {"replicaCount": str(count - 1)} if count > 1 else {}
    return [made | spec, more]


def reducers(count: int, kind: str = "n1-highcpu-16") -> Request:
    spec = {"machineSpec": {"machineType": kind}, "replicaCount": str(count)}
    return container(imageUri=REDUCER) | spec


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (TENSORFLOW, "Programs of tensorflow do not use reducers, so worker pool 2"),
        (XGBOOST, "Programs of xgboost do not use"),
        (SKLEARN, "Programs of scikit-learn do not use"),
    ],
)
def test_reducers_that_will_idle_are_told_of_when_the_job_is_made(image: str, words: str) -> None:
    """spec/reduction#frameworks: never silently idle reducers."""
    texts = [text for text in warnings(*workers(4, image=image), reducers(4)) if words in text]
    assert len(texts) == 1


def test_every_runtime_family_is_decided_on() -> None:
    """spec/reduction: whether a new one can use reducers."""
    for_programs = {sheet.family for sheet in FAMILIES} - {REDUCERS, TENSORBOARD, GSUTIL}
    assert for_programs - USE_NONE == {"pytorch"}


PAGE = Path(__file__).parents[2] / "docs/reduction-server.md"


def test_the_guide_has_every_variable_and_its_default() -> None:
    """spec/reduction#settings: what a job can set, and what it starts from."""
    text = PAGE.read_text()
    documented = set(re.findall(r"TRAINSHED_REDUC[A-Z_]*[A-Z]", text))
    values = filter(lambda value: isinstance(value, str), vars(variables).values())
    assert documented == {v for v in values if re.fullmatch(variables.START + "[A-Z_]+", v)}
    defaults = settings.Settings((), b"")
    for name, value in {
        variables.MODE: "auto",
        variables.MIN_BYTES: defaults.min_bytes,
        variables.CHUNK_BYTES: defaults.chunk_bytes,
        variables.CREDIT_BYTES: defaults.credit_bytes,
        variables.START_SECONDS: defaults.start_seconds,
        variables.WAIT_SECONDS: defaults.wait_seconds,
        variables.ABSENT_SECONDS: defaults.absent_seconds,
    }.items():
        shown = (
            f"`{value}`" if isinstance(value, str) else f"{value:g}" if value < 1e6 else f"{value}"
        )
        assert re.search(rf"\| `{name}` \| {re.escape(shown)} \|", text), name
