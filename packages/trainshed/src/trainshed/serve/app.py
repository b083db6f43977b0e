"""Builds and connects what runs in a service, from what the bootstrap opened: engine, runtimes, controller,
API services."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from trainshed.api.calls.links import Links, Passes, ViewLinks
from trainshed.api.calls.services import ApiSettings, Services, Views
from trainshed.api.calls.tickets import Tickets
from trainshed.api.resources.jobs import delete_for_user
from trainshed.buckets.local import LocalStore
from trainshed.controller.board_curves import BoardStores
from trainshed.controller.controller import Controller
from trainshed.controller.curves import CurveStores, JobCurves
from trainshed.controller.exports import ModelExporter
from trainshed.controller.idling import IdleWatch
from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.controller.outbox import OutboxWorker
from trainshed.controller.parents import ParentStores
from trainshed.controller.ports import Ports
from trainshed.controller.retention import Removals, RetentionTimer
from trainshed.controller.study_operations import StudyOperations
from trainshed.core.failure.overrides import table_with
from trainshed.core.idling import IdlePolicy
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.transition import FailurePolicy
from trainshed.core.names import DEFAULT_BUCKET, JobUid, ReplicaId
from trainshed.core.retention import Retention, RetentionReport
from trainshed.core.streams import StreamSource
from trainshed.core.units import Nanos
from trainshed.core.usage import Prices
from trainshed.datasets.service import SplitProcesses
from trainshed.engines.launch.devices import NvmlDevices
from trainshed.engines.port import BringsImages, Engine, ServiceAccess, TakesMemory
from trainshed.engines.registry import EngineContext, ProgramRules, factory
from trainshed.engines.streams import LogInventory, ServiceStreams
from trainshed.engines.terminals import NoTerminals, Terminals
from trainshed.eventloop.lag import LagMeter
from trainshed.notifying.senders import Senders
from trainshed.notifying.targets import Smtp, mail_server
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import ContainerImages
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import certificates, clock
from trainshed.serve.addresses import browsers_address, pages_host
from trainshed.serve.bootstrap import Bootstrap
from trainshed.serve.bucket_adapters import (
    BucketAdapter,
    BucketCopies,
    BucketDirectories,
    BucketSummaries,
)
from trainshed.serve.engine_adapters import (
    EngineLogs,
    EngineShells,
    Vault,
    build_terms,
    job_certificate,
    link_key,
    viewer_terms,
)
from trainshed.serve.setting_types import prices_of
from trainshed.serve.settings import Settings, SettingsError, engine_settings
from trainshed.store.logs.metrics import MetricsReader
from trainshed.store.logs.progress import Place
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.notices import Notices
from trainshed.store.points import POINTS, PointFiles
from trainshed.store.sqlite.database import Store
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.telemetry.meters import Meters
from trainshed.viewers.service import LocalViewers, ViewerPool

_TENSORBOARDS = 4
"""TensorBoards that run at once, each with at most 2 GiB; beyond that the one used least lately is ended."""
_ANY_NUMBER = 1 << 30
"""The limit of replicas at once if a cluster itself limits how many it takes."""


class App(Struct, frozen=True):
    """What `wire` connected, as far as a service starts, asks and closes it."""

    controller: Controller
    suggesting: StudyOperations
    exports: ModelExporter
    advisor: ProcessAdvisor
    runtimes: LocalRuntimes
    services: Services
    lag: LagMeter
    viewers: LocalViewers
    retention: RetentionTimer
    outbox: OutboxWorker
    idling: IdleWatch
    meters: Meters


class _Shared(Struct, frozen=True):
    """What several parts of a service are built with."""

    bootstrap: Bootstrap
    engine: Engine
    buckets: LocalStore
    adapter: BucketAdapter
    splits: SplitProcesses
    advisor: ProcessAdvisor
    points: PointFiles
    logs: LogReader
    notices: Notices
    meters: Meters
    new_uid: Callable[[], JobUid]

    @property
    def settings(self) -> Settings:
        return self.bootstrap.settings

    @property
    def store(self) -> Store:
        return self.bootstrap.store


def wire(bootstrap: Bootstrap, stopping: asyncio.Event) -> App:
    """Build the app; nothing runs yet. `stopping`: set when the service is to take no more work."""
    settings, store = bootstrap.settings, bootstrap.store
    shared = _shared(bootstrap)
    notices, meters = shared.notices, shared.meters
    lag = LagMeter()
    runtimes = _runtimes(shared)
    suggesting = StudyOperations(store.studies, shared.advisor, notices, clock.now)
    exports = _exports(shared)
    outbox = OutboxWorker(
        Senders(settings.notify, _mail_server(settings), clock.now),
        store.notifications,
        store.intake,
        clock.now,
        meters,
        page=_address(bootstrap),
    )
    controller = _controller(shared, runtimes, outbox)
    viewers = _viewers(shared, runtimes, stopping)
    # The API reports on removals through the timer, which itself removes jobs through the API's services.
    services = _services(
        shared,
        runtimes=runtimes,
        controller=controller,
        suggesting=suggesting,
        exports=exports,
        viewers=viewers,
        lag=lag,
        retention=lambda: retention,
        stopping=stopping,
    )
    retention = _retention(shared, services)
    return App(
        controller=controller,
        suggesting=suggesting,
        exports=exports,
        advisor=shared.advisor,
        runtimes=runtimes,
        services=services,
        lag=lag,
        viewers=viewers,
        retention=retention,
        outbox=outbox,
        idling=_idling(shared, controller),
        meters=meters,
    )


def _shared(bootstrap: Bootstrap) -> _Shared:
    settings, data = bootstrap.settings, bootstrap.settings.data
    buckets = LocalStore(data / "buckets", now=clock.now, rules=bootstrap.bucket_rules)
    buckets.catalog.ensure(DEFAULT_BUCKET, settings.region)
    for table in settings.buckets:
        buckets.catalog.ensure(table.name, settings.region, table.project)
    engine = _engine(bootstrap)
    return _Shared(
        bootstrap=bootstrap,
        engine=engine,
        buckets=buckets,
        adapter=BucketAdapter(buckets, bootstrap.buckets.expect),
        splits=SplitProcesses(bootstrap.bucket_socket.resolve()),
        advisor=ProcessAdvisor(),
        points=PointFiles(data / POINTS),
        logs=LogReader(engine.streams, ServiceStreams(data / "logs")),
        notices=Notices(),
        meters=Meters(),
        new_uid=clock.JobUids(),
    )


def _runtimes(shared: _Shared) -> LocalRuntimes:
    settings, engine = shared.settings, shared.engine
    return LocalRuntimes(
        settings.cache,
        shared.adapter,
        RuntimeSettings(
            exact=settings.exact_runtimes,
            image_map=settings.images,
            terms=build_terms(settings, engine, shared.bootstrap.ports),
            has_gpu=lambda: bool(NvmlDevices(os.environ).find()),
        ),
        now=clock.now,
        images=_images(settings, engine),
    )


def _exports(shared: _Shared) -> ModelExporter:
    copies = BucketCopies(shared.bootstrap.gateway_socket)
    return ModelExporter(shared.store.operations, copies, shared.notices, clock.now)


def _controller(shared: _Shared, runtimes: LocalRuntimes, outbox: OutboxWorker) -> Controller:
    settings, store, engine = shared.settings, shared.store, shared.engine
    return Controller(
        intake=store.intake,
        ledger=store.ledger,
        reader=store.reader,
        logs=shared.logs,
        ports=lambda report: Ports(
            engine=engine,
            runtimes=runtimes,
            datasets=shared.splits,
            buckets=shared.adapter,
            log=ServiceLog(settings.data / "logs", shared.notices.publish),
            launch_defaults=_launch_defaults(settings),
            report=report,
            grace=round(settings.grace * 1e9),
        ),
        notices=shared.notices,
        now=clock.now,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        stores=_parent_stores(shared),
        scheduling=_scheduling_policy(settings, engine),
        failures=FailurePolicy(table_with(settings.failure_rules)),
        max_child_jobs=settings.max_child_jobs,
        curves=JobCurves(_curve_stores(shared)),
        meters=shared.meters,
        outbox=outbox,
        prices=Prices(prices_of(settings.prices)),
    )


def _launch_defaults(settings: Settings) -> LaunchDefaults:
    return LaunchDefaults(
        memory_cap=settings.memory_per_replica << 20,
        warm_starts=settings.warm_starts if settings.keeps_imports else "off",
        keeps_imports=settings.keeps_imports,
    )


def _scheduling_policy(settings: Settings, engine: Engine) -> Policy:
    return Policy(
        strict=settings.strict,
        max_replicas=_ANY_NUMBER if settings.is_handed_down else settings.max_replicas,
        memory_cap=settings.memory_per_replica << 20,
        memory_beside=engine.memory_beside if isinstance(engine, TakesMemory) else 0,
    )


def _idling(shared: _Shared, controller: Controller) -> IdleWatch:
    settings = shared.settings
    policy = IdlePolicy(round(settings.idle_gpus * 1e9), round(settings.idle_stop * 1e9))
    return IdleWatch(
        policy,
        running=controller.running,
        usages=shared.logs,
        reader=shared.store.reader,
        intake=shared.store.intake,
        wake=controller.wake,
        publish=shared.notices.publish,
        now=clock.now,
    )


def _services(
    shared: _Shared,
    *,
    runtimes: LocalRuntimes,
    controller: Controller,
    suggesting: StudyOperations,
    exports: ModelExporter,
    viewers: LocalViewers,
    lag: LagMeter,
    retention: Callable[[], RetentionTimer],
    stopping: asyncio.Event,
) -> Services:
    """Return what the API's methods work with. `retention`: called when it is needed, not before."""
    bootstrap, store, engine = shared.bootstrap, shared.store, shared.engine

    def retention_report() -> RetentionReport | None:
        timer = retention()
        return timer.report if timer.retention.is_set else None

    return Services(
        intake=store.intake,
        reader=store.reader,
        studies=store.studies,
        models=store.models,
        evaluations=store.evaluations,
        metadata=store.metadata,
        tensorboards=store.tensorboards,
        datasets=store.datasets,
        points=shared.points,
        curves=store.curves,
        secrets=store.secrets,
        sealer=bootstrap.sealer,
        access=bootstrap.access,
        logs=shared.logs,
        notices=shared.notices,
        runtimes=runtimes.catalog,
        buckets=shared.adapter,
        shells=_shells(bootstrap, engine),
        views=_views(bootstrap, viewers),
        signing_in=bootstrap.signing_in,
        program_logs=EngineLogs(engine),
        promises=lambda: asdict(engine.capabilities()),
        lag=lag.reading,
        started=clock.now(),
        meters=shared.meters,
        now=clock.now,
        new_uid=shared.new_uid,
        wake=controller.wake,
        create=controller.create,
        suggest=suggesting.wake,
        operations=store.operations,
        exports=exports,
        capacity=controller,
        settings=_api_settings(bootstrap),
        outbox=store.notifications if shared.settings.notify else None,
        closing=stopping,
        retention=retention_report,
    )


def _retention(shared: _Shared, services: Services) -> RetentionTimer:
    settings = shared.settings
    return RetentionTimer(
        Retention(settings.retention_jobs, size=settings.retention_size),
        reader=shared.store.reader,
        intake=shared.store.intake,
        inventory=LogInventory(settings.data / "logs"),
        removals=Removals(job=partial(delete_for_user, services), log=shared.logs.remove),
        now=clock.now,
        meters=shared.meters,
    )


def _engine(bootstrap: Bootstrap) -> Engine:
    settings = bootstrap.settings
    intercepting = certificates.interception_files(settings.data.resolve())
    context = EngineContext(
        data=settings.data,
        settings=engine_settings(settings),
        secrets=Vault(
            bootstrap.store.secrets,
            bootstrap.sealer,
            clock.now,
            bootstrap.jobs.reduction_token,
            lambda uid: job_certificate(uid, bootstrap.jobs.authority_seed(uid)),
        ),
        now=clock.now,
        # A program sees what it runs in of the cache, but not what others run in.
        hidden=(settings.data, settings.cache),
        kept_ports=bootstrap.ports,
        access=ServiceAccess(
            storage_socket=bootstrap.bucket_socket.resolve(),
            rest_socket=bootstrap.programs.rest_path.resolve(),
            grpc_socket=bootstrap.programs.grpc_path.resolve(),
            rest_url=f"http://127.0.0.1:{bootstrap.listener.getsockname()[1]}",
            certificate=intercepting.certificate,
            trust=intercepting.trust,
        ),
        rules=ProgramRules(
            settings.isolation,
            settings.max_processes,
            settings.enforce_disk,
            tuple(Path(path) for path in settings.visible_paths.split(":") if path),
            autopsy_ttl=round(settings.autopsy_ttl * 3600e9),
        ),
        cache=settings.cache,
        interpreters=_interpreter_prefixes(settings),
    )
    try:
        return factory(settings.engine)(context)
    except (LookupError, ImportError, ValueError) as failure:
        raise SettingsError(f"The engine {settings.engine!r} cannot be built: {failure}") from None


def _interpreter_prefixes(settings: Settings) -> Callable[[], Collection[Path]]:
    interpreters = Interpreters(settings.cache / "interpreters.json")
    return lambda: {Path(interpreter.prefix) for interpreter in interpreters.search()}


def _address(bootstrap: Bootstrap) -> str:
    return browsers_address(bootstrap.settings, bootstrap.listener.getsockname()[1])


def _viewers(shared: _Shared, runtimes: LocalRuntimes, stopping: asyncio.Event) -> LocalViewers:
    settings = shared.settings
    return LocalViewers(
        settings.data / "viewers",
        runtimes,
        BucketDirectories(shared.buckets).find,
        viewer_terms(settings, shared.engine),
        pool=ViewerPool(_TENSORBOARDS),
        closing=stopping,
    )


def _views(bootstrap: Bootstrap, viewers: LocalViewers) -> Views:
    address = _address(bootstrap)
    return Views(ViewLinks(Passes(link_key(bootstrap.token)), address, clock.now), viewers)


def _shells(bootstrap: Bootstrap, engine: Engine) -> EngineShells:
    settings = bootstrap.settings
    address = _address(bootstrap)
    passes = Passes(link_key(bootstrap.token))
    links = Links(passes, address, clock.now, pages_host(settings, address))
    allowed = settings.shell == "on"
    shells = engine if isinstance(engine, Terminals) else NoTerminals()
    return EngineShells(shells, Tickets(clock.now), links, allowed=allowed)


def _images(settings: Settings, engine: Engine) -> ContainerImages:
    access = engine.registry_access if isinstance(engine, BringsImages) else None
    if access is not None:
        # Loads a client of registries, which a service of one machine does not need.
        from trainshed.runtimes.images.registry import ClusterImages, Registries

        return ClusterImages(Registries(access.auth, access.insecure), now=clock.now)

    def unsupported() -> str:
        if engine.capabilities().images:
            return ""
        return (
            "Container images need namespaces, so that their files can take the place of the machine's, "
            f"and this service has none (its isolation is {engine.capabilities().isolation})."
        )

    return Images(
        settings.cache / "images",
        ImageSettings(settings.container_tool, settings.image_pull),
        now=clock.now,
        unsupported=unsupported,
    )


def _parent_stores(shared: _Shared) -> ParentStores:
    store = shared.store
    return ParentStores(
        intake=store.intake,
        reader=store.reader,
        studies=store.studies,
        models=store.models,
        advisor=shared.advisor,
        metrics=MetricsReader(shared.engine.streams),
        summaries=BucketSummaries(shared.buckets),
        buckets=BucketAdapter(shared.buckets),
        printed=partial(_printed, shared.logs),
        now=clock.now,
        new_uid=shared.new_uid,
    )


async def _printed(logs: LogReader, job: Job) -> Sequence[tuple[Nanos, str]]:
    primary = ReplicaId(job.spec.pools[0].position, 0)
    sample = await logs.sampled(StreamSource(job.uid, job.attempt, primary), Place(), 1 << 20)
    return sample.lines


def _curve_stores(shared: _Shared) -> CurveStores:
    store = shared.store
    boards = BoardStores(
        store.tensorboards, store.metadata, shared.points, shared.new_uid, clock.now
    )
    return CurveStores(
        curves=store.curves,
        boards=boards,
        reader=store.reader,
        intake=store.intake,
        places=BucketSummaries(shared.buckets),
    )


def _mail_server(settings: Settings) -> Smtp | None:
    password = os.environ.get("TRAINSHED_SMTP_PASSWORD", "")
    return mail_server(settings.smtp, password)


def _api_settings(bootstrap: Bootstrap) -> ApiSettings:
    settings = bootstrap.settings
    return ApiSettings(
        version=installed("trainshed"),
        project=settings.project,
        region=settings.region,
        bucket=DEFAULT_BUCKET,
        prices=Prices(prices_of(settings.prices)),
        notify=tuple(table.name for table in settings.notify),
        data=str(settings.data),
        pages=_address(bootstrap),
    )
