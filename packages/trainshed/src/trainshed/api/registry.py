"""The registry of handlers, by the full names of their API methods: everything that a transport can call."""

from types import MappingProxyType

from trainshed.api import ml_v1, projects
from trainshed.api.aiplatform_v1 import (
    datasets,
    job_service,
    lineage,
    locations,
    metadata,
    models,
    operations,
    studies,
    tensorboard_points,
    tensorboards,
    training_pipelines,
)
from trainshed.api.calls.call import Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.logging_v2 import entries

HANDLERS: Handlers = MappingProxyType(
    {
        method: handler
        for module in (
            job_service,
            training_pipelines,
            models,
            metadata,
            lineage,
            datasets,
            tensorboards,
            tensorboard_points,
            locations,
            operations,
            studies,
            ml_v1,
            entries,
            projects,
        )
        for method, handler in module.HANDLERS.items()
    }
)


CHECKS: Checks = MappingProxyType(
    {**job_service.CHECKS, **training_pipelines.CHECKS, **ml_v1.CHECKS, **studies.CHECKS}
)
"""Checks by full method name, for requests of which only a part can be read."""
