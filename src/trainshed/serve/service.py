"""Puts a service together and runs it: children first, then store, engine, controller and the API's port."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn

from trainshed.access.principals import Principal
from trainshed.access.tokens import TokenAuthority
from trainshed.api.app import ApiApplication
from trainshed.api.services import ApiSettings, Services
from trainshed.buckets.gateway import PREFIXES, BucketsGateway
from trainshed.buckets.local import LocalStore
from trainshed.cli.credentials import credentials_document
from trainshed.controller.carrier import Hands
from trainshed.controller.controller import Controller
from trainshed.controller.launching import Launching
from trainshed.controller.parents import Doors
from trainshed.controller.suggesting import Suggesting
from trainshed.core.errors import Unauthenticated
from trainshed.core.failure.overrides import table_with
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.turn import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.replica import durable
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import clock, memory
from trainshed.serve.adapters import BucketDoor, BucketHistory
from trainshed.serve.announcing import SERVICE_FILE, grpc_addresses, write_private
from trainshed.serve.children import BucketKeeper
from trainshed.serve.grpc_front import GrpcDoors, GrpcFront
from trainshed.serve.settings import Settings, accelerators_of
from trainshed.store.logs.metrics import MetricsReader
from trainshed.store.logs.reader import LogReader
from trainshed.store.notices import Notices
from trainshed.store.port import Store
from trainshed.studies.advisor.client import ProcessAdvisor
from trainshed.studies.port import EngineName

log = logging.getLogger(__name__)

DRAIN = 2
"""Seconds that open requests get when the service stops."""
STOP_JOBS = 60
"""Seconds that jobs get to end, beyond their grace, when they are to be stopped with the service."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What exists before the event loop does. `storage_port`: the bucket process's own TCP port; `grpc`: if there is any."""

    settings: Settings
    listener: socket.socket
    grpc: GrpcDoors | None
    zygote: ZygoteHandle
    buckets: BucketKeeper
    storage_port: int
    bucket_socket: Path
    store: Store
    token: str
    tokens: TokenAuthority


class Service:
    """A running service. `announce` is called once requests are served, with what `service.json` holds."""

    def __init__(
        self, parts: Parts, announce: Callable[[dict[str, Any]], None], *, stop_jobs: bool
    ) -> None:
        self._parts = parts
        self._announce = announce
        self._stop_jobs = stop_jobs
        self._stopping = asyncio.Event()
        self._notices = Notices()
        data = parts.settings.data
        local_store = LocalStore(data / "buckets", now=clock.now)
        local_store.ensure_bucket(parts.settings.default_bucket, parts.settings.region)
        self._door = BucketDoor(local_store)
        self._runtimes = LocalRuntimes(
            parts.settings.cache,
            self._door,
            RuntimeSettings(exact=parts.settings.exact_runtimes),
            now=clock.now,
        )
        self._engine = LocalEngine(
            data,
            zygote=parts.zygote,
            storage_socket=parts.bucket_socket,
            hidden=(data,),
            read_only=(parts.settings.cache,),
            nodes=parts.settings.nodes,
            lease=parts.settings.lease,
            node_vcpus=parts.settings.node_cpus,
            node_memory_bytes=round(parts.settings.node_memory * 2**30),
            node_accelerators=accelerators_of(parts.settings.node_accelerators),
        )
        logs = LogReader(data / "logs")
        new_uid = clock.JobUids()
        self._advisor = ProcessAdvisor(EngineName(parts.settings.tuning_engine))
        self._suggesting = Suggesting(
            parts.store.studies,
            self._advisor,
            self._notices,
            clock.now,
            parts.settings.max_study_trials,
        )
        self._controller = Controller(
            ledger=parts.store.ledger,
            reader=parts.store.reader,
            logs=logs,
            hands=lambda report: Hands(
                engine=self._engine,
                runtimes=self._runtimes,
                buckets=self._door,
                launching=Launching(
                    gcs_root=str(data / "buckets"),
                    memory_cap=parts.settings.memory_per_replica << 20,
                    stall_after=round(parts.settings.stall_after * 1e9),
                ),
                report=report,
                grace=round(parts.settings.grace * 1e9),
            ),
            notices=self._notices,
            now=clock.now,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            doors=Doors(
                intake=parts.store.intake,
                reader=parts.store.reader,
                studies=parts.store.studies,
                models=parts.store.models,
                advisor=self._advisor,
                metrics=MetricsReader(data / "logs"),
                buckets=self._door,
                now=clock.now,
                new_uid=new_uid,
            ),
            scheduling=Policy(
                strict=parts.settings.capacity == "strict",
                max_replicas=parts.settings.max_replicas,
                patience=round(parts.settings.patience * 1e9),
                public_quotas=parts.settings.quotas == "public",
            ),
            failures=FailurePolicy(
                table_with(parts.settings.failure_rules), parts.settings.max_attempts
            ),
        )
        self._services = Services(
            intake=parts.store.intake,
            reader=parts.store.reader,
            studies=parts.store.studies,
            models=parts.store.models,
            logs=logs,
            notices=self._notices,
            runtimes=self._runtimes.catalog,
            buckets=self._door,
            history=BucketHistory(data / "buckets", self._door),
            now=clock.now,
            new_uid=new_uid,
            wake=self._controller.wake,
            suggest=self._suggesting.wake,
            room=self._controller,
            settings=ApiSettings(
                version=version("trainshed"),
                project=parts.settings.project,
                region=parts.settings.region,
                bucket=parts.settings.default_bucket,
                max_study_trials=parts.settings.max_study_trials,
            ),
            closing=self._stopping,
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Jobs run on, unless they are to be stopped."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._parts.buckets.start()
        try:
            await self._serve()
        finally:
            # Whatever went wrong: a thread waits for the bucket process, and the end of ours for the thread.
            await self._parts.buckets.close()

    async def _serve(self) -> None:
        await self._controller.start()
        await self._suggesting.start()
        self._runtimes.search()
        data, authenticate = self._parts.settings.data, self._parts.tokens.authenticate
        gateway = BucketsGateway(self._parts.bucket_socket)
        mounts = dict.fromkeys((prefix.split("/")[1] for prefix in PREFIXES), gateway)
        server = _Server(
            uvicorn.Config(
                ApiApplication(self._services, authenticate, mounts),
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=DRAIN,
            ),
            ready=self._ready,
        )
        front = GrpcFront(self._parts.grpc, data, self._services, authenticate)
        await front.start()
        serving = asyncio.create_task(server.serve([self._parts.listener]))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if self._stop_jobs:
            await self._cancel_jobs()
        live = self._controller.running()
        server.should_exit = True
        await asyncio.gather(serving, front.close(DRAIN))
        await self._suggesting.close()
        await self._controller.close()
        await self._advisor.close()
        await gateway.close()
        self._runtimes.close()
        (self._parts.settings.data / SERVICE_FILE).unlink(missing_ok=True)
        if live:
            many = len(live) > 1
            say(
                f"{len(live)} {'jobs keep' if many else 'job keeps'} running; the next `trainshed up` "
                f"on this data directory takes {'them' if many else 'it'} over."
            )

    def _ready(self) -> None:
        settings = self._parts.settings
        host = settings.host if settings.host not in ("", "0.0.0.0", "::") else "127.0.0.1"
        here = f"[{host}]" if ":" in host else host
        document: dict[str, Any] = {
            "rest": f"http://{here}:{self._parts.listener.getsockname()[1]}",
            "token": self._parts.token,
            "pid": os.getpid(),
            "storage": f"http://{here}:{self._parts.storage_port}",
            "project": settings.project,
            "region": settings.region,
            "bucket": settings.default_bucket,
            "data": str(settings.data),
            "buckets": str(settings.data / "buckets"),
            **grpc_addresses(self._parts.grpc, settings.host),
        }
        write_private(settings.data / SERVICE_FILE, document)
        write_private(
            settings.data / "credentials.json",
            credentials_document(self._parts.token, settings.project),
        )
        self._announce(document)
        memory.settle()

    async def _cancel_jobs(self) -> None:
        """Cancel every job that is not over, and wait until they are."""
        try:
            async with asyncio.timeout(self._parts.settings.grace + STOP_JOBS):
                # Again: a create that was on its way when the stop began may have come to its end since.
                while live := await self._parts.store.ledger.load_live():
                    await self._cancel([each.job for each in live])
        except TimeoutError:
            say("Some jobs did not stop in time; they are stopped at the next start.")

    async def _cancel(self, jobs: list[Work]) -> None:
        say(f"Stopping {len(jobs)} job{'s' if len(jobs) > 1 else ''} ...")
        for job in jobs:
            # A job that ended in this moment has nothing left to cancel.
            with contextlib.suppress(Exception):
                await self._parts.store.intake.request_cancel(
                    job.name, CancelRequested(CancelCause.USER, clock.now())
                )
            self._controller.wake(job.uid)
        for job in jobs:
            await self._until_over(job.uid)

    async def _until_over(self, uid: JobUid) -> None:
        while True:
            seen = self._notices.count(uid)
            if await self._parts.store.ledger.load(uid) is None:
                return
            await self._notices.wait_beyond(uid, seen, 5)


class _Server(uvicorn.Server):
    """Uvicorn that says when it is up and leaves signals to the service."""

    def __init__(self, config: uvicorn.Config, *, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def say(text: str) -> None:
    """A line for the person at the terminal."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def owner_token(data: Path, tokens: TokenAuthority) -> str:
    """The owner's token: made at the first start, kept readable for its owner alone (docs/adr/0007).

    A new one where the file holds none that is known: after a crash in the middle, or when the token file was moved away.
    """
    path = data / "owner.token"
    if path.exists():
        token = path.read_text().strip()
        with contextlib.suppress(Unauthenticated):
            tokens.authenticate(f"Bearer {token}")
            return token
    token = tokens.issue(Principal("owner@trainshed.local"))
    durable.write(str(path), token + "\n")
    return token
