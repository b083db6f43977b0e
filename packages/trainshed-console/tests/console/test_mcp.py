"""The Model Context Protocol server (revision 2026-07-28): tools, authorization and malicious input."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, START, Answer, ApiService
from tests.contract.api.test_access import audit, token_of
from tests.contract.api.test_trainshed_tuning import start_trials
from tests.people import add_user
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_tuning import tuning_job
from trainshed.access.permissions import ROLES
from trainshed.access.policy import Grant
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import JobState
from trainshed_console.in_process import InProcessCaller
from trainshed_console.mcp.protocol import McpSurface
from trainshed_console.mcp.tools import BY_NAME, MAX_CHARACTERS, TOOLS

VERSION = "2026-07-28"
OTHERS = LOCATION.replace("p1", "p2")
ANA = "ana@corp.example"
SEE = "trainshed.jobs.get"
NEEDS: dict[str, set[str]] = {
    "service_status": set(),
    **{key: {SEE} for key in ("describe_job", "wait_for_job", "why_failed", "job_timeline")},
    "compare_jobs": {SEE},
    "submit_job": {"aiplatform.customJobs.create"},
    "list_jobs": {"trainshed.jobs.list"},
    "job_logs": {SEE, "trainshed.jobs.readLogs"},
    "cancel_job": {SEE, "trainshed.jobs.cancel"},
    "usage": {"trainshed.quotas.get"},
    "quotas": {"trainshed.quotas.get"},
}
"""Required permissions of each tool."""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[ApiService]:
    service = ApiService(tmp_path)
    caller = InProcessCaller(service.services, service.registry)
    surface = McpSurface(service.services.settings, service.issuers.authenticate, caller)
    service.app = service.application({"mcp": surface})
    yield service
    service.close()


async def send(
    service: ApiService, method: str, token: str | None = "", version: str = VERSION, **params: Any
) -> Answer:
    meta = {"io.modelcontextprotocol/protocolVersion": version}
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}
    headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method)]
    headers += [("Mcp-Name", str(params["name"]))] if "name" in params else []
    return await service.call("POST", "/mcp", body, token=token, headers=headers)


async def call_tool(service: ApiService, name: str, token: str = "", **arguments: Any) -> Any:
    """Return the response of a tool. An error is a text that starts with "refused: "."""
    answer = await send(service, "tools/call", token, name=name, arguments=arguments)
    assert answer.status == 200, answer.body
    result = answer.json["result"]
    assert result["resultType"] == "complete"
    [content] = result["content"]
    assert len(content["text"]) <= MAX_CHARACTERS
    return f"refused: {content['text']}" if result["isError"] else json.loads(content["text"])


async def test_mcp_client_discovers_the_server_and_its_tools(service: ApiService) -> None:
    discovery = (await send(service, "server/discover")).json["result"]
    assert discovery["supportedVersions"] == [VERSION] and "tools" in discovery["capabilities"]
    listed = (await send(service, "tools/list")).json["result"]["tools"]
    assert [call_tool["name"] for call_tool in listed] == [call_tool.name for call_tool in TOOLS]
    assert len(listed) <= 20
    changing = {call_tool["name"] for call_tool in listed if not call_tool["annotations"]["readOnlyHint"]}
    assert changing == {"submit_job", "cancel_job"}


async def test_mcp_tools_can_check_and_submit_a_job_and_show_its_failure_reason(service: ApiService) -> None:
    wrong = {**custom_job(), "displayName": ""}
    assert "display_name" in await call_tool(
        service, "submit_job", location="us-central1", job=wrong, project="p1", dry_run=True
    )
    arguments: dict[str, Any] = {"job": custom_job(), "project": "p1", "location": "us-central1"}
    explained = await call_tool(service, "submit_job", **arguments, dry_run=True)
    assert explained["admitted"] is True
    assert await call_tool(service, "list_jobs", project="p1") == []
    calls = [call_tool(service, "submit_job", **arguments, idempotency_key="nightly-7") for _ in range(3)]
    made = await asyncio.gather(*calls)
    assert len({(job["name"], job["state"]) for job in made}) == 1
    assert [job.get("was_there", False) for job in made].count(False) == 1
    name = made[0]["name"]
    assert (await call_tool(service, "describe_job", job=name))["state"] == "QUEUED"
    assert (await call_tool(service, "why_failed", job=name))["failure"] == "The job has not failed."
    error = JobError(3, "The replica exited.", cause="exited", reason="ValueError: no data")
    await service.update_job(name, state=JobState.FAILED, error=error)
    assert (await call_tool(service, "why_failed", job=name))["reason"] == "ValueError: no data"
    assert (await call_tool(service, "wait_for_job", job=name))["state"] == "FAILED"
    assert "refused" in await call_tool(service, "cancel_job", job=name)
    bare: Any = {**arguments, "job": {**custom_job(), "labels": None}, "idempotency_key": "bare"}
    await call_tool(service, "submit_job", **bare)
    assert (await call_tool(service, "submit_job", **bare))["was_there"]
    odd: Any = {**arguments, "job": {**custom_job(), "labels": [1]}, "idempotency_key": "odd"}
    assert "refused" in await call_tool(service, "submit_job", **odd)
    assert (await call_tool(service, "job_logs", job=name))["lines"] == []
    assert "created" in (await call_tool(service, "job_timeline", job=name))[-1]
    assert "Pass a list of 2 to 10 jobs" in await call_tool(service, "compare_jobs", jobs=[name])
    compared = await call_tool(service, "compare_jobs", jobs=[name, name])
    assert [job["last_values"] for job in compared] == [{}, {}]
    arguments["job"] = tuning_job()
    search = (await call_tool(service, "submit_job", **arguments))["name"]
    assert (await call_tool(service, "describe_job", job=search))["tuning"]["running"] == 0
    for uid, name in zip((71, 72), await start_trials(service, search, 71, 72), strict=True):
        await service.run(name)
        service.write_log(uid, "workerpool0-0", (START, f"loss: {uid} - val_loss: 1"))
    compared = await call_tool(service, "compare_jobs", jobs=[search, name])
    assert compared[0]["last_values"] == {
        "loss": None
    }  # The value of the best trial, which does not exist yet.
    assert compared[1]["last_values"] == {"loss": 72, "validation/loss": 1}


async def test_mcp_wait_for_job_returns_when_the_job_ends(service: ApiService) -> None:
    name = (await service.result("POST", f"{LOCATION}/customJobs", custom_job()))["name"]
    waiting = asyncio.create_task(call_tool(service, "wait_for_job", job=name))
    await asyncio.sleep(0)
    await service.update_job(name, state=JobState.SUCCEEDED)
    service.notices.publish(service.woken[0])
    assert (await asyncio.wait_for(waiting, 60))["state"] == "SUCCEEDED"


async def test_permission_table_decides_every_mcp_tool_call(service: ApiService) -> None:
    """The test calls each tool with each role, in the user's project and in another project."""
    assert NEEDS.keys() == BY_NAME.keys()
    token, names = add_user(service.tokens, ANA, project="p1"), dict[str, str]()
    for project, place in (("p1", LOCATION), ("p2", OTHERS)):
        names[project] = (await service.result("POST", f"{place}/customJobs", custom_job()))["name"]
        await service.update_job(names[project], state=JobState.SUCCEEDED)
    wrong: list[object] = []
    for role, project, name in product(ROLES, names, NEEDS):
        grant = Grant("p1", role, f"user:{ANA}")
        service.tokens.replace(service.tokens.book.with_grants("p1", {grant}))
        job, own = names[project], {"project": project}
        arguments: dict[str, Any] = {
            "submit_job": {"job": custom_job(), "location": "us-central1", **own},
            "compare_jobs": {"jobs": [job, job]},
            "service_status": {},
            **dict.fromkeys(("list_jobs", "usage", "quotas"), own),
        }.get(name, {"job": job})
        answer = str(await call_tool(service, name, token, **arguments))
        is_let = not (answer.startswith("refused: ") and "permission" in answer)
        if is_let != (not NEEDS[name] or (ROLES[role] >= NEEDS[name] and project == "p1")):
            wrong.append((role, project, name, answer))
    assert wrong == []


async def test_mcp_client_has_the_permissions_of_its_token_and_is_audited(service: ApiService) -> None:
    ana = (await token_of(service))["token"]
    arguments: dict[str, Any] = {"job": custom_job(), "location": "us-central1"}
    assert "refused" in await call_tool(service, "quotas", ana, project="p2")
    made = await call_tool(service, "submit_job", ana, **arguments, project="p1")
    await call_tool(service, "cancel_job", ana, job=made["name"])
    methods = [entry["method"].rpartition(".")[2] for entry in await audit(service, "?project=p1")]
    assert methods[-2:] == ["CreateCustomJob", "Cancel"]
    assert (await send(service, "tools/list", None)).status == 401
    assert (await send(service, "tools/list", "not a token")).status == 401


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 100_000, -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', -32700),
        (b"[]", -32600),
        (b'"text"', -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "tools/list"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []}', -32600),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', -32020),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_meta": 7}}', -32020),
    ],
)
async def test_malformed_mcp_request_is_rejected_with_its_error_code(
    service: ApiService, body: bytes, code: int
) -> None:
    answer = await service.call("POST", "/mcp", body)
    assert (answer.status, answer.json["error"]["code"]) == (400, code)


async def test_mcp_rejects_protocol_errors_and_path_traversal(service: ApiService) -> None:
    old = await send(service, "initialize", version="2025-11-25")
    assert old.json["error"]["data"] == {"supported": [VERSION], "requested": "2025-11-25"}
    assert (old.status, old.json["error"]["code"]) == (400, -32022)
    unknown = await send(service, "resources/list")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, -32601)
    odd: list[Any] = [{"name": "rm"}, {"name": ["list_jobs"]}, {"name": "list_jobs", "arguments": []}]
    for params in odd:
        answer = await send(service, "tools/call", **params)
        assert answer.json["error"]["code"] in (-32602, -32020)
    notification = await service.call("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/x"})
    assert (notification.status, notification.body) == (202, b"")
    assert (await service.call("GET", "/mcp")).status == 405
    assert "Unknown field" in await call_tool(service, "list_jobs", projcet="p1")
    assert "got `int`" in await call_tool(service, "describe_job", job=7)
    for job in ("../../status", "jobs/1:cancel", "1?x=y", "", "\u0000", "x" * 5000):
        assert "refused" in await call_tool(service, "describe_job", job=job)


async def test_mcp_name_header_must_match_the_body(service: ApiService) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": VERSION}
    params = {"name": "list_jobs", "arguments": {"project": "p1"}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params}
    encoded = f"=?base64?{base64.b64encode(b'list_jobs').decode()}?="
    for name, status in ((encoded, 200), ("cancel_job", 400), ("=?base64?!?=", 400)):
        headers = [("MCP-Protocol-Version", VERSION), ("Mcp-Method", "tools/call")]
        headers.append(("Mcp-Name", name))
        assert (await service.call("POST", "/mcp", body, headers=headers)).status == status


async def test_mcp_rejects_csrf_and_dns_rebinding(service: ApiService) -> None:
    for header in (("Origin", "https://evil.example"), ("Host", "evil.example")):
        answer = await service.call("POST", "/mcp", {"jsonrpc": "2.0"}, headers=[header])
        assert answer.status in (403, 421)


async def test_mcp_responses_escape_invisible_and_control_characters(service: ApiService) -> None:
    """Bidirectional, invisible and terminal control characters are escaped (prompt injection)."""
    name = (await service.result("POST", f"{LOCATION}/customJobs", custom_job()))["name"]
    hidden = "\u202e\U000e0041\ufe0f\U000e0100\u034f\u115f\u3164\u17b4\u180b\u2800\uffa0"
    reason = f"caf\u00e9\n\x1b[2J\x9b{hidden}"
    await service.update_job(name, state=JobState.FAILED, error=JobError(3, "Over.", reason=reason))
    answer = await send(service, "tools/call", name="why_failed", arguments={"job": name})
    text = answer.json["result"]["content"][0]["text"]
    assert text.isprintable() and "caf\u00e9" in text
    assert not set(hidden) & set(text) and "\\ufe0f" in text
    assert json.loads(text)["reason"] == reason
    assert (await call_tool(service, "describe_job", job="\u202e")).replace("\n", "").isprintable()


async def test_long_mcp_responses_are_paged(service: ApiService) -> None:
    name = (await service.result("POST", f"{LOCATION}/customJobs", custom_job()))["name"]
    longest = (60, "line 60 " + "x" * 2 * MAX_CHARACTERS)
    lines = [(n, f"line {n} {'x' * 300}") for n in range(60)]
    service.write_log(1000, "workerpool0-0", *lines, longest)
    await service.update_job(name, state=JobState.SUCCEEDED)
    answer = await send(service, "tools/call", name="job_logs", arguments={"job": name})
    text = answer.json["result"]["content"][0]["text"]
    assert len(text) == MAX_CHARACTERS and text.endswith("more characters; request less)")
    before, numbers = json.loads(text.partition(",")[0] + "}")["before"], list[str]()
    while before:
        page = await call_tool(service, "job_logs", job=name, before=before)
        numbers += [line.split()[3] for line in page["lines"]]
        before = page["before"]
    assert numbers == [str(n) for n in reversed(range(60))]
