"""`aiplatform` v1 PipelineService: pipelineJobs (facts/pipelines#resources)."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.aiplatform_v1 import job_service, operations
from trainshed.api.aiplatform_v1 import views as vertex
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handlers, public_field
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.filters.jobs import JobTest
from trainshed.api.filters.matching import text_test
from trainshed.api.filters.syntax import Comparison
from trainshed.api.resources.jobs import cancel_work, delete_for_user, find_work, read_vertex_name, read_work
from trainshed.api.resources.operations import finished_operation
from trainshed.api.resources.submission import check_and_parse, compact_json, store_works
from trainshed.core.copies import RETRY_LABEL
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    RequestError,
    Unavailable,
    Violation,
)
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import bucket_path_fault, check_texts, read_labels
from trainshed.store.records import OperationKind
from trainshed_pipelines.runs import views
from trainshed_pipelines.runs.lineage import Lineage
from trainshed_pipelines.runs.reconciler import Run
from trainshed_pipelines.runs.records import TaskRun, Values
from trainshed_pipelines.runs.table import Runs, write_spec
from trainshed_pipelines.runs.tree import Tree, reusable_tasks
from trainshed_pipelines.template.reading import check_parameters, read_template
from trainshed_pipelines.template.structures import Json, Template

FIELD: Final = "pipeline_job"
_ID: Final = re.compile(r"[a-z][-a-z0-9]{0,127}")
_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9]+")
FAIL_FAST: Final = "PIPELINE_FAILURE_POLICY_FAIL_FAST"
_NETWORK_FIELDS: Final = ("network", "reservedIpRanges", "pscInterfaceConfig")
"""Fields that have no effect, because programs use the network of the service's machines."""
_MAX_BATCH: Final = 32
"""Maximum number of pipeline jobs in one batch request (facts/pipelines#limits)."""

ComponentFault = Callable[[Template], Iterator[Violation]]
"""Yields violations for components that the service cannot carry out."""


class Requested(Struct, frozen=True):
    """A valid request for a pipeline job."""

    template: Template
    spec: dict[str, Json]
    parameters: dict[str, Json]
    #: The pipeline job in public JSON, without the compiled pipeline.
    public: dict[str, Any]
    labels: tuple[tuple[str, str], ...]
    root: str
    pipeline_job_id: str


def check(component_faults: ComponentFault, call: Call, request: Any) -> Requested:
    """Return the pipeline job to create. Raises InvalidRequest with all errors, and NotFound for an unknown
    location."""
    project = known_location(request.parent).project_id
    public = public_field(call, request, FIELD)
    return check_public(call.services, project, public, request.pipeline_job_id, component_faults)


def check_public(
    services: Services, project: str, public: dict[str, Any], job_id: str, component_faults: ComponentFault
) -> Requested:
    """Return the pipeline job of a project, like `parse`. Its buckets must exist as well. May be called in a
    thread."""
    uses = [("runtime_config.gcs_output_directory", _root(public))]
    return check_and_parse(
        lambda: parse(public, job_id, component_faults), uses, services.buckets, project=project
    )


def parse(public: dict[str, Any], job_id: str, component_faults: ComponentFault) -> Requested:
    """Return the pipeline job that `public` describes in public JSON. `job_id`: the requested ID; "" = choose
    one. Raises InvalidRequest with all errors."""
    faults = Faults()
    if job_id and not _ID.fullmatch(job_id):
        text = f"{job_id!r} does not have the form [a-z][-a-z0-9]{{0,127}}. Use another ID."
        faults.add("pipeline_job_id", text)
    section = Section(public, "", faults)
    check_texts(section, "displayName")
    labels = read_labels(section)
    if public.get("encryptionSpec"):
        text = "Customer-managed encryption keys are not supported. Omit encryptionSpec."
        faults.add("encryption_spec", text)
    spec = public.get("pipelineSpec")
    if not spec:
        text = "The compiled pipeline is missing. Compile the pipeline with kfp, and send its contents."
        if public.get("templateUri"):
            text += " This service does not read templates from a registry."
        faults.add("pipeline_spec", text)
    config = public.get("runtimeConfig", {})
    root = _root(public)
    template = _read(spec, faults) if spec else None
    parameters = dict[str, Json]()
    if template is not None:
        for violation in component_faults(template):
            faults.add(violation.field, violation.description)
        with faults.collect():
            parameters = check_parameters(template, _sent_parameters(config))
        for key in template.root.input_artifacts.keys() - config.get("inputArtifacts", {}).keys():
            if not template.root.input_artifacts[key].is_optional:
                faults.add("runtime_config.input_artifacts", f"The input artifact {key!r} is missing.")
    if not root:
        text = "Set the gs:// directory for the outputs of tasks (pipeline_root of the SDK)."
        faults.add("runtime_config.gcs_output_directory", text)
    elif fault := bucket_path_fault(root):
        faults.add("runtime_config.gcs_output_directory", fault)
    faults.refuse()
    assert spec is not None and template is not None, "a missing template is a violation"
    rest = {key: value for key, value in public.items() if key != "pipelineSpec"}
    return Requested(template, spec, parameters, rest, labels, root, job_id)


def _read(spec: dict[str, Json], faults: Faults) -> Template | None:
    with faults.collect():
        return read_template(spec)
    return None


def _root(public: dict[str, Any]) -> str:
    root = public.get("runtimeConfig", {}).get("gcsOutputDirectory", "")
    spec: dict[str, Any] = public.get("pipelineSpec") or {}
    return str(root or spec.get("defaultPipelineRoot", spec.get("default_pipeline_root", "")))


def _sent_parameters(config: dict[str, Any]) -> dict[str, Json]:
    """Return the parameter values of a request, in either form."""
    typed = {key: next(iter(value.values()), None) for key, value in config.get("parameters", {}).items()}
    return {**typed, **config.get("parameterValues", {})}


def new_pipeline_job(
    services: Services, parent: LocationName, requested: Requested, schedule: str | None = None
) -> PipelineJob:
    """Return the record of a new pipeline job. It is not stored yet. `schedule`: the name of the schedule
    that starts it."""
    uid, now = services.new_uid(), services.now()
    template = requested.template
    job_id = requested.pipeline_job_id
    if not job_id:
        job_id = f"{id_prefix(template)}-{uid}"
    name = JobName(Api.VERTEX, parent.project_id, parent.location, job_id, Collection.PIPELINE_JOBS)
    public = dict(requested.public)
    public["runtimeConfig"] = {**public.get("runtimeConfig", {}), "gcsOutputDirectory": requested.root}
    return PipelineJob(
        uid=uid,
        name=name,
        display_name=str(public.get("displayName") or template.display_name or template.name),
        public_json=compact_json(public),
        created=now,
        updated=now,
        labels=requested.labels,
        template=template.name,
        service_account=public.get("serviceAccount") or None,
        root=requested.root,
        schedule=schedule,
        notices=tuple(
            f"The field {name} has no effect: programs use the network of the service's machines."
            for name in _NETWORK_FIELDS
            if public.get(name)
        ),
    )


def id_prefix(template: Template) -> str:
    """Return the start of the IDs of pipeline jobs: the name of the compiled pipeline in the form of an
    ID."""
    word = _NOT_IN_AN_ID.sub("-", template.name.lower()).strip("-")
    return (word if word[:1].isalpha() else f"run-{word}")[:100].rstrip("-")


async def load_run(services: Services, runs: Runs, job: PipelineJob) -> Run:
    """Return the unchanging parts of a stored pipeline job. Raises InvalidRequest if another version of the
    service has accepted a template that this version does not support."""
    spec = await runs.spec(job.uid)
    earlier: Mapping[str, TaskRun] = {}
    if text := dict(job.labels).get(RETRY_LABEL, ""):
        old = await _find(services, job.name, text)
        if old is not None:
            before = await asyncio.to_thread(read_template, await runs.spec(old.uid))
            earlier = reusable_tasks(Tree(before, await runs.tasks(old.uid)), str(old.name))
    public = json.loads(job.public_json)
    config = public.get("runtimeConfig", {})
    template = await asyncio.to_thread(read_template, spec)
    parameters = check_parameters(template, _sent_parameters(config))
    return Run(template, Values(parameters), config.get("failurePolicy") == FAIL_FAST, earlier)


async def _find(services: Services, run: JobName, text: str) -> PipelineJob | None:
    """Return the pipeline job with this ID or UID in the project of `run`, or None."""
    try:
        work, _ = await find_work(services.reader, text, (run.project_id,))
    except NotFound:
        return None
    return work if isinstance(work, PipelineJob) else None


class PipelineJobs(Struct, frozen=True):
    """The methods of pipeline jobs."""

    runs: Runs
    component_faults: ComponentFault
    lineage: Lineage

    async def create(self, call: Call, request: Any) -> Message:
        requested = await asyncio.to_thread(check, self.component_faults, call, request)
        job = new_pipeline_job(call.services, known_location(request.parent), requested)
        text = dict(job.labels).get(RETRY_LABEL, "")
        if text and await _find(call.services, job.name, text) is None:
            fault = f"The pipeline job {text!r} does not exist in the project. Use its ID or UID."
            raise InvalidRequest((Violation(f"labels.{RETRY_LABEL}", fault),))
        writes = (write_spec(job.uid, requested.spec),)
        await store_works(call.services, call.principal, job, writes=writes)
        # Clients add the context of the run to an experiment as soon as they have the response. If this call
        # fails, the first step of the pipeline job creates the contexts.
        with contextlib.suppress(Unavailable):
            await self.lineage.begin(job)
        return await self.view(call, job, False)

    async def view(self, call: Call, job: PipelineJob, in_list: bool) -> Message:
        """Return the message of a pipeline job. In a list, the message has no tasks, no contexts and no large
        compiled pipeline."""
        spec = await (self.runs.listed_spec if in_list else self.runs.spec)(job.uid)
        tasks = () if in_list else await self.runs.tasks(job.uid)
        contexts = () if in_list else await self.lineage.contexts(job)
        # Convert in a thread, because the conversion of a thousand tasks takes long.
        return await asyncio.to_thread(views.pipeline_job, job, spec, tasks, contexts)

    async def batch_cancel(self, call: Call, request: Any) -> Message:
        """Cancel several pipeline jobs. Pipeline jobs that have finished stay unchanged."""
        jobs = await self._named(call, request)
        for job in jobs:
            if not job.state.is_final:
                await cancel_work(call.services, call.principal, job)
        return await self._operation(call, request, jobs, "BatchCancelPipelineJobsResponse")

    async def batch_delete(self, call: Call, request: Any) -> Message:
        """Delete several pipeline jobs, or none if one of them has not finished."""
        jobs = await self._named(call, request)
        if unfinished := [str(job.name) for job in jobs if not job.state.is_final]:
            raise FailedPrecondition(
                f"{', '.join(unfinished)} has not finished, so nothing was deleted. Cancel it, and delete it "
                "after its end."
            )
        for job in jobs:
            await delete_for_user(call.services, job.name)
        return await self._operation(call, request, jobs, "BatchDeletePipelineJobsResponse")

    async def _named(self, call: Call, request: Any) -> list[PipelineJob]:
        parent = known_location(request.parent)
        faults = Faults()
        jobs: list[PipelineJob] = []
        if not 1 <= len(request.names) <= _MAX_BATCH:
            faults.add("names", f"Send 1 to {_MAX_BATCH} names, not {len(request.names)}.")
        for index, text in enumerate(request.names[:_MAX_BATCH]):
            field = f"names[{index}]"
            try:
                name = read_vertex_name(text, Collection.PIPELINE_JOBS)
                if (name.project_id, name.location) != (parent.project_id, parent.location):
                    faults.add(field, f"{text} is not in {parent}. Send one request per location.")
                    continue
                job, _ = await read_work(call.services.reader, name, PipelineJob)
                if job.uid in {other.uid for other in jobs}:
                    faults.add(field, f"{text} is repeated. Send each name once.")
                jobs.append(job)
            except RequestError as fault:
                faults.add(field, str(fault))
        faults.refuse()
        return jobs

    async def _operation(
        self, call: Call, request: Any, jobs: Sequence[PipelineJob], response: str
    ) -> Message:
        """Store a finished operation whose response contains the pipeline jobs without their tasks."""
        shown = [views.pipeline_job(job, None, ()) for job in jobs]
        record = finished_operation(
            call.services, OperationKind.UPDATE, str(jobs[0].name), message(response, pipeline_jobs=shown)
        )
        await call.services.studies.begin_operation(record)
        return operations.finished_view(record)

    def handlers(self) -> Handlers:
        kind = job_service.JobKind(
            "PipelineService",
            Collection.PIPELINE_JOBS,
            PipelineJob,
            self.view,
            vertex.PIPELINE_STATES,
            _FILTERS,
        )
        return {
            **job_service.handlers(kind, self.create),
            f"{V1}.PipelineService.BatchCancelPipelineJobs": self.batch_cancel,
            f"{V1}.PipelineService.BatchDeletePipelineJobs": self.batch_delete,
        }


def _by(read: Callable[[PipelineJob], str]) -> Callable[[Comparison], JobTest]:
    def compile_test(leaf: Comparison) -> JobTest:
        test = text_test(leaf)
        return lambda work: isinstance(work, PipelineJob) and test(read(work))

    return compile_test


_FILTERS: Final = {
    "pipeline_name": _by(lambda job: job.template),
    "service_account": _by(lambda job: job.service_account or ""),
    "schedule_name": _by(lambda job: job.schedule or ""),
    "pipeline_job_user_id": _by(lambda job: job.name.job_id),
    "run_type": _by(lambda job: "SCHEDULED" if job.schedule else "ON_DEMAND"),
}
"""Filter fields of pipeline jobs in addition to those of all jobs (facts/pipelines#filters)."""
