"""`aiplatform` v1 ScheduleService (facts/pipelines#schedules)."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import list_response, of_location
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1
from trainshed.api.calls.call import Call, Handlers, camel_case, public_field
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.matching import compile_filter, text_test, time_test
from trainshed.api.filters.syntax import Comparison, FilterError, Term
from trainshed.api.resources.operations import finished_operation
from trainshed.api.resources.submission import check_labels, compact_json
from trainshed.core.errors import InvalidRequest
from trainshed.core.requests import Faults, Section, snake_case
from trainshed.core.specs.syntax import read_display_name
from trainshed.core.units import Nanos
from trainshed.store.records import OperationKind
from trainshed.wire import json as wire_json
from trainshed.wire import pool
from trainshed_pipelines.runs.service import ComponentFault, check_public
from trainshed_pipelines.schedules import records
from trainshed_pipelines.schedules.cron import next_run
from trainshed_pipelines.schedules.loop import ScheduleLoop, require_rights
from trainshed_pipelines.schedules.records import Author, Schedule, ScheduleName, Terms

FIELD: Final = "schedule"
_REQUEST: Final = "createPipelineJobRequest"
_NOTEBOOK: Final = "createNotebookExecutionJobRequest"
_UPDATABLE: Final = (*map(snake_case, Terms.__struct_encode_fields__), snake_case(_REQUEST))
_LAST_TIME: Final = 7_258_118_400 * 10**9
"""The year 2200. Times of runs must fit into 63 bits."""


def read_terms(section: Section, now: Nanos) -> Terms:
    """Return the terms in a schedule (public JSON). Errors are added to the section's faults."""
    try:
        terms = msgspec.convert(section.values, Terms, strict=False)
    except msgspec.ValidationError as wrong:
        section.fault("", f"{wrong}. Set times from 1970 to 2199.")
        return Terms()
    read_display_name(section)
    try:
        section.check("cron", "" if next_run(terms.cron, now) else "The expression never matches.")
    except ValueError as wrong:
        section.fault("cron", str(wrong))
    for name, time in (("startTime", terms.start), ("endTime", terms.end)):
        section.check(name, "" if 0 <= time < _LAST_TIME else "Set a time from 1970 to 2199.")
    if terms.end_time is not None and terms.end <= max(now, terms.start):
        section.fault("endTime", "Set a time in the future and after the start time.")
    for name in ("maxRunCount", "maxConcurrentRunCount", "maxConcurrentActiveRunCount"):
        is_required = name == "maxConcurrentRunCount"
        section.check(name, "Set at least 1." if section.integer(name) < is_required else "")
    return terms


def read_pipeline(
    section: Section, services: Services, parent: LocationName, component_faults: ComponentFault
) -> tuple[str, dict[str, Any]]:
    """Return the createPipelineJobRequest of a schedule without its compiled pipeline as JSON text, and the
    compiled pipeline. Errors are added to the section's faults. May be called in a thread."""
    if section.has(_NOTEBOOK):
        section.fault(_NOTEBOOK, "Notebooks cannot be scheduled. Schedule a pipeline that runs it.")
    if not section.has(_REQUEST):
        section.fault(_REQUEST, "Set the pipeline job to create.")
        return "", {}
    request = section.section(_REQUEST)
    if request.text("parent") != str(parent):
        request.fault("parent", f"Set the parent of the schedule: {parent}.")
    public = request.values.get("pipelineJob", {})
    # The IDs of runs end with their times.
    job_id = request.has("pipelineJobId") * f"{request.text('pipelineJobId')}-20260101000000"
    try:
        requested = check_public(services, parent.project_id, public, job_id, component_faults)
        check_labels(services, requested.labels)
    except InvalidRequest as invalid:
        for fault in invalid.violations:
            job = "" if fault.field == "pipeline_job_id" else "pipeline_job."
            request.faults.add(f"{request.path}.{job}{fault.field}", fault.description)
    without_spec = {key: value for key, value in public.items() if key != "pipelineSpec"}
    text = compact_json({**request.values, "pipelineJob": without_spec}, ())
    return text, public.get("pipelineSpec", {})


def view(schedule: Schedule, spec: Mapping[str, Any]) -> Message:
    """Return the public message of a schedule with its compiled pipeline."""
    request, terms = json.loads(schedule.request_json), schedule.terms
    request["pipelineJob"]["pipelineSpec"] = spec
    public = {**msgspec.to_builtins(terms), _REQUEST: request}
    message: Any = wire_json.from_public(f"{V1}.Schedule", public)
    message.name, message.state = str(schedule.name), schedule.state.value
    message.started_run_count, message.catch_up = schedule.started_runs, schedule.catch_up
    times = {name: time_of(schedule) for name, time_of in _TIMES.items()}
    times |= {"last_pause_time": schedule.paused, "last_resume_time": schedule.resumed}
    for name, time in times.items():
        set_micros(getattr(message, name), time)
    if (response := schedule.response) is not None:
        set_micros(message.last_scheduled_run_response.scheduled_run_time, response.run)
        message.last_scheduled_run_response.run_response = response.text
    return message


_TEXTS: Final[Mapping[str, Callable[[Schedule], str]]] = {
    "display_name": lambda schedule: schedule.terms.display_name,
    "state": lambda schedule: schedule.state,
    snake_case(_REQUEST): lambda schedule: schedule.request_json,
}
_TIMES: Final[Mapping[str, Callable[[Schedule], Nanos]]] = {
    "create_time": lambda schedule: schedule.created,
    "update_time": lambda schedule: schedule.updated,
    "start_time": lambda schedule: schedule.terms.start or schedule.created,
    "end_time": lambda schedule: schedule.terms.end,
    "next_run_time": lambda schedule: schedule.next_run or 0,
}
_LISTING: Final = Listing[Schedule]("schedules", _TEXTS, {**_TEXTS, **_TIMES})


def _compile_test(leaf: Comparison | Term) -> Callable[[Schedule], bool]:
    field = snake_case(leaf.name)
    if isinstance(leaf, Comparison) and (text_of := _TEXTS.get(field)):
        has_text = text_test(leaf)
        return lambda schedule: has_text(text_of(schedule))
    if isinstance(leaf, Comparison) and (time_of := _TIMES.get(field)):
        has_time = time_test(leaf)
        return lambda schedule: has_time(time_of(schedule) // 1000 * 1000)
    fields = ", ".join((*_TEXTS, *_TIMES))
    raise FilterError(f"schedules cannot be filtered by {leaf.name!r}. Use one of: {fields}")


class ScheduleMethods(ScheduleLoop):
    """The loop of schedules, and the methods of ScheduleService."""

    async def create(self, call: Call, request: Any) -> Message:
        services, parent, now = call.services, known_location(request.parent), call.services.now()
        section = Section(public_field(call, request, FIELD), FIELD, Faults())
        terms, faults = read_terms(section, now), self.component_faults
        text, spec = await asyncio.to_thread(read_pipeline, section, services, parent, faults)
        section.faults.refuse()
        uid, author = services.new_uid(), _author(call, parent.project_id, text)
        name = ScheduleName(parent.project_id, parent.location, str(uid))
        schedule = Schedule(name, uid, terms, text, author, now, now)
        return await self._store(records.change(schedule, now), spec)

    async def get(self, call: Call, request: Any) -> Message:
        return await self._view(await self.schedules.get(ScheduleName.parse(request.name)))

    async def list(self, call: Call, request: Any) -> Message:
        """List schedules. Default order: newest first."""
        passes = compile_filter(request.filter, _compile_test)
        schedules = await self.schedules.list(of_location(request.parent))
        page, token = await _LISTING.page_of(schedules, request, request.parent, passes)
        specs = [await self.runs.listed_spec(schedule.uid) or {} for schedule in page]
        parts = zip(page, specs, strict=True)
        views = [await asyncio.to_thread(view, schedule, spec) for schedule, spec in parts]
        return list_response("List", "Schedules", views, token)

    async def update(self, call: Call, request: Any) -> Message:
        """Change a schedule. Its later runs have the rights of the caller. Runs that are due are skipped."""
        services, now, faults = call.services, call.services.now(), Faults()
        name = ScheduleName.parse(request.schedule.name, of="schedule.name")
        fields = read_update_mask(request.update_mask.paths, _UPDATABLE)
        if not request.update_mask.paths:
            faults.add("update_mask", f"Set the fields to update: {', '.join(_UPDATABLE)}.")
        new = public_field(call, request, FIELD)
        async with self.lock:
            old = await self.schedules.get(name)
            public: dict[str, Any] = msgspec.to_builtins(old.terms)
            for field in fields or _UPDATABLE:
                key = camel_case(field)
                if key in new or key == "allowQueueing":
                    public[key] = new.get(key, False)
                elif fields and (key in public or key == _REQUEST):
                    faults.add(f"{FIELD}.{field}", "The field cannot be removed. Set a value.")
            section = Section(public, FIELD, faults)
            terms, text, spec = read_terms(section, now), old.request_json, None
            if _REQUEST in public:
                parts = section, services, name.parent, self.component_faults
                text, spec = await asyncio.to_thread(read_pipeline, *parts)
            faults.refuse()
            author = _author(call, name.project_id, text)
            changed = replace(old, terms=terms, request_json=text, author=author)
            return await self._store(records.change(changed, now), spec)

    async def pause(self, call: Call, request: Any) -> Message:
        """Pause a schedule. Runs that have started continue."""
        async with self.lock:
            schedule = await self.schedules.get(ScheduleName.parse(request.name))
            await self._store(records.pause(schedule, call.services.now()))
        return pool.message("google.protobuf.Empty")

    async def resume(self, call: Call, request: Any) -> Message:
        """Resume a paused schedule. Its later runs have the rights of the caller."""
        async with self.lock:
            old = await self.schedules.get(ScheduleName.parse(request.name))
            resumed = records.resume(old, call.services.now(), catch_up=request.catch_up)
            author = _author(call, old.name.project_id, old.request_json)
            await self._store(replace(resumed, author=author))
        return pool.message("google.protobuf.Empty")

    async def delete(self, call: Call, request: Any) -> Message:
        """Delete a schedule. Its pipeline jobs remain."""
        done = finished_operation(call.services, OperationKind.DELETE, request.name)
        async with self.lock:
            await self.schedules.delete(ScheduleName.parse(request.name), done)
        return operations.finished_view(done)

    async def _view(self, schedule: Schedule) -> Message:
        return await asyncio.to_thread(view, schedule, await self.runs.spec(schedule.uid))

    async def _store(self, schedule: Schedule, spec: dict[str, Any] | None = None) -> Message:
        """Store a schedule, with its compiled pipeline if it has changed. Return its message."""
        await self.schedules.store(schedule, spec)
        self.wake()
        return await self._view(schedule)

    def handlers(self) -> Handlers:
        methods = {"Create": self.create, "Get": self.get, "Update": self.update, "List": self.list}
        methods |= {"Pause": self.pause, "Resume": self.resume, "Delete": self.delete}
        service = f"{V1}.ScheduleService"
        return {f"{service}.{verb}Schedule{'s' * (verb == 'List')}": methods[verb] for verb in methods}


def _author(call: Call, project: str, request_json: str) -> Author:
    """Return the caller as the author of a schedule. Raises PermissionDenied if the caller may not create its
    pipeline jobs."""
    services, principal = call.services, call.principal
    require_rights(services, principal, project, json.loads(request_json))
    origin = services.access.origin_of(principal)
    return Author(principal.email, origin.groups if origin is not None else (), services.now())
