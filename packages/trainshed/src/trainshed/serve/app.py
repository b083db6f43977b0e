"""Builds and connects what runs in a service, from what the bootstrap opened: engine, runtimes, controller,
API services."""

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

from msgspec.structs import asdict

from trainshed.api.calls.links import Links, Tickets
from trainshed.api.calls.services import ApiSettings, Services
from trainshed.api.resources.jobs import delete_for_user
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.controller.board_curves import BoardStores
from trainshed.controller.carrier import Ports
from trainshed.controller.controller import Controller
from trainshed.controller.curves import CurveStores, JobCurves
from trainshed.controller.idling import IdlePolicy, IdleWatch
from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.controller.outbox import OutboxWorker
from trainshed.controller.parents import ParentStores
from trainshed.controller.retention import RetentionTimer
from trainshed.controller.study_operations import StudyOperations
from trainshed.core.failure.table import table_with
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.transition import FailurePolicy
from trainshed.core.names import DEFAULT_BUCKET
from trainshed.core.streams import StreamSource
from trainshed.core.terminals import NoTerminals, Terminals
from trainshed.core.units import Nanos
from trainshed.core.usage import Prices
from trainshed.datasets.service import SplitProcesses
from trainshed.engines.launch.devices import find_devices
from trainshed.engines.port import BringsImages, Engine, LogWriter, ServiceAccess, TakesMemory
from trainshed.engines.registry import EngineContext, ProgramRules, factory
from trainshed.engines.streams import ServiceStreams
from trainshed.eventloop.lag import LagMeter
from trainshed.notifying.senders import Senders
from trainshed.notifying.targets import mail_server
from trainshed.runtimes.images.cluster import ClusterImages
from trainshed.runtimes.images.service import Images
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import ContainerImages
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import certificates, clock
from trainshed.serve.addresses import browsers_address, pages_host
from trainshed.serve.bootstrap import Bootstrap
from trainshed.serve.bucket_adapters import BucketAdapter, find_shown, find_summaries
from trainshed.serve.engine_adapters import Vault, build_terms, link_key, viewer_terms
from trainshed.serve.setting_types import parse_age, parse_size, prices_of
from trainshed.serve.settings import SettingsError, engine_settings
from trainshed.store.logs.metrics import read_metrics
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.notices import Notices
from trainshed.store.points import POINTS, PointFiles
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.telemetry.meters import Meters
from trainshed.viewers.service import LocalViewers, ViewerPool

_TENSORBOARDS = 4
"""TensorBoards that run at once, each with at most 2 GiB; beyond that the one used least lately is ended."""
_ANY_NUMBER = 1 << 30
"""The limit of replicas at once if a cluster itself limits how many it takes."""


class App:
    """What runs in a service, built and connected; nothing runs yet."""

    def __init__(self, bootstrap: Bootstrap, stopping: asyncio.Event) -> None:
        """`stopping`: set when the service is to take no more work."""
        settings, store = bootstrap.settings, bootstrap.store
        self._bootstrap, self._settings, self._store = bootstrap, settings, store
        self._stopping = stopping
        self._logs_directory = settings.data / "logs"
        self._address = browsers_address(settings, bootstrap.listener.getsockname()[1])
        self._buckets = ObjectStore(
            settings.data / "buckets", now=clock.now, rules=bootstrap.bucket_rules
        )
        self._buckets.catalog.ensure(DEFAULT_BUCKET, settings.region)
        for table in settings.buckets:
            self._buckets.catalog.ensure(table.name, settings.region, table.project)
        self._adapter = BucketAdapter(self._buckets)
        bootstrap.access.forget = self._adapter.forget
        self._interpreters = Interpreters()
        self._engine = _engine(bootstrap, self._interpreters)
        self._points = PointFiles(settings.data / POINTS)
        self._logs = LogReader(self._engine.streams, ServiceStreams(self._logs_directory))
        self._notices = Notices()
        self._new_uid = clock.JobUids()
        self.meters = Meters()
        self.lag = LagMeter()
        self.advisor = ProcessAdvisor()
        self.runtimes = self._runtimes()
        self.suggesting = StudyOperations(store.studies, self.advisor, self._notices, clock.now)
        self.outbox = OutboxWorker(
            Senders(
                settings.notify,
                mail_server(settings.smtp, os.environ.get("TRAINSHED_SMTP_PASSWORD", "")),
                clock.now,
            ),
            store.notifications,
            store.intake,
            clock.now,
            self.meters,
            page=self._address,
        )
        self.controller = self._controller()
        self.viewers = LocalViewers(
            settings.data / "viewers",
            self.runtimes,
            partial(find_shown, self._buckets),
            viewer_terms(settings, self._engine),
            pool=ViewerPool(_TENSORBOARDS),
            closing=stopping,
        )
        # The API reports on removals through the timer, which itself removes jobs through the API's services.
        self.services = self._services()
        self.retention = self._retention()
        self.idling = self._idling()

    def _runtimes(self) -> LocalRuntimes:
        settings, engine = self._settings, self._engine
        return LocalRuntimes(
            settings.cache,
            self._adapter,
            RuntimeSettings(
                exact=settings.exact_runtimes,
                image_map=settings.images,
                cache_size=parse_size(settings.cache_size) or None,
                terms=build_terms(settings, engine, self._bootstrap.ports),
                has_gpu=lambda: bool(find_devices(os.environ)),
            ),
            now=clock.now,
            images=self._images(),
            interpreters=self._interpreters,
        )

    def _images(self) -> ContainerImages:
        settings, engine = self._settings, self._engine
        read = engine.read_image if isinstance(engine, BringsImages) else None
        if read is not None:
            return ClusterImages(read, now=clock.now)

        def unsupported() -> str:
            if engine.capabilities().images:
                return ""
            return (
                "Container images need namespaces, so that their files can take the place of the machine's, "
                f"and this service has none (its isolation is {engine.capabilities().isolation})."
            )

        return Images(
            settings.cache / "images",
            settings.container_tool,
            now=clock.now,
            unsupported=unsupported,
        )

    def _controller(self) -> Controller:
        settings, store, engine = self._settings, self._store, self._engine
        curves = JobCurves(self._curve_stores())
        return Controller(
            intake=store.intake,
            ledger=store.ledger,
            reader=store.reader,
            logs=self._logs,
            ports=lambda report: Ports(
                engine=engine,
                runtimes=self.runtimes,
                datasets=SplitProcesses(self._bootstrap.bucket_socket.resolve()),
                buckets=self._adapter,
                log=ServiceLog(self._logs_directory, self._notices.publish),
                launch_defaults=self._launch_defaults(),
                report=report,
                grace=round(settings.grace * 1e9),
            ),
            notices=self._notices,
            now=clock.now,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            stores=self._parent_stores(curves),
            scheduling=self._scheduling_policy(),
            failures=FailurePolicy(table_with(settings.failure_rules)),
            max_child_jobs=settings.max_child_jobs,
            curves=curves,
            meters=self.meters,
            outbox=self.outbox,
            prices=Prices(prices_of(settings.prices)),
        )

    def _parent_stores(self, curves: JobCurves) -> ParentStores:
        store = self._store
        return ParentStores(
            intake=store.intake,
            reader=store.reader,
            studies=store.studies,
            models=store.models,
            advisor=self.advisor,
            reported=partial(read_metrics, self._engine.streams),
            last_written=self._adapter.last_written,
            printed=partial(_printed, self._logs),
            logged=curves.logged,
            now=clock.now,
            new_uid=self._new_uid,
        )

    def _curve_stores(self) -> CurveStores:
        store = self._store
        boards = BoardStores(
            store.tensorboards,
            store.metadata_stores,
            store.metadata,
            self._points,
            self._new_uid,
            clock.now,
        )
        return CurveStores(
            curves=store.curves,
            boards=boards,
            reader=store.reader,
            intake=store.intake,
            directory=partial(find_summaries, self._buckets),
        )

    def _scheduling_policy(self) -> Policy:
        settings, engine = self._settings, self._engine
        return Policy(
            strict=settings.strict,
            max_replicas=_ANY_NUMBER if settings.is_handed_down else settings.max_replicas,
            memory_cap=settings.memory_per_replica << 20,
            half_life=round(settings.half_life * 86400e9),
            memory_beside=engine.memory_beside if isinstance(engine, TakesMemory) else 0,
        )

    def _launch_defaults(self) -> LaunchDefaults:
        settings = self._settings
        return LaunchDefaults(
            memory_cap=settings.memory_per_replica << 20,
            warm_starts=settings.warm_starts if settings.keeps_imports else "off",
        )

    def _idling(self) -> IdleWatch:
        settings = self._settings
        policy = IdlePolicy(round(settings.idle_gpus * 1e9), round(settings.idle_stop * 1e9))
        return IdleWatch(
            policy,
            running=self.controller.running,
            usages=self._logs,
            reader=self._store.reader,
            intake=self._store.intake,
            wake=self.controller.wake,
            publish=self._notices.publish,
            now=clock.now,
        )

    def _services(self) -> Services:
        bootstrap, store, engine = self._bootstrap, self._store, self._engine

        return Services(
            intake=store.intake,
            reader=store.reader,
            studies=store.studies,
            models=store.models,
            evaluations=store.evaluations,
            metadata_stores=store.metadata_stores,
            metadata=store.metadata,
            tensorboards=store.tensorboards,
            datasets=store.datasets,
            points=self._points,
            curves=store.curves,
            secrets=store.secrets,
            sealer=bootstrap.sealer,
            access=bootstrap.access,
            logs=self._logs,
            notices=self._notices,
            runtimes=self.runtimes.catalog,
            buckets=self._adapter,
            links=self._links(),
            tickets=Tickets(clock.now),
            shells=engine if isinstance(engine, Terminals) else NoTerminals(),
            allows_shells=self._settings.shell == "on",
            viewers=self.viewers,
            write_log=engine.write_log if isinstance(engine, LogWriter) else None,
            promises=lambda: asdict(engine.capabilities()),
            lag=self.lag.reading,
            started=clock.now(),
            meters=self.meters,
            now=clock.now,
            new_uid=self._new_uid,
            wake=self.controller.wake,
            create=self.controller.create,
            suggest=self.suggesting.wake,
            outlook=self.advisor.outlook,
            capacity=self.controller,
            settings=self._api_settings(),
            outbox=store.notifications if self._settings.notify else None,
            closing=self._stopping,
        )

    def _links(self) -> Links:
        key, pages = link_key(self._bootstrap.token), pages_host(self._settings, self._address)
        return Links(key, self._address, clock.now, pages)

    def _retention(self) -> RetentionTimer:
        return RetentionTimer(
            parse_age(self._settings.retention_jobs),
            self._store.reader,
            partial(delete_for_user, self.services),
            now=clock.now,
            meters=self.meters,
        )

    def _api_settings(self) -> ApiSettings:
        settings = self._settings
        return ApiSettings(
            version=installed("trainshed"),
            project=settings.project,
            region=settings.region,
            prices=Prices(prices_of(settings.prices)),
            notify=tuple(table.name for table in settings.notify),
            data=str(settings.data),
            retention_jobs=settings.retention_jobs,
            pages=self._address,
        )


def _engine(bootstrap: Bootstrap, interpreters: Interpreters) -> Engine:
    settings = bootstrap.settings
    intercepting = certificates.interception_files(settings.data.resolve())
    context = EngineContext(
        data=settings.data,
        settings=engine_settings(settings),
        secrets=Vault(
            bootstrap.store.secrets, bootstrap.sealer, clock.now, bootstrap.jobs.reduction_token
        ),
        now=clock.now,
        # A program sees what it runs in of the cache, but not what others run in.
        hidden=(settings.data, settings.cache),
        kept_ports=bootstrap.ports,
        access=ServiceAccess(
            storage_socket=bootstrap.bucket_socket.resolve(),
            rest_socket=bootstrap.programs.rest_path.resolve(),
            grpc_socket=bootstrap.programs.grpc_path.resolve(),
            certificate=intercepting.certificate,
            trust=intercepting.trust,
        ),
        rules=ProgramRules(
            settings.isolation or None,
            settings.max_processes or None,
            settings.enforce_disk,
            tuple(Path(path) for path in settings.visible_paths.split(":") if path),
            autopsy_ttl=round(settings.autopsy_ttl * 3600e9),
        ),
        cache=settings.cache,
        interpreters=lambda: {Path(python.prefix) for python in interpreters.search()},
    )
    try:
        return factory(settings.engine)(context)
    except (LookupError, ImportError, ValueError) as failure:
        raise SettingsError(f"The engine {settings.engine!r} cannot be built: {failure}") from None


async def _printed(logs: LogReader, job: Job) -> Sequence[tuple[Nanos, str]]:
    source = StreamSource(job.uid, job.attempt, job.spec.primary)
    return (await logs.sampled(source, 0, 1 << 20)).lines
