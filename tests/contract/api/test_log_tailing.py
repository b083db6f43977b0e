"""Logging v2 `TailLogEntries` over gRPC and real log files (facts/packaging#tail)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, START, ApiService
from tests.contract.api.grpc_service import GrpcApiService, status_of, violations_of
from tests.contract.api.test_api_logging import end
from tests.contract.api.test_grpc import grpc
from tests.contract.api.test_ml_tuning import create_job, record, store_trials
from tests.people import add_user
from tests.unit.specs_requests import custom_job, pool
from trainshed.api.logging_v2 import tail
from trainshed.core.names import JobUid
from trainshed.wire import json as wire_json
from trainshed.wire import pool as messages

METHOD = "/google.logging.v2.LoggingServiceV2/TailLogEntries"
REPLICA, OTHER = "workerpool0-0", "workerpool1-0"
AT_ONCE = {"bufferWindow": "0s"}
LINES = 'textPayload:line OR textPayload:"Job is" OR textPayload:completed'


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[GrpcApiService]:
    async with GrpcApiService(tmp_path).open() as opened:
        yield opened
    # gRPC leaves the responses of a cancelled call to the event loop, which closes them soon afterwards.
    await until(lambda: not +tail.sessions)


class Session:
    """A session whose client has sent its request and closed its side."""

    def __init__(self, service: GrpcApiService, project: str, token: str, **request: Any) -> None:
        body = {"resourceNames": [f"projects/{project}"], **request}
        message = wire_json.from_public("google.logging.v2.TailLogEntriesRequest", body)
        metadata = (("authorization", f"Bearer {token or service.token}"),)
        stream = service.channel.stream_stream(METHOD)
        self.call = stream(iter([message.SerializeToString()]), metadata=metadata)
        self._entries: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        """Return the next entry."""
        while not self._entries:
            response = await self.call.read()
            assert response is not grpc.aio.EOF
            read = messages.message_class("google.logging.v2.TailLogEntriesResponse")
            self._entries = wire_json.to_public(read.FromString(response))["entries"]
        return self._entries.pop(0)

    async def texts(self, number: int) -> list[str]:
        return [(await self.next())["textPayload"] for _ in range(number)]

    async def failure(self) -> Any:
        """Return the error that ends the session."""
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await self.call.read()
        return failure.value


async def start_session(
    service: GrpcApiService, project: str = "p1", token: str = "", **request: Any
) -> Session:
    """Return a session that receives all lines written from now on."""
    before = tail.sessions[project]
    session = Session(service, project, token, **request)
    await until(lambda: tail.sessions[project] > before)
    return session


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_true():  # noqa: ASYNC110 - no event marks the start and the end of a session
            await asyncio.sleep(0.001)


async def job(service: GrpcApiService) -> None:
    await service.result("POST", f"{LOCATION}/customJobs", custom_job(pool(), pool()))


async def test_log_tail_returns_new_entries_immediately(service: GrpcApiService) -> None:
    await job(service)
    service.write_log(1000, REPLICA, (START - 1, "before the session"))
    session = await start_session(service, filter=LINES, **AT_ONCE)
    service.write_log(1000, REPLICA, (START + 1, "line 1"), (START + 2, "x"), (START + 3, "line 2"))
    assert await session.texts(2) == ["line 1", "line 2"]
    service.write_log(1000, REPLICA, (START + 4, "line 3"))
    entry = await session.next()
    assert entry["textPayload"] == "line 3"
    assert entry["resource"]["labels"]["task_name"] == REPLICA
    await end(service)
    service.notices.publish(JobUid(1000))
    expected = ["Job is preparing.", "Job is running.", "Job completed successfully."]
    assert await session.texts(3) == expected
    session.call.cancel()


async def test_tail_orders_late_entries_within_the_buffer_window(service: GrpcApiService) -> None:
    await job(service)
    only = f'resource.labels.task_name="{REPLICA}" OR resource.labels.task_name="{OTHER}"'
    session = await start_session(service, filter=only, bufferWindow="0.2s")
    service.write_log(1000, REPLICA, (START + 5, "later"))
    service.write_log(1000, OTHER, (START + 1, "earlier"))
    assert await session.texts(2) == ["earlier", "later"]
    session.call.cancel()


async def test_full_tail_buffer_is_returned_before_its_window_ends(
    service: GrpcApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MAX_BUFFER", 5)
    monkeypatch.setattr(tail, "_CHUNK_SIZE", 2)
    await job(service)
    session = await start_session(service, filter="textPayload:line", bufferWindow="60s")
    service.write_log(1000, REPLICA, *((START + n, f"line {n}") for n in range(20)))
    assert await session.texts(16) == [f"line {n}" for n in range(16)]
    session.call.cancel()


async def test_tail_returns_only_lines_of_selected_projects_and_jobs(service: GrpcApiService) -> None:
    await job(service)
    path = LOCATION.replace("/p1/", "/p2/")
    await service.result("POST", f"{path}/customJobs", custom_job(pool(), pool()))
    await job(service)
    only = 'resource.labels.job_id="1002" AND textPayload:line'
    session = await start_session(service, filter=only, **AT_ONCE)
    for uid in (1000, 1001, 1002):
        service.write_log(uid, REPLICA, (START + 1, f"line of {uid}"))
    assert await session.texts(1) == ["line of 1002"]
    everything = await start_session(service, filter="textPayload:line", **AT_ONCE)
    for uid in (1000, 1001, 1002):
        service.write_log(uid, REPLICA, (START + 2, f"line of {uid}"))
    assert sorted(await everything.texts(4)) == ["line of 1000"] * 2 + ["line of 1002"] * 2
    for open_session in (session, everything):
        open_session.call.cancel()


async def test_tailed_lines_of_trials_belong_to_their_tuning_job(service: GrpcApiService) -> None:
    await create_job(service)
    await store_trials(service)
    uid = (await record(service)).uid + 6
    session = await start_session(service, filter="textPayload:line", **AT_ONCE)
    trial = await start_session(service, filter='resource.labels.job_id="census.6"', **AT_ONCE)
    service.write_log(uid, REPLICA, (START + 1, "line"))
    entry = await session.next()
    assert entry["resource"]["labels"]["job_id"] == "census"
    assert entry["labels"]["ml.googleapis.com/trial_id"] == "6"
    assert (await trial.next())["resource"]["labels"]["job_id"] == "census.6"
    session.call.cancel()
    trial.call.cancel()


async def test_tail_session_ends_when_its_caller_loses_permission(service: GrpcApiService) -> None:
    made = await service.result("POST", "/trainshed/v1/tokens", {"email": "ana@corp.example"})
    add_user(service.tokens, "ana@corp.example", project="p1")
    session = await start_session(service, token=made["token"])
    await service.result("DELETE", f"/trainshed/v1/tokens/{made['id']}")
    assert (await session.failure()).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_stopping_service_ends_tail_sessions(service: GrpcApiService) -> None:
    session = await start_session(service)
    service.services.closing.set()
    assert (await session.failure()).code() is grpc.StatusCode.UNAVAILABLE


async def test_number_of_tail_sessions_per_project_is_limited(
    service: GrpcApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MAX_SESSIONS", 1)
    first = await start_session(service)
    refused = await Session(service, "p1", "").failure()
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    first.call.cancel()
    await until(lambda: not +tail.sessions)
    (await start_session(service)).call.cancel()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"bufferWindow": "61s"}, "buffer_window"),
        ({"bufferWindow": "-1s"}, "buffer_window"),
        ({"filter": 'logName:"cloudaudit"'}, "filter"),
        ({"filter": "severity>>"}, "filter"),
        ({"resourceNames": ["folders/1"]}, "resource_names"),
    ],
)
async def test_invalid_tail_request_error_names_the_wrong_field(
    service: GrpcApiService, request_: dict[str, Any], field: str
) -> None:
    failure = await Session(service, "p1", "", **request_).failure()
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in violations_of(status_of(failure))] == [field]


async def test_tail_over_rest_is_rejected_with_advice(service: GrpcApiService) -> None:
    answer = await ApiService.call(service, "POST", "/v2/entries:tail", {})
    assert answer.error["status"] == "UNIMPLEMENTED"
    assert "over gRPC" in answer.error["message"]
