"""The service of `house` behind a real socket on loopback, for the unmodified clients."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from tests.contract.api.house import House

T = TypeVar("T")


class Served:
    """A running server. `url` has no trailing slash."""

    def __init__(
        self, house: House, server: uvicorn.Server, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.house = house
        self._loop = loop
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def play(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the house on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@contextmanager
def serve(directory: Path) -> Generator[Served]:
    """Serve a fresh house until the context is left."""
    house = House(directory)
    config = uvicorn.Config(
        house.app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=5
    )
    server = _Server(config)
    loop = asyncio.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert server.listening.wait(10), "the server did not start"
        yield Served(house, server, loop)
    finally:
        loop.call_soon_threadsafe(house.services.closing.set)
        server.should_exit = True
        thread.join(15)
        house.close()
        loop.close()


def credentials_of(served: Served) -> Any:
    """Those of the client libraries: the token of the house's owner."""
    anonymous: Any = import_module("google.auth.credentials").AnonymousCredentials

    class Token(anonymous):
        def apply(self, headers: Any, token: str | None = None) -> None:
            headers["authorization"] = f"Bearer {served.house.token}"

        def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
            self.apply(headers)

    return Token()


def sdk_of(served: Served) -> Any:
    """google.cloud.aiplatform, told where the service is."""
    module: Any = import_module("google.cloud.aiplatform")
    module.init(
        project="p1",
        location="us-central1",
        staging_bucket="gs://bucket",
        api_endpoint=served.url,
        api_transport="rest",
        credentials=credentials_of(served),
    )
    return module
