"""Builds and connects what runs in a service, from what the bootstrap opened: engine, runtimes, controller,
API services."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from trainshed.api.calls.services import ApiSettings, Services, Views
from trainshed.api.calls.tickets import Links, Tickets
from trainshed.api.calls.view_links import ViewLinks
from trainshed.api.resources.jobs import delete_for_user
from trainshed.buckets.local import LocalStore
from trainshed.controller.board_curves import BoardStores
from trainshed.controller.controller import Controller
from trainshed.controller.curves import CurveStores, JobCurves
from trainshed.controller.data_exports import DataExporter
from trainshed.controller.idling import IdleWatch
from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.controller.model_exports import ModelExporter
from trainshed.controller.operation_worker import OperationWorker
from trainshed.controller.outbox import OutboxWorker
from trainshed.controller.parents import ParentStores
from trainshed.controller.ports import Ports
from trainshed.controller.retention import Removals, RetentionTimer
from trainshed.controller.study_operations import StudyOperations
from trainshed.core.failure.overrides import table_with
from trainshed.core.idling import IdlePolicy
from trainshed.core.lifecycle.transition import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.core.retention import Retention
from trainshed.datasets.service import SplitProcesses
from trainshed.engines.launch.devices import NvmlDevices
from trainshed.engines.log_inventory import LogInventory
from trainshed.engines.port import BringsImages, Engine, ServiceAccess, TakesMemory
from trainshed.engines.registry import EngineContext, ProgramRules, factory
from trainshed.engines.streams import ServiceStreams
from trainshed.engines.terminals import NoTerminals, Terminals
from trainshed.eventloop.lag import LagMeter
from trainshed.loading.versions import installed
from trainshed.notifying.senders import Senders
from trainshed.notifying.targets import Smtp
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import ContainerImages
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import certificates, clock
from trainshed.serve.addresses import browsers_address
from trainshed.serve.bootstrap import Bootstrap
from trainshed.serve.bucket_adapters import (
    BucketAdapter,
    BucketCopies,
    BucketDirectories,
    BucketHistory,
    BucketSummaries,
)
from trainshed.serve.engine_adapters import (
    EngineLogs,
    EngineShells,
    build_terms,
    link_key,
    viewer_terms,
)
from trainshed.serve.setting_facts import described
from trainshed.serve.settings import Settings, SettingsError, engine_settings
from trainshed.serve.vault import Vault, job_certificate
from trainshed.store.logs.metrics import MetricsReader
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.notices import Notices
from trainshed.store.points import POINTS, PointFiles
from trainshed.store.records import OperationKind
from trainshed.studies.advisor.client import ProcessAdvisor
from trainshed.studies.port import Advisor, EngineName
from trainshed.telemetry.meters import Meters
from trainshed.telemetry.spans import SpanSink
from trainshed.viewers.pool import ViewerPool
from trainshed.viewers.service import LocalViewers

_ANY_NUMBER = 1 << 30
"""Replicas at once, where a cluster says itself how many it takes."""


class App(Struct, frozen=True):
    """What `wire` connected, as far as a service starts, asks and closes it."""

    controller: Controller
    suggesting: StudyOperations
    exports: OperationWorker
    advisor: ProcessAdvisor
    runtimes: LocalRuntimes
    services: Services
    lag: LagMeter
    #: None: none are started.
    viewers: LocalViewers | None
    retention: RetentionTimer
    outbox: OutboxWorker
    idling: IdleWatch
    meters: Meters


def wire(bootstrap: Bootstrap, stopping: asyncio.Event) -> App:
    """Build the app; nothing runs yet. `stopping`: set when the service is to take no more work."""
    settings, data = bootstrap.settings, bootstrap.settings.data
    buckets = LocalStore(data / "buckets", now=clock.now, rules=bootstrap.bucket_rules)
    buckets.ensure_bucket(settings.default_bucket, settings.region)
    for table in settings.buckets:
        buckets.ensure_bucket(table.name, settings.region, table.project)
    adapter, notices = BucketAdapter(buckets, bootstrap.buckets.expect), Notices()
    new_uid, lag, meters = clock.JobUids(), LagMeter(clock.now), Meters(spans=_spans(settings))
    points = PointFiles(data / POINTS)
    engine = _engine(bootstrap)
    logs = LogReader(engine.streams, ServiceStreams(data / "logs"))
    choosing = RuntimeSettings(
        exact=settings.exact_runtimes,
        image_map=settings.images,
        terms=build_terms(settings, engine, bootstrap.ports),
        has_gpu=lambda: bool(NvmlDevices(os.environ).find()),
    )
    runtimes = LocalRuntimes(
        settings.cache, adapter, choosing, now=clock.now, images=_images(settings, engine)
    )
    advisor = ProcessAdvisor(EngineName(settings.tuning_engine))
    suggesting = StudyOperations(
        bootstrap.store.studies, advisor, notices, clock.now, settings.max_study_trials
    )
    splits = SplitProcesses(bootstrap.bucket_socket.resolve())
    exports = OperationWorker(
        bootstrap.store.operations,
        {
            OperationKind.EXPORT: ModelExporter(BucketCopies(bootstrap.gateway_socket)),
            OperationKind.EXPORT_DATA: DataExporter(splits),
        },
        notices,
        clock.now,
    )
    senders = Senders(settings.notify, _smtp(settings), clock.now)
    outbox = OutboxWorker(
        senders,
        bootstrap.store.notifications,
        bootstrap.store.intake,
        clock.now,
        meters,
        page=_address(bootstrap),
    )
    controller = Controller(
        intake=bootstrap.store.intake,
        ledger=bootstrap.store.ledger,
        reader=bootstrap.store.reader,
        logs=logs,
        ports=lambda report: Ports(
            engine=engine,
            runtimes=runtimes,
            datasets=splits,
            buckets=adapter,
            log=ServiceLog(data / "logs", notices.publish),
            launch_defaults=LaunchDefaults(
                memory_cap=settings.memory_per_replica << 20,
                stall_after=round(settings.stall_after * 1e9),
                progress_reports=settings.progress_reports,
                warm_starts=settings.warm_starts if settings.keeps_imports else "off",
                ready_interpreters=settings.ready_interpreters and settings.keeps_imports,
                keeps_imports=settings.keeps_imports,
            ),
            report=report,
            grace=round(settings.grace * 1e9),
        ),
        notices=notices,
        now=clock.now,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        stores=_parent_stores(bootstrap, engine, advisor, buckets, new_uid),
        scheduling=Policy(
            strict=settings.strict,
            max_replicas=_ANY_NUMBER if settings.is_handed_down else settings.max_replicas,
            patience=round(settings.patience * 1e9),
            public_quotas=settings.quotas == "public",
            memory_cap=settings.memory_per_replica << 20,
            memory_beside=engine.memory_beside if isinstance(engine, TakesMemory) else 0,
        ),
        failures=FailurePolicy(
            table_with(settings.failure_rules),
            settings.max_attempts,
        ),
        curves=JobCurves(_curve_stores(bootstrap, buckets, points, new_uid)),
        meters=meters,
        outbox=outbox,
    )
    idling = IdleWatch(
        _idle_policy(settings),
        running=controller.running,
        usages=logs,
        reader=bootstrap.store.reader,
        intake=bootstrap.store.intake,
        wake=controller.wake,
        publish=notices.publish,
        now=clock.now,
    )
    viewers = _viewers(bootstrap, engine, runtimes, BucketDirectories(buckets), stopping)
    services = Services(
        intake=bootstrap.store.intake,
        reader=bootstrap.store.reader,
        studies=bootstrap.store.studies,
        models=bootstrap.store.models,
        evaluations=bootstrap.store.evaluations,
        metadata=bootstrap.store.metadata,
        tensorboards=bootstrap.store.tensorboards,
        datasets=bootstrap.store.datasets,
        points=points,
        curves=bootstrap.store.curves,
        secrets=bootstrap.store.secrets,
        sealer=bootstrap.sealer,
        logs=logs,
        notices=notices,
        runtimes=runtimes.catalog,
        buckets=adapter,
        history=BucketHistory(data / "buckets", adapter),
        shells=_shells(bootstrap, engine),
        views=_views(bootstrap, viewers) if viewers is not None else None,
        program_logs=EngineLogs(engine),
        promises=lambda: asdict(engine.capabilities()),
        lag=lag.reading,
        started=clock.now(),
        meters=meters,
        now=clock.now,
        new_uid=new_uid,
        wake=controller.wake,
        create=controller.create,
        suggest=suggesting.wake,
        operations=bootstrap.store.operations,
        exports=exports,
        capacity=controller,
        settings=_api_settings(bootstrap),
        outbox=bootstrap.store.notifications if settings.notify else None,
        closing=stopping,
        retention=lambda: retention.report if retention.retention.is_set else None,
        collector=lambda: retention,
    )
    retention = RetentionTimer(
        Retention(settings.retention_jobs, settings.retention_logs, settings.retention_size),
        reader=bootstrap.store.reader,
        intake=bootstrap.store.intake,
        inventory=LogInventory(data / "logs"),
        removals=Removals(job=partial(delete_for_user, services), log=logs.remove),
        now=clock.now,
        meters=meters,
    )
    return App(
        controller,
        suggesting,
        exports,
        advisor,
        runtimes,
        services,
        lag,
        viewers,
        retention,
        outbox,
        idling,
        meters,
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
        # Of the cache a program sees what it runs in, not what others run in.
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
        zygote=bootstrap.zygote,
        survey=bootstrap.survey,
        rules=ProgramRules(
            settings.isolation,
            settings.max_processes,
            settings.usage_every,
            settings.enforce_disk,
            tuple(Path(path) for path in settings.visible_paths.split(":") if path),
            autopsy_ttl=round(settings.autopsy_ttl * 3600e9),
            autopsy_limit=round(settings.autopsy_limit * 2**30),
        ),
        cache=settings.cache,
        interpreters=_interpreter_prefixes(settings),
    )
    try:
        return factory(settings.engine)(context)
    except (LookupError, ImportError, ValueError) as failure:
        raise SettingsError(f"The engine {settings.engine!r} cannot be built: {failure}") from None


def _interpreter_prefixes(settings: Settings) -> Callable[[], Collection[Path]]:
    found = Interpreters(settings.cache / "interpreters.json")
    return lambda: {Path(each.prefix) for each in found.search()}


def _address(bootstrap: Bootstrap) -> str:
    return browsers_address(bootstrap.settings, bootstrap.listener.getsockname()[1])


def _viewers(
    bootstrap: Bootstrap,
    engine: Engine,
    runtimes: LocalRuntimes,
    directories: BucketDirectories,
    stopping: asyncio.Event,
) -> LocalViewers | None:
    settings = bootstrap.settings
    if not settings.tensorboards:
        return None
    return LocalViewers(
        settings.data / "viewers",
        runtimes,
        directories.find,
        viewer_terms(settings, engine),
        pool=ViewerPool(settings.tensorboards, settings.tensorboard_idle),
        closing=stopping,
    )


def _views(bootstrap: Bootstrap, viewers: LocalViewers) -> Views:
    address = _address(bootstrap)
    return Views(ViewLinks(link_key(bootstrap.token), address, clock.now), viewers)


def _shells(bootstrap: Bootstrap, engine: Engine) -> EngineShells:
    settings = bootstrap.settings
    links = Links(link_key(bootstrap.token), _address(bootstrap))
    allowed = settings.shell == "on"
    shells = engine if isinstance(engine, Terminals) else NoTerminals()
    return EngineShells(
        shells, Tickets(clock.now), links, allowed=allowed, idle=settings.shell_idle
    )


def _images(settings: Settings, engine: Engine) -> ContainerImages:
    access = engine.registry_access if isinstance(engine, BringsImages) else None
    if access is not None:
        # A client of registries, which a service of one machine has no use for.
        from trainshed.runtimes.images.in_clusters import ClusterImages
        from trainshed.runtimes.images.registry import Registries

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


def _parent_stores(
    bootstrap: Bootstrap,
    engine: Engine,
    advisor: Advisor,
    buckets: LocalStore,
    new_uid: Callable[[], JobUid],
) -> ParentStores:
    return ParentStores(
        intake=bootstrap.store.intake,
        reader=bootstrap.store.reader,
        studies=bootstrap.store.studies,
        models=bootstrap.store.models,
        advisor=advisor,
        metrics=MetricsReader(engine.streams),
        summaries=BucketSummaries(buckets),
        buckets=BucketAdapter(buckets),
        now=clock.now,
        new_uid=new_uid,
    )


def _curve_stores(
    bootstrap: Bootstrap, buckets: LocalStore, points: PointFiles, new_uid: Callable[[], JobUid]
) -> CurveStores:
    store = bootstrap.store
    return CurveStores(
        curves=store.curves,
        boards=BoardStores(store.tensorboards, store.metadata, points, new_uid, clock.now),
        reader=store.reader,
        intake=store.intake,
        places=BucketSummaries(buckets),
    )


def _idle_policy(settings: Settings) -> IdlePolicy:
    gpus, jobs, stop = settings.idle_gpus, settings.idle_jobs, settings.idle_stop
    return IdlePolicy(round(gpus * 1e9), round(jobs * 1e9), round(stop * 1e9))


def _spans(settings: Settings) -> SpanSink | None:
    if not settings.traces_endpoint:
        return None
    # Of an extra, and slow to load.
    from trainshed.telemetry.otel import OtelSpans

    return OtelSpans(settings.traces_endpoint, installed("trainshed"))


def _smtp(settings: Settings) -> Smtp | None:
    if not settings.smtp_host:
        return None
    return Smtp(
        settings.smtp_host,
        settings.smtp_port,
        settings.smtp_tls,
        settings.smtp_user,
        os.environ.get(settings.smtp_password_env, ""),
        settings.smtp_sender,
    )


def _api_settings(bootstrap: Bootstrap) -> ApiSettings:
    settings = bootstrap.settings
    return ApiSettings(
        version=installed("trainshed"),
        project=settings.project,
        region=settings.region,
        bucket=settings.default_bucket,
        max_study_trials=settings.max_study_trials,
        reduction_tls=settings.reduction_tls,
        error_delay=round(settings.error_delay * 1e9),
        notify=tuple(table.name for table in settings.notify),
        pages=_address(bootstrap) if settings.error_links == "service" else "",
        configured=described(settings, bootstrap.origins),
    )
