"""The submissions of the jobs of a chaos run, one form per API. Pure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.chaos.plans import JobPlan, Pool
from tests.e2e.running import REGION, SKLEARN, container_job

_PROGRAM: Final = (Path(__file__).parent / "program.py").read_text("utf-8")

Arguments = Callable[[JobPlan, int, Pool], list[str]]
"""A function that returns the arguments of the replicas of a pool."""


def submission(plan: JobPlan, arguments: Arguments) -> dict[str, Any]:
    """Return the body of the request."""
    return _ml_job(plan, arguments) if plan.is_ml else _custom_job(plan, arguments)


def _custom_job(plan: JobPlan, arguments: Arguments) -> dict[str, Any]:
    job = container_job(_PROGRAM, pools=[pool.replicas for pool in plan.pools], name=plan.name)
    spec = job["jobSpec"]
    for position, made in enumerate(spec["workerPoolSpecs"]):
        made["containerSpec"]["args"] = arguments(plan, position, plan.pools[position])
    scheduling = {"restartJobOnWorkerRestart": plan.restart_whole, "disableRetries": plan.no_retries}
    spec["scheduling"] = {key: True for key, is_set in scheduling.items() if is_set}
    return job


def _ml_job(plan: JobPlan, arguments: Arguments) -> dict[str, Any]:
    training: dict[str, Any] = {"scaleTier": "CUSTOM", "region": REGION}
    for position, (role, pool) in enumerate(zip(("master", "worker"), plan.pools, strict=False)):
        training[f"{role}Type"] = "n1-standard-4"
        training[f"{role}Config"] = {
            "imageUri": SKLEARN,
            "containerCommand": ["python3", "-c", _PROGRAM],
            "containerArgs": arguments(plan, position, pool),
        }
        if position:
            training[f"{role}Count"] = str(pool.replicas)
    return {"jobId": plan.name, "trainingInput": training}
