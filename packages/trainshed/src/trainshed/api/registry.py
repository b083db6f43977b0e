"""The registry of handlers, by the full names of their API methods: everything that a transport can call."""

from collections.abc import Iterable
from functools import cache
from types import MappingProxyType

from trainshed.api import projects
from trainshed.api.aiplatform_v1 import (
    datasets,
    job_service,
    locations,
    models,
    operations,
    studies,
    tensorboard_points,
    tensorboards,
    training_pipelines,
)
from trainshed.api.aiplatform_v1.metadata import lineage, nodes
from trainshed.api.calls.call import Handler, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.logging_v2 import entries
from trainshed.api.ml_v1 import jobs


@cache
def handlers() -> Handlers:
    """Return the registry. Raises ValueError if two modules claim one method."""
    return _merged(
        module.HANDLERS
        for module in (
            job_service,
            training_pipelines,
            models,
            nodes,
            lineage,
            datasets,
            tensorboards,
            tensorboard_points,
            locations,
            operations,
            studies,
            jobs,
            entries,
            projects,
        )
    )


CHECKS: Checks = MappingProxyType(
    {
        **job_service.CHECKS,
        **training_pipelines.CHECKS,
        **jobs.CHECKS,
        **studies.CHECKS,
    }
)
"""Checks by full method name, for requests of which only a part can be read."""


def _merged(parts: Iterable[Handlers]) -> Handlers:
    merged: dict[str, Handler] = {}
    for part in parts:
        twice = merged.keys() & part.keys()
        if twice:
            raise ValueError(f"two handlers for one method: {', '.join(sorted(twice))}")
        merged |= part
    return MappingProxyType(merged)
