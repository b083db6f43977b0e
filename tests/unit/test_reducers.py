"""Tests of warnings about reducers that a job cannot use."""

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


def workers(count: int, kind: str = "n1-standard-16", image: str = PYTORCH, **machine: Any) -> list[Request]:
    """Return pools 0 and 1 with `count` replicas in total, with a custom image by default."""
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
def test_job_with_unusable_reducers_gets_a_warning_at_creation(image: str, words: str) -> None:
    """spec/reduction#frameworks: Reducers must not be idle without a message."""
    texts = [text for text in warnings(*workers(4, image=image), reducers(4)) if words in text]
    assert len(texts) == 1


def test_every_runtime_family_declares_whether_it_uses_reduction_servers() -> None:
    """spec/reduction: a new runtime family must be added to the declaration."""
    for_programs = {sheet.family for sheet in FAMILIES} - {REDUCERS, TENSORBOARD, GSUTIL}
    assert for_programs - USE_NONE == {"pytorch"}


PAGE = Path(__file__).parents[2] / "docs/reduction-server.md"


def test_reduction_guide_lists_every_variable_and_default() -> None:
    """spec/reduction#settings: The guide lists all settings of a job."""
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
        shown = f"`{value}`" if isinstance(value, str) else f"{value:g}" if value < 1e6 else f"{value}"
        assert re.search(rf"\| `{name}` \| {re.escape(shown)} \|", text), name
