"""Adds pipelines to a service (`trainshed.api.additions`): the pipeline jobs of PipelineService, and
ScheduleService."""

from collections.abc import Mapping
from functools import partial

from trainshed.api.additions import Addition, AdditionContext
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.works import Work
from trainshed.store.steps import Reconciler
from trainshed_pipelines.runs.google_components import component_faults
from trainshed_pipelines.runs.lineage import Lineage
from trainshed_pipelines.runs.programs import Programs
from trainshed_pipelines.runs.reconciler import PipelineJobReconciler
from trainshed_pipelines.runs.service import PipelineJobs, load_run
from trainshed_pipelines.runs.table import Runs
from trainshed_pipelines.schedules.service import ScheduleMethods
from trainshed_pipelines.schedules.table import Schedules


def new_addition(context: AdditionContext) -> Addition:
    """Create the addition. This function is the entry point of the package."""
    runs = Runs(context.store.writer, context.store.snapshots)
    lineage = Lineage()
    jobs = PipelineJobs(runs, component_faults, lineage)

    def reconcilers(services: Services, registry: Registry) -> Mapping[type[Work], Reconciler]:
        lineage.connect(services, registry)
        reconciler = PipelineJobReconciler(
            services.reader,
            runs,
            Programs(services, runs, lineage, registry),
            partial(load_run, services, runs),
            now=services.now,
            observe=lineage.observe,
        )
        return {PipelineJob: reconciler}

    schedules = Schedules(context.store.writer, context.store.snapshots)
    methods = ScheduleMethods(schedules, runs, component_faults)
    handlers = {**jobs.handlers(), **methods.handlers()}
    return Addition(handlers, reconcilers=reconcilers, background=methods.run)
