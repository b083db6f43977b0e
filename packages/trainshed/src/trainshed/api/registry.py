"""The built-in methods of every service. Additions provide more methods (`api/additions.py`)."""

from types import MappingProxyType
from typing import Final

from trainshed.api import ml_v1, projects
from trainshed.api.aiplatform_v1 import (
    datasets,
    job_service,
    locations,
    models,
    operations,
    persistent_resources,
    studies,
    training_pipelines,
)
from trainshed.api.calls.registry import Registry
from trainshed.api.logging_v2 import entries, tail

BUILT_IN: Final = Registry(
    handlers=MappingProxyType(
        {
            method: handler
            for module in (
                job_service,
                training_pipelines,
                models,
                datasets,
                persistent_resources,
                locations,
                operations,
                studies,
                ml_v1,
                entries,
                projects,
            )
            for method, handler in module.HANDLERS.items()
        }
    ),
    checks=MappingProxyType(
        {**job_service.CHECKS, **training_pipelines.CHECKS, **ml_v1.CHECKS, **studies.CHECKS}
    ),
    streams=MappingProxyType({**tail.STREAMS}),
)
