"""Builds and connects the parts of a service: engine, runtimes, controller and API services."""

import asyncio
import hmac
import os
import socket
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from trainshed.api.additions import AdditionContext, AdditionUnusable, load_additions, registry_with
from trainshed.api.calls.links import Links, Tickets
from trainshed.api.calls.services import ApiSettings, Services, Tracking
from trainshed.api.resources.jobs import delete_for_user
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.controller.carrier import Ports
from trainshed.controller.controller import Controller
from trainshed.controller.curves import CurveStores, JobCurves
from trainshed.controller.exports import ExportWorker
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
from trainshed.engines.port import BringsImages, Engine, LogWriter, ProgramRules, ServiceAccess, TakesMemory
from trainshed.engines.registry import EngineContext, factory
from trainshed.engines.streams import ServiceStreams
from trainshed.notifying.senders import Senders
from trainshed.notifying.targets import mail_server
from trainshed.runtimes.images.cluster import ClusterImages
from trainshed.runtimes.images.service import Images
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import certificates, clock
from trainshed.serve.addresses import browsers_address, pages_host
from trainshed.serve.bootstrap import Bootstrap
from trainshed.serve.bucket_adapters import BucketAdapter, find_log_directory, find_summaries
from trainshed.serve.engine_adapters import Vault, build_terms, link_key
from trainshed.serve.setting_types import parse_age, parse_size, prices_of
from trainshed.serve.settings import Settings, SettingsError, engine_settings
from trainshed.serve.start_errors import ServiceStartFailed
from trainshed.store.logs.metrics import read_metrics
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.notices import Notices
from trainshed.store.points import POINTS, PointFiles
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.telemetry.meters import LagMeter, Meters

_UNLIMITED_REPLICAS = 1 << 30
"""Used as the limit of concurrent replicas if a cluster applies its own limit."""


class _Basics(Struct, frozen=True):
    """Values that all builders use."""

    bootstrap: Bootstrap
    engine: Engine
    #: An event that is set when the service stops accepting work.
    stopping: asyncio.Event
    #: The address of the service for browsers.
    address: str
    api_settings: ApiSettings
    new_uid: clock.JobUids
    notices: Notices
    meters: Meters
    advisor: ProcessAdvisor


class _Stores(Struct, frozen=True):
    """Files of the data directory, except for the database that the bootstrap opens."""

    objects: ObjectStore
    buckets: BucketAdapter
    points: PointFiles
    logs: LogReader
    log_directory: Path


class App:
    """The parts of a service, built and connected, but not started."""

    def __init__(self, bootstrap: Bootstrap, stopping: asyncio.Event) -> None:
        """`stopping`: an event that is set when the service stops accepting work."""
        settings, store, now = bootstrap.settings, bootstrap.store, clock.now
        self.meters, self.lag, self.advisor = Meters(), LagMeter(), ProcessAdvisor()
        interpreters = Interpreters()
        address = browsers_address(settings, bootstrap.listener.getsockname()[1])
        basics = _Basics(
            bootstrap=bootstrap,
            engine=_build_engine(bootstrap, interpreters),
            stopping=stopping,
            address=address,
            api_settings=_api_settings(settings, address),
            new_uid=clock.JobUids(),
            notices=Notices(),
            meters=self.meters,
            advisor=self.advisor,
        )
        stores = _build_stores(basics)
        self.runtimes = _build_runtimes(basics, stores.buckets, interpreters)
        links = Links(link_key(bootstrap.token), basics.address, now, pages_host(settings, basics.address))
        context = _addition_context(basics, stores, self.runtimes, links)
        try:
            self.additions = load_additions(context)
            self.registry = registry_with(self.additions)
        except AdditionUnusable as failure:
            raise ServiceStartFailed(str(failure)) from failure
        brought = (addition.tracking for addition in self.additions.values())
        tracking = next(filter(None, brought), None)
        self.suggesting = StudyOperations(store.studies, self.advisor, basics.notices, now)
        # Exports do not share processes with the splits of datasets. Jobs wait for these splits, and many
        # exports must not delay them.
        writing = SplitProcesses(bootstrap.bucket_socket.resolve())
        self.exports = ExportWorker(store.studies, writing, basics.notices, now)
        password = os.environ.get("TRAINSHED_SMTP_PASSWORD", "")
        self.outbox = OutboxWorker(
            Senders(settings.notify, mail_server(settings.smtp, password), now),
            store.notifications,
            store.intake,
            now,
            self.meters,
            page=basics.address,
        )
        self.controller = _build_controller(basics, stores, self.runtimes, tracking, self.outbox)
        self.services = _build_services(basics, stores, self, links, tracking)
        for addition in self.additions.values():
            if addition.reconcilers is not None:
                self.controller.add_reconcilers(addition.reconcilers(self.services, self.registry))
        self.retention = RetentionTimer(
            parse_age(settings.retention_jobs) if settings.retention_jobs else 0,
            store.reader,
            partial(delete_for_user, self.services),
            now=now,
            meters=self.meters,
        )
        self.idling = IdleWatch(
            IdlePolicy(round(settings.idle_gpus * 1e9), round(settings.idle_stop * 1e9)),
            running=self.controller.running_jobs,
            usages=stores.logs,
            reader=store.reader,
            intake=store.intake,
            wake=self.controller.wake,
            publish=basics.notices.publish,
            now=now,
        )


def _api_settings(settings: Settings, address: str) -> ApiSettings:
    return ApiSettings(
        version=installed("trainshed"),
        project=settings.project,
        region=settings.region,
        pages=address,
        prices=Prices(prices_of(settings.prices)),
        notify=tuple(table.name for table in settings.notify),
        data=str(settings.data),
        retention_jobs=settings.retention_jobs,
        queue=settings.engine.title() if settings.has_cluster_queue else "",
    )


def _build_stores(basics: _Basics) -> _Stores:
    bootstrap = basics.bootstrap
    settings = bootstrap.settings
    objects = ObjectStore(settings.data / "buckets", now=clock.now, rules=bootstrap.bucket_rules)
    objects.catalog.ensure(DEFAULT_BUCKET, settings.region)
    for table in settings.buckets:
        objects.catalog.ensure(table.name, settings.region, table.project)
    buckets = BucketAdapter(objects)
    bootstrap.access.forget = buckets.forget
    log_directory = settings.data / "logs"
    return _Stores(
        objects=objects,
        buckets=buckets,
        points=PointFiles(settings.data / POINTS),
        logs=LogReader(basics.engine.streams, ServiceStreams(log_directory)),
        log_directory=log_directory,
    )


def _build_runtimes(basics: _Basics, buckets: BucketAdapter, interpreters: Interpreters) -> LocalRuntimes:
    settings = basics.bootstrap.settings
    return LocalRuntimes(
        settings.cache,
        buckets,
        RuntimeSettings(
            exact=settings.exact_runtimes,
            image_map=settings.images,
            cache_size=parse_size(settings.cache_size) if settings.cache_size else None,
            terms=build_terms(settings, basics.engine, basics.bootstrap.ports),
            has_gpu=lambda: bool(find_devices(os.environ)),
        ),
        now=clock.now,
        images=_images(settings, basics.engine),
        interpreters=interpreters,
    )


def _addition_context(
    basics: _Basics, stores: _Stores, runtimes: LocalRuntimes, links: Links
) -> AdditionContext:
    bootstrap = basics.bootstrap
    return AdditionContext(
        settings=basics.api_settings,
        data=bootstrap.settings.data,
        now=clock.now,
        closing=basics.stopping,
        tokens=bootstrap.tokens,
        authenticate=bootstrap.issuers.authenticate,
        issuers=bootstrap.issuers,
        sign_in_key=hmac.digest(bootstrap.jobs.account_secret, b"sign-in", "sha256"),
        gateway=bootstrap.gateway_socket,
        access=bootstrap.access,
        links=links,
        store=bootstrap.store,
        points=stores.points,
        new_uid=basics.new_uid,
        runtimes=runtimes,
        terms=build_terms(bootstrap.settings, basics.engine),
        event_files=partial(find_log_directory, stores.objects),
    )


def _build_controller(
    basics: _Basics, stores: _Stores, runtimes: LocalRuntimes, tracking: Tracking | None, outbox: OutboxWorker
) -> Controller:
    bootstrap, engine, now = basics.bootstrap, basics.engine, clock.now
    settings, store = bootstrap.settings, bootstrap.store
    memory_cap = settings.memory_per_replica << 20 or None
    curves = JobCurves(
        CurveStores(
            curves=store.curves,
            points=stores.points,
            reader=store.reader,
            intake=store.intake,
            directory=partial(find_summaries, stores.objects),
            board=tracking.curves if tracking is not None else lambda _: None,
            new_uid=basics.new_uid,
            now=now,
        )
    )
    return Controller(
        intake=store.intake,
        ledger=store.ledger,
        reader=store.reader,
        logs=stores.logs,
        ports=lambda report: Ports(
            engine=engine,
            runtimes=runtimes,
            datasets=SplitProcesses(bootstrap.bucket_socket.resolve()),
            shown_buckets=stores.buckets.visible_buckets,
            write_probe=stores.buckets.write_probe,
            log=ServiceLog(stores.log_directory, basics.notices.publish),
            # Programs start warm only on the local engine, because the nodes of a cluster have no preloaders.
            launch_defaults=LaunchDefaults(
                memory_cap, settings.warm_starts if settings.engine == "local" else "off"
            ),
            report=report,
            grace=round(settings.grace * 1e9),
        ),
        notices=basics.notices,
        now=now,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        stores=ParentStores(
            intake=store.intake,
            reader=store.reader,
            studies=store.studies,
            models=store.models,
            advisor=basics.advisor,
            reported_measurements=partial(read_metrics, engine.streams),
            last_written=stores.buckets.last_written,
            printed_lines=partial(_read_printed_lines, stores.logs),
            logged_points=curves.read_points,
            now=now,
            new_uid=basics.new_uid,
        ),
        scheduling=Policy(
            strict=settings.strict,
            max_replicas=_UNLIMITED_REPLICAS if settings.has_cluster_queue else settings.max_replicas,
            memory_cap=memory_cap,
            half_life=round(settings.half_life * 86400e9),
            memory_overhead=engine.memory_beside if isinstance(engine, TakesMemory) else 0,
        ),
        failures=FailurePolicy(table_with(settings.failure_rules)),
        max_child_jobs=settings.max_child_jobs,
        curves=curves,
        meters=basics.meters,
        outbox=outbox,
        prices=basics.api_settings.prices,
        resources=store.persistent_resources,
    )


def _build_services(
    basics: _Basics, stores: _Stores, app: App, links: Links, tracking: Tracking | None
) -> Services:
    bootstrap, engine = basics.bootstrap, basics.engine
    settings, store = bootstrap.settings, bootstrap.store
    return Services(
        intake=store.intake,
        reader=store.reader,
        studies=store.studies,
        models=store.models,
        evaluations=store.evaluations,
        datasets=store.datasets,
        points=stores.points,
        curves=store.curves,
        secrets=store.secrets,
        sealer=bootstrap.sealer,
        access=bootstrap.access,
        logs=stores.logs,
        notices=basics.notices,
        runtimes=app.runtimes.catalog,
        buckets=stores.buckets,
        links=links,
        tickets=Tickets(clock.now),
        shells=engine if isinstance(engine, Terminals) else NoTerminals(),
        allows_shells=settings.shell == "on",
        tracking=tracking,
        write_log=engine.write_log if isinstance(engine, LogWriter) else None,
        promises=lambda: asdict(engine.capabilities()),
        lag=app.lag.reading,
        start_time=clock.now(),
        meters=basics.meters,
        now=clock.now,
        new_uid=basics.new_uid,
        wake=app.controller.wake,
        create=app.controller.create,
        suggest=app.suggesting.wake,
        exports=app.exports,
        outlook=basics.advisor.outlook,
        capacity=app.controller,
        reservations=app.controller.reservations,
        settings=basics.api_settings,
        outbox=store.notifications if settings.notify else None,
        closing=basics.stopping,
    )


def _images(settings: Settings, engine: Engine) -> Images | ClusterImages:
    read = engine.read_image if isinstance(engine, BringsImages) else None
    if read is not None:
        return ClusterImages(read, now=clock.now)

    def unsupported() -> str | None:
        if engine.capabilities().images:
            return None
        return "Container images need namespaces, so that their files can replace those of the machine, "

    place = settings.cache / "images"
    return Images(place, settings.container_tool, now=clock.now, unsupported=unsupported)


def _build_engine(bootstrap: Bootstrap, interpreters: Interpreters) -> Engine:
    settings = bootstrap.settings
    intercepting = certificates.interception_files(settings.data.resolve())
    context = EngineContext(
        data=settings.data,
        settings=engine_settings(settings),
        secrets=Vault(bootstrap.store.secrets, bootstrap.sealer, bootstrap.jobs.reduction_token),
        now=clock.now,
        # Hide these directories from programs. In the cache, a program still sees its own runtime, but not
        # the runtimes of other programs.
        hidden=(settings.data, settings.cache),
        kept_ports=bootstrap.ports,
        access=ServiceAccess(
            storage_socket=bootstrap.bucket_socket.resolve(),
            rest_socket=bootstrap.programs_path.resolve(),
            grpc_socket=bootstrap.programs_grpc_path.resolve(),
            certificate=intercepting.certificate,
            trust=intercepting.trust,
        ),
        rules=ProgramRules(
            settings.isolation,
            settings.max_processes or None,
            settings.enforce_disk,
            tuple(filter(None, settings.visible_paths.split(":"))),
            autopsy_ttl=round(settings.autopsy_ttl * 3600e9) or None,
        ),
        cache=settings.cache,
        interpreters=lambda: {Path(python.prefix) for python in interpreters.search()},
    )
    try:
        return factory(settings.engine)(context)
    except (LookupError, ImportError, ValueError) as failure:
        raise SettingsError(f"The engine {settings.engine!r} cannot be built: {failure}") from None


async def _read_printed_lines(logs: LogReader, job: Job) -> Sequence[tuple[Nanos, str]]:
    source = StreamSource(job.uid, job.attempt, job.spec.primary)
    return (await logs.sample(source, 0, 1 << 20)).lines
