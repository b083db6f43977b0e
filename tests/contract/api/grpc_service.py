"""The service of `api_service`, called over gRPC through a real server and channel.

`call` accepts the arguments of the REST tests (verb, path, JSON), so the same tests run over both
transports. Calls that are not RPCs of the public APIs use REST.
"""

import importlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.contract.api.api_service import Answer, ApiService
from trainshed.access.issuers import Issuer
from trainshed.api.grpc import DETAILS, GrpcServer
from trainshed.wire import json as wire_json
from trainshed.wire import pool, routes
from trainshed.wire.status import StatusCode, Violation, WireError, error_body

grpc: Any = importlib.import_module("grpc")


class GrpcApiService(ApiService):
    """A service with a gRPC server at `address`. `channel` is a connection to it without TLS."""

    def __init__(self, directory: Path, issuers: Sequence[Issuer] = ()) -> None:
        super().__init__(directory, issuers=issuers)
        self.address = f"unix:{directory / 's'}"
        self.server = GrpcServer(self.services, self.issuers.authenticate, registry=self.registry)
        self.channel: Any = grpc.aio.insecure_channel(self.address)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["GrpcApiService"]:
        self.server.listen(self.address)
        await self.server.start()
        try:
            yield self
        finally:
            await self.channel.close()
            await self.server.stop(0)
            self.close()

    async def send(self, path: str, request: bytes, *, token: str | None = "", **more: Any) -> bytes:
        """Send one unary call. Raises grpc.aio.AioRpcError."""
        metadata = () if token is None else (("authorization", f"Bearer {token or self.token}"),)
        return await self.channel.unary_unary(path)(request, metadata=metadata, **more)

    async def ask(
        self, method: str, request: dict[str, Any], *, token: str | None = "", beta: bool = False
    ) -> Any:
        """Call a method by its full name with a request in JSON, and return the response message."""
        service, _, name = method.rpartition(".")
        rpc = next(
            rpc
            for api in pool.APIS
            for rpc in routes.rpcs(api).values()
            if (rpc.service, rpc.method) == (service, name)
        )
        path = rpc.path.replace(".v1.", ".v1beta1.") if beta else rpc.path
        message = wire_json.from_public(rpc.request, request)
        answer = await self.send(path, message.SerializeToString(), token=token)
        return pool.message_class(rpc.response).FromString(answer)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = "",
        before_body: Callable[[], object] = lambda: None,
        **more: Any,
    ) -> Answer:
        raw, _, query = path.partition("?")
        matched = routes.match(method, raw.replace("/v1beta1/", "/v1/", 1))
        if matched is None and (method, raw) == ("POST", "/v2/entries:tail"):
            return await self._first_response(body, token)
        if matched is None:
            return await super().call(method, path, body, token=token, before_body=before_body, **more)
        route, variables = matched
        if isinstance(body, bytes):
            data = body
        else:
            data = b"" if body is None else wire_json.encode_text(body)
        try:
            bound = routes.bind(route, variables, parse_qsl(query, keep_blank_values=True), data)
        except WireError as wrong:
            pytest.skip(f"only JSON can say this, no message: {wrong}")
        rpc_path = route.rpc.path
        if raw.startswith("/v1beta1/"):
            rpc_path = rpc_path.replace(".aiplatform.v1.", ".aiplatform.v1beta1.")
        before_body()  # The headers and the only message arrive together.
        try:
            answer = await self.send(rpc_path, bound.SerializeToString(), token=token)
        except grpc.aio.AioRpcError as error:
            return _error_answer(error)
        response = pool.message_class(route.rpc.response).FromString(answer)
        return Answer(200, {}, wire_json.render(wire_json.to_public(response)))

    async def _first_response(self, body: Any, token: str | None) -> Answer:
        """Return the first response of a session that tails logs. Only gRPC offers this method."""
        request = wire_json.from_public("google.logging.v2.TailLogEntriesRequest", body)
        try:
            await self.send(
                "/google.logging.v2.LoggingServiceV2/TailLogEntries", request.SerializeToString(), token=token
            )
        except grpc.aio.AioRpcError as error:
            return _error_answer(error)
        return Answer(200, {}, b"{}")


def status_of(error: Any) -> Any:
    """Return the google.rpc.Status of a failed call."""
    trailers = dict(list(error.trailing_metadata()))
    status: Any = pool.message_class("google.rpc.Status")()
    status.ParseFromString(trailers[DETAILS])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    return status


def violations_of(status: Any) -> tuple[Violation, ...]:
    """Return the field violations of a status's BadRequest detail."""
    for detail in status.details:
        bad: Any = pool.message_class("google.rpc.BadRequest")()
        if detail.Unpack(bad):
            return tuple(Violation(v.field, v.description) for v in bad.field_violations)
    return ()


def _error_answer(error: Any) -> Answer:
    status = status_of(error)
    code = StatusCode.of(status.code)
    body = error_body(code, status.message, violations_of(status))
    return Answer(code.http, {}, body)
