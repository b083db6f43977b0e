"""The tools of AI agents. Each tool calls methods of the API with the caller's permissions, and shortens the
responses."""

import asyncio
import json
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.core.copies import collection_of
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import Api, JobUid
from trainshed.wire.trainshed_v1.record import to_builtins
from trainshed_console.in_process import InProcessCaller

KEY_LABEL: Final = "trainshed-idempotency-key"
_MAX_LINES: Final = 40
MAX_CHARACTERS: Final = 6_000
"""Maximum characters of a tool's result: about 1,500 tokens."""
_MAX_LINE_CHARACTERS: Final = MAX_CHARACTERS - 500
"""Maximum characters of the log lines in a tool's result."""
_MAX_JOBS: Final = 10
"""Maximum number of jobs in one comparison. tools.toml contains the same limit."""
_WAIT_TIMEOUT: Final = 50.0
"""Maximum seconds to wait for a job. tools.toml contains the same limit. Clients abort a call after a minute.
"""
_FINAL_STATES: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_SUMMARY_FIELDS: Final = (
    *("jobId", "displayName", "project", "kind", "state", "user", "createTime", "startTime"),
    *("endTime", "labels", "machines", "accelerators"),
)


class CallerApi(Struct, frozen=True):
    """The API, called with the permissions of one caller."""

    caller: InProcessCaller
    principal: Principal
    #: The default project and region.
    project: str
    region: str
    #: Held while a job with an idempotency key is searched and submitted.
    submitting: asyncio.Lock

    async def ask(
        self, verb: str, path: str, query: Mapping[str, Any] | None = None, **body: Any
    ) -> dict[str, Any]:
        """Call a method of `/trainshed/v1`. Empty query parameters are omitted. Raises CallRejected."""
        texts = {key: [str(value)] for key, value in (query or {}).items() if value not in ("", None)}
        answer = await self.caller.ask(self.principal, verb, path, texts, body)
        members: dict[str, Any] = to_builtins(answer)
        return members


class Arguments(Struct, frozen=True):
    """The arguments of all tools."""

    #: The ID or full name of a job, or the body of a new job.
    job: str | dict[str, Any] = ""
    jobs: tuple[str, ...] = ()
    project: str = ""
    location: str = ""
    dry_run: bool = False
    idempotency_key: str = ""
    state: str = ""
    search: str = ""
    user: str = ""
    severity: str = ""
    replica: str = ""
    before: str = ""
    by: str = ""
    since: str = ""


Call = Callable[[CallerApi, Arguments], Awaitable[Any]]


class Tool(Struct, frozen=True, kw_only=True):
    """The description of a tool (tools.toml)."""

    name: str
    description: str
    call: Call
    #: JSON schema of each argument, by name.
    arguments: Mapping[str, Mapping[str, Any]] = {}
    required: Sequence[str] = ()
    #: Whether the tool is read-only.
    reads: bool = True

    @property
    def public(self) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": self.arguments,
            "required": list(self.required),
            "additionalProperties": False,
        }
        hints = {"readOnlyHint": self.reads, "destructiveHint": not self.reads}
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": schema,
            "annotations": hints,
        }


async def _submit(api: CallerApi, arguments: Arguments) -> Any:
    if not isinstance(job := arguments.job, dict):
        raise InvalidRequest((Violation("job", "Set it to an object with the fields of a job."),))
    project, location = arguments.project or api.project, arguments.location or api.region
    if arguments.dry_run:
        return await api.ask(
            "POST", "jobs:explain", api="vertex", project=project, location=location, job=job
        )
    key, path = arguments.idempotency_key, collection_of(Api.VERTEX, job, project, location)
    labels: Any = job.get("labels") or {}
    if not key or not isinstance(labels, dict):
        return await _create(api, path, job)
    async with api.submitting:
        # The query contains the name as well, because the cost of a search by name does not depend on the
        # number of jobs.
        query = {"displayName": job.get("displayName"), "label": f"{KEY_LABEL}={key}", "limit": 1}
        if jobs := (await api.ask("GET", "jobs", {**query, "project": project}))["jobs"]:
            return {"name": jobs[0]["name"], "state": jobs[0]["state"], "was_there": True}
        return await _create(api, path, {**job, "labels": {**labels, KEY_LABEL: key}})


async def _create(api: CallerApi, path: str, job: Mapping[str, Any]) -> Any:
    created = await api.caller.call(api.principal, "POST", path, json.dumps(job).encode())
    return {"name": created["name"], "state": created["state"].removeprefix("JOB_STATE_")}


async def _list(api: CallerApi, arguments: Arguments) -> Any:
    query = {"state": arguments.state, "search": arguments.search, "user": arguments.user, "limit": 20}
    answer = await api.ask("GET", "jobs", {**query, "project": arguments.project or api.project})
    return [_brief(job) for job in answer["jobs"]]


async def _describe(api: CallerApi, arguments: Arguments) -> Any:
    return _full(await _job(api, arguments))


async def _wait(api: CallerApi, arguments: Arguments) -> Any:
    job = await _job(api, arguments)
    deadline = asyncio.get_running_loop().time() + _WAIT_TIMEOUT
    notices = api.caller.notices
    uid = JobUid(int(job["uid"]))
    while True:
        # Read the counter before the state, so that no notification between the two reads is lost.
        count = notices.count(uid)
        job = await api.ask("GET", _path(job["name"]))
        remaining = deadline - asyncio.get_running_loop().time()
        if (
            job["state"] in _FINAL_STATES
            or remaining <= 0
            or not await notices.wait_beyond(uid, count, remaining)
        ):
            return _full(job)


async def _why_failed(api: CallerApi, arguments: Arguments) -> Any:
    job = await _job(api, arguments)
    failure = job.get("failure")
    if not failure:
        return {"state": job["state"], "failure": "The job has not failed."}
    facts = {name: failure[name] for name in ("reason", "cause", "rule", "replica", "status")}
    return {"state": job["state"], **facts, "last_lines": failure["tail"]}


async def _logs(api: CallerApi, arguments: Arguments) -> Any:
    query = {"search": arguments.search, "severity": arguments.severity, "replica": arguments.replica}
    job = await _job(api, arguments)
    path = f"{_path(job['name'])}/logPage"
    page = await api.ask("GET", path, {**query, "before": arguments.before, "limit": _MAX_LINES})
    lines: list[str] = []
    before, room = page["earlier"], _MAX_LINE_CHARACTERS
    # Newest first. Lines beyond the limit are returned by the next call.
    for line in page["lines"][::-1]:
        text = f"{line['at'][:19]} {line['task']} {line['message']}"
        room -= len(json.dumps(text, ensure_ascii=False)) + 2
        if lines and room < 0:
            return {"before": before, "lines": lines}
        lines.append(text)
        before = line["place"]
    return {"before": page["earlier"], "lines": lines}


async def _timeline(api: CallerApi, arguments: Arguments) -> Any:
    job = await _job(api, arguments)
    answer = await api.ask("GET", f"{_path(job['name'])}/timeline")
    return [f"{entry['at'][:19]} {entry['message']}" for entry in answer["entries"][::-1]]


async def _cancel(api: CallerApi, arguments: Arguments) -> Any:
    job = await _job(api, arguments)
    await api.ask("POST", f"{_path(job['name'])}:cancel")
    return {"name": job["name"], "cancel": "accepted"}


async def _compare(api: CallerApi, arguments: Arguments) -> Any:
    if not 2 <= len(arguments.jobs) <= _MAX_JOBS:
        raise InvalidRequest((Violation("jobs", f"Pass a list of 2 to {_MAX_JOBS} jobs."),))
    compared: list[dict[str, Any]] = []
    for path in map(_path, arguments.jobs):
        job = await api.ask("GET", path)
        curves = await api.ask("GET", f"{path}/curves", {"points": "1"})
        last = {
            "/".join(filter(None, (curve["run"], curve["tag"]))): curve["points"][-1]["value"]
            for curve in curves["curves"]
            if curve["points"]
        }
        if search := job.get("tuning"):
            # Only the trials of a tuning job have curves. Report the best value of all trials instead.
            last = {search["metric"]: search.get("bestValue")}
        compared.append({**_brief(job), "last_values": last})
    return compared


async def _usage(api: CallerApi, arguments: Arguments) -> Any:
    query = {"project": arguments.project or api.project, "by": arguments.by, "since": arguments.since}
    return await api.ask("GET", "usage", query)


async def _quotas(api: CallerApi, arguments: Arguments) -> Any:
    return await api.ask("GET", "quotas", {"project": arguments.project or api.project})


async def _status(api: CallerApi, arguments: Arguments) -> Any:
    answer = await api.ask("GET", "status")
    return {name: answer[name] for name in ("version", "principal", "project", "region", "bucket")}


async def _job(api: CallerApi, arguments: Arguments) -> dict[str, Any]:
    if not isinstance(arguments.job, str) or not arguments.job:
        text = "Set it to the job's ID or to projects/…/customJobs/ID."
        raise InvalidRequest((Violation("job", text),))
    return await api.ask("GET", _path(arguments.job))


def _path(job: str) -> str:
    return f"jobs/{quote(job, safe='')}"


def _brief(job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in _SUMMARY_FIELDS if job.get(name)}


def _full(job: Mapping[str, Any]) -> dict[str, Any]:
    failure: dict[str, Any] = job.get("failure") or {}
    more: dict[str, Any] = {
        "waits": job.get("waits"),
        "reason": failure.get("reason"),
        "progress": job.get("progress"),
        "tuning": job.get("tuning"),
    }
    return _brief(job) | {name: value for name, value in more.items() if value}


_CALLS: Final[Mapping[str, Call]] = {
    "submit_job": _submit,
    "list_jobs": _list,
    "describe_job": _describe,
    "wait_for_job": _wait,
    "why_failed": _why_failed,
    "job_logs": _logs,
    "job_timeline": _timeline,
    "cancel_job": _cancel,
    "compare_jobs": _compare,
    "usage": _usage,
    "quotas": _quotas,
    "service_status": _status,
}
TOOLS: Final = tuple(
    Tool(call=_CALLS[row["name"]], **row)
    for row in tomllib.loads(Path(__file__).with_name("tools.toml").read_text("utf-8"))["tool"]
)
BY_NAME: Final = {tool.name: tool for tool in TOOLS}
