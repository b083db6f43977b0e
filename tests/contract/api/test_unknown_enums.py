"""Unknown enum values: the error lists the valid values and omits errors that only follow from this one."""

from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.violations import violations
from tests.unit.specs_requests import custom_job, ml_job, pool

ML_JOBS = "/v1/projects/p1/jobs"
VERTEX_JOBS = f"{LOCATION}/customJobs"
TIERS = "BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU, CUSTOM"


async def faults(service: ApiService, path: str, body: dict[str, Any]) -> dict[str, str]:
    return violations(await service.call("POST", path, body))


def gpu_pool(accelerator: object) -> dict[str, Any]:
    spec = {"machineType": "n1-standard-8", "acceleratorType": accelerator, "acceleratorCount": 1}
    return pool(machineSpec=spec)


async def test_unknown_scale_tier_lists_the_valid_values(service: ApiService) -> None:
    """This is the example of Google's guide with one wrong value. The error must not mention BASIC,
    the default of an unset tier."""
    body = ml_job(
        scaleTier="HUGE",
        masterType="complex_model_m",
        workerType="complex_model_m",
        workerCount="9",
        parameterServerType="large_model",
        parameterServerCount="3",
    )
    shown = await faults(service, ML_JOBS, body)
    assert list(shown) == ["job.training_input.scale_tier"]
    assert shown["job.training_input.scale_tier"].endswith(f'"HUGE"; the values are {TIERS}.')


@pytest.mark.parametrize(("tier", "meant"), [("PREMIUM", "PREMIUM_1"), ("custm", "CUSTOM")])
async def test_error_for_an_unknown_enum_value_suggests_the_closest_valid_value(
    service: ApiService, tier: str, meant: str
) -> None:
    (text,) = (await faults(service, ML_JOBS, ml_job(scaleTier=tier))).values()
    assert text.endswith(f'"{tier}"; did you mean {meant}? The values are {TIERS}.')


async def test_error_for_an_incomplete_enum_name_suggests_the_full_name(service: ApiService) -> None:
    shown = await faults(service, VERTEX_JOBS, custom_job(gpu_pool("nvidia-h100")))
    assert "; did you mean NVIDIA_H100_80GB? The values" in next(iter(shown.values()))


@pytest.mark.parametrize("accelerator", [17, "17", 17.0, "NVIDIA_TESLA_T5", True, None])
async def test_unknown_accelerators_are_rejected_by_number_and_name(
    service: ApiService, accelerator: object
) -> None:
    spec = {"type": accelerator, "count": "1"}
    body = ml_job(scaleTier="CUSTOM", masterType="n1-standard-8", masterConfig={"acceleratorConfig": spec})
    shown = await faults(service, ML_JOBS, body)
    if accelerator is None:
        assert list(shown) == ["master_config.accelerator_config.count"], "null is not set"
        return
    assert list(shown) == ["job.training_input.master_config.accelerator_config.type"]
    assert "NVIDIA_TESLA_K80, NVIDIA_TESLA_P100" in next(iter(shown.values()))
