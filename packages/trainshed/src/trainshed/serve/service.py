"""Runs a service. The start order is: child processes, store, engine, controller, API port."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainshed.access.tokens import digest_of
from trainshed.api.additions import AdditionUnusable, mounts_with
from trainshed.api.calls.services import Authenticate
from trainshed.api.grpc import GrpcServer, Identity
from trainshed.api.rest import ApiApplication
from trainshed.buckets.authentication import Authenticator
from trainshed.buckets.gateway import PREFIXES, BucketsGateway
from trainshed.cli.environment import BOTO_FILE, boto_document, credentials_document
from trainshed.cli.text.moments import counted, duration
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import DEFAULT_BUCKET, JobUid
from trainshed.core.units import Nanos
from trainshed.eventloop.background import Crew, joined
from trainshed.eventloop.memory import tune_memory
from trainshed.httpd import connections
from trainshed.httpd.protocol import ConnectionGroups, guarded_protocol, server_config
from trainshed.httpd.secure import Certificate, SecureServer, TlsListener
from trainshed.replica import protocol
from trainshed.replica.system.unix_sockets import reachable
from trainshed.serve import clock
from trainshed.serve.addresses import (
    SERVICE_FILE,
    address_of,
    own_hosts,
    secure_address,
    web_address,
    write_private,
)
from trainshed.serve.app import App
from trainshed.serve.bootstrap import Bootstrap
from trainshed.serve.certificates import Certificates
from trainshed.serve.relay import Relay
from trainshed.serve.settings import speaks_tls
from trainshed.serve.start_errors import ServiceStartFailed

if TYPE_CHECKING:
    from uvicorn.config import Config

    from trainshed.serve.emulation import Emulation


DRAIN = 2
"""Maximum seconds for open requests when the service stops."""
_ACTIVATED_DRAIN = 10
"""Maximum seconds for open requests when the service stops, if systemd holds the sockets for new callers."""
STOP_JOBS = 60
"""Seconds, in addition to their grace period, for jobs that are cancelled when the service stops."""


class Service:
    """A running service. When it is ready, it calls `announce` with the contents of `service.json`."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        announce: Callable[[dict[str, Any]], None],
        emulation: "Emulation | None" = None,
        *,
        last_sign: Nanos = 0,
        stop_jobs: bool,
    ) -> None:
        """`last_sign`: the last activity of the previous service with this data directory, in nanoseconds
        since the epoch; 0 = no previous service."""
        self._bootstrap = bootstrap
        self._announce = announce
        self._stop_jobs = stop_jobs
        self._last_sign = last_sign
        self._adopted_jobs: list[Job] = []
        self._stopping = asyncio.Event()
        self._app = App(bootstrap, self._stopping)
        self._relays: list[Relay] = []
        self._drain = _ACTIVATED_DRAIN if bootstrap.is_activated else DRAIN
        if emulation is not None:
            bootstrap.tokens.is_open = True
            self._app.services = emulation.around(self._app.services)
        self._watching = Crew()
        # Reject the tokens of programs that have ended.
        bootstrap.tokens.refuse(
            lambda claims: not self._app.controller.runs(JobUid(claims.job_uid), claims.attempt)
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Jobs continue unless `stop_jobs` is set."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._bootstrap.buckets.start()
        try:
            await self._serve()
        finally:
            # Always close the keeper of the bucket process. One of its threads waits for the bucket process,
            # and at exit this process waits for that thread.
            await self._bootstrap.buckets.close()
            self._app.lag.close()

    async def _serve(self) -> None:
        await self._app.controller.start()
        await self._record_absence()
        await self._start_background_tasks()
        await self._bootstrap.issuers.revoke_removed_issuers()
        authenticate = self._bootstrap.issuers.authenticate
        settings = self._bootstrap.settings
        authenticator = Authenticator(lambda: self._bootstrap.tokens, authenticate)
        gateway = BucketsGateway(self._bootstrap.gateway_socket, authenticator.caller)
        buckets = dict.fromkeys((prefix.split("/")[1] for prefix in PREFIXES), gateway)
        groups = ConnectionGroups(connections.limits_of_process())
        plain = [self._bootstrap.listener, self._bootstrap.programs]
        tls: list[TlsListener] = []
        if speaks_tls(settings):
            shown = await asyncio.wrap_future(self._bootstrap.certified)
            certificate = Certificate(shown.chain, shown.key)
            tls = [TlsListener(plain.pop(0), certificate, plain=True)]
        services, registry = self._app.services, self._app.registry
        try:
            mounts = mounts_with(self._app.additions, services, registry, buckets)
        except AdditionUnusable as failure:
            raise ServiceStartFailed(str(failure)) from failure
        application = ApiApplication(
            services, authenticate, mounts, hosts=own_hosts(settings), registry=registry
        )
        server = _Server(
            server_config(application, guarded_protocol(groups), grace=self._drain, websockets=groups),
            tls,
            groups,
            ready=self._ready,
        )
        grpc = await self._listen_by_grpc(authenticate)
        serving = joined(server.serve(plain))
        stopping = joined(self._stopping.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if self._stop_jobs:
            await self._cancel_jobs()
        server.should_exit = True
        await asyncio.gather(serving, self._stop_grpc(grpc))
        await self._stop_background_tasks()
        await self._app.advisor.close()
        if self._app.services.tracking is not None:
            await self._app.services.tracking.close()
        self._app.runtimes.close()
        with contextlib.suppress(OSError):
            # Ignore a failure, because the disk may be read-only. Readers of the file check whether the
            # process still exists.
            (self._bootstrap.settings.data / SERVICE_FILE).unlink()
        if live := self._app.controller.running_jobs():
            many = len(live) > 1
            print_line(
                f"{len(live)} {'jobs continue' if many else 'job continues'}. The next `trainshed up` on "
                f"this data directory adopts {'them' if many else 'it'}."
            )

    async def _stop_grpc(self, server: GrpcServer) -> None:
        await asyncio.gather(*(relay.close(self._drain) for relay in self._relays))
        await server.stop(DRAIN)

    async def _listen_by_grpc(self, authenticate: Authenticate) -> GrpcServer:
        """Serve gRPC on both ports, and on the Unix socket for programs. Raises ServiceStartFailed if the
        certificates are unusable."""
        ports, programs = self._bootstrap.grpc, str(self._bootstrap.programs_grpc_path)
        shown = await asyncio.wrap_future(self._bootstrap.certified)
        path = self._bootstrap.settings.data / "grpc.sock"
        most = connections.limits_of_process().connections
        server = GrpcServer(self._app.services, authenticate, most, registry=self._app.registry)
        for name, address, identity in (
            ("plain", ports.plain, None),
            ("secure", ports.secure, Identity(shown.key.read_bytes(), shown.chain.read_bytes())),
        ):
            if (listener := self._bootstrap.passed_grpc[name]) is None:
                try:
                    server.listen(address_of(*address), identity)
                except RuntimeError:
                    # The service has only reserved the port, so another program can have started to listen on
                    # the port.
                    option = "--grpc-port" if identity is None else "--grpc-tls-port"
                    raise ServiceStartFailed(
                        f"gRPC cannot listen on {address_of(*address)}: another program has started to "
                        f"listen there. Stop it, or choose another port with {option}."
                    ) from None
            else:
                tls = _context_of_grpc(shown) if identity is not None else None
                self._relays.append(Relay(listener, path, most, tls))
        # Connections from relays have their own Unix socket, so that they cannot exhaust the connections of
        # programs.
        for place in (programs, *([str(path)] if self._relays else [])):
            with reachable(place) as short:
                server.listen(f"unix:{short}")
                os.chmod(short, 0o600)  # noqa: PTH101 - a path of /proc
        await server.start()
        for relay in self._relays:
            await relay.start()
        return server

    async def _start_background_tasks(self) -> None:
        """Start the tasks that run next to the controller: suggestions for studies, exports, deletion of old
        jobs, notifications, checks for idle jobs, and the search for interpreters."""
        await self._app.suggesting.start()
        await self._app.exports.start()
        self._app.retention.start()
        self._app.outbox.start()
        self._app.idling.start()
        self._watching.keep(self._bootstrap.store.watch, "watching the files of the database")
        self._watching.keep(self._bootstrap.access.write_uses, "noting which tokens are used")
        services, registry = self._app.services, self._app.registry
        for name, addition in self._app.additions.items():
            if addition.background is not None:
                self._watching.keep(
                    partial(addition.background, services, registry),
                    f"running the background task of the addition {name!r}",
                )
        self._app.runtimes.search()

    async def _stop_background_tasks(self) -> None:
        """Stop the background tasks and the controller. The outbox stops last, because the last commits of
        the controller may still use it."""
        await self._watching.close()
        await self._bootstrap.access.flush()
        await self._app.idling.close()
        await self._app.retention.close()
        await self._app.suggesting.close()
        await self._app.exports.close()
        await self._app.controller.close()
        await self._app.outbox.close()

    def _ready(self) -> None:
        settings, grpc = self._bootstrap.settings, self._bootstrap.grpc
        certificates = self._bootstrap.certified.result()
        document: dict[str, Any] = {
            "rest": web_address(settings, self._bootstrap.listener.getsockname()[1]),
            "token": self._bootstrap.token,
            "pid": os.getpid(),
            # A string, because some JSON readers limit numbers to 53 bits.
            "since": str(protocol.process_start(os.getpid())),
            "storage": web_address(settings, self._bootstrap.storage_port),
            "project": settings.project,
            "region": settings.region,
            "bucket": DEFAULT_BUCKET,
            "data": str(settings.data),
            "buckets": str(settings.data / "buckets"),
            "grpc": address_of(*grpc.plain),
            "grpc_tls": secure_address(settings, grpc.secure[1]),
            "storage_tls": secure_address(settings, self._bootstrap.storage_tls_port),
            "ca": str(certificates.ca),
            "ca_bundle": str(certificates.roots),
        }
        write_private(settings.data / SERVICE_FILE, document)
        # Clients on this machine always use plain HTTP.
        plain = f"http://{urlsplit(str(document['storage'])).netloc}"
        write_private(
            settings.data / "credentials.json",
            credentials_document(self._bootstrap.token, settings.project, plain),
        )
        address, roots = document["storage_tls"], document["ca_bundle"]
        boto = boto_document(plain, address, roots, self._bootstrap.token, settings.project)
        write_private(settings.data / BOTO_FILE, boto)
        owner, additions = digest_of(self._bootstrap.token), self._app.additions.values()
        pages = [addition.link for addition in additions if addition.link is not None]
        # A link signs its reader in as the service's owner. It is shown only on a terminal, because systemd's
        # journal or a container's log would store it.
        links = [link(owner) for link in pages] if sys.stderr.isatty() else []
        taken = [f"{job.uid} {job.display_name}".rstrip() for job in self._adopted_jobs]
        self._announce({**document, "links": links, "has_pages": bool(pages), "taken_over": taken})
        tune_memory()
        self._app.lag.start()

    async def _record_absence(self) -> None:
        """Add an entry about the time without a service to the timeline of each job that has an attempt. The
        engine reports later which programs of these jobs survived."""
        self._adopted_jobs = [job for job in self._app.controller.running_jobs() if job.attempt]
        if not self._last_sign:
            return
        now = clock.now()
        away = max(0, now - self._last_sign)
        entry = TimelineEntry(
            now,
            "service_away",
            f"The service was away for at most {duration(away)}, and has adopted the job. Programs that "
            "are still running continue; the timeline shows which ones have ended.",
            {"since": self._last_sign, "until": now},
        )
        await self._bootstrap.store.intake.add_timeline_entry([job.uid for job in self._adopted_jobs], entry)

    async def _cancel_jobs(self) -> None:
        cancel, cancelled = CancelRequested(CancelCause.USER, clock.now()), set[JobUid]()
        try:
            async with asyncio.timeout(self._bootstrap.settings.grace + STOP_JOBS):
                # Load the unfinished jobs until none remains. A create request that was in progress when the
                # service began to stop may have added a job.
                while live := await self._bootstrap.store.ledger.load_live():
                    if fresh := [work.job for work in live if work.job.uid not in cancelled]:
                        print_line(f"Stopping {counted(len(fresh), 'job')} ...")
                    for job in fresh:
                        cancelled.add(job.uid)
                        # Ignore errors: a job that has just finished cannot be cancelled.
                        with contextlib.suppress(Exception):
                            await self._bootstrap.store.intake.request_cancel(job.name, cancel)
                        self._app.controller.wake(job.uid)
                    await self._until_over(live[0].job.uid)
        except TimeoutError:
            print_line("Some jobs did not stop in time. The next start stops them.")

    async def _until_over(self, uid: JobUid) -> None:
        while True:
            seen = self._app.services.notices.count(uid)
            if await self._bootstrap.store.ledger.load(uid) is None:
                return
            await self._app.services.notices.wait_beyond(uid, seen, 5)


class _Server(SecureServer):
    """A Uvicorn server that reports when it is ready, and does not handle signals."""

    def __init__(
        self, config: "Config", tls: list[TlsListener], groups: ConnectionGroups, *, ready: Callable[[], None]
    ) -> None:
        super().__init__(config, tls, groups)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _context_of_grpc(shown: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.chain, shown.key)
    context.set_alpn_protocols(["h2"])
    return context


def print_line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
