"""What runs in a service, built from its parts and connected: engine, runtimes, controller, and the API's services."""

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from trainshed.access.job_tokens import JobTokens
from trainshed.access.sealing import Sealer
from trainshed.access.tokens import TokenAuthority
from trainshed.api.services import ApiSettings, Services
from trainshed.api.shell.tickets import Links, Tickets
from trainshed.buckets.local import LocalStore
from trainshed.buckets.rules import BucketRules
from trainshed.controller.carrier import Hands
from trainshed.controller.controller import Controller
from trainshed.controller.launching import Launching
from trainshed.controller.parents import Doors
from trainshed.controller.suggesting import Suggesting
from trainshed.core.failure.overrides import table_with
from trainshed.core.lifecycle.turn import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.devices import NvmlDevices
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.eventloop.lag import LagMeter
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import clock, interception
from trainshed.serve.adapters import BucketDoor, BucketHistory
from trainshed.serve.announcing import web_address
from trainshed.serve.build_terms import build_terms
from trainshed.serve.certificates import Certificates
from trainshed.serve.children import BucketKeeper
from trainshed.serve.grpc_front import GrpcDoors
from trainshed.serve.interception import Interception
from trainshed.serve.job_certificates import job_certificate
from trainshed.serve.program_doors import ProgramDoors
from trainshed.serve.program_logs import EngineLogs
from trainshed.serve.setting_rules import accelerators_of
from trainshed.serve.settings import Settings
from trainshed.serve.shells import EngineShells, link_key
from trainshed.serve.summary_places import BucketSummaries
from trainshed.serve.vault import Vault
from trainshed.store.logs.metrics import MetricsReader
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.service_log import ServiceLog
from trainshed.store.notices import Notices
from trainshed.store.port import Store
from trainshed.studies.advisor.client import ProcessAdvisor
from trainshed.studies.port import Advisor, EngineName


@dataclass(frozen=True, slots=True)
class Parts:
    """What exists before the event loop does. `storage_port`: the bucket process's own TCP port, `storage_tls_port` the one with TLS, 0 = none; `bucket_socket`: its
    Unix socket for replicas, `gateway_socket` that for our gateway alone; `programs`: our own for replicas; `grpc`: its ports,
    if there are any; `certified`: done when what TLS shows is there, None = nothing speaks it; `intercepting`: done when the files of `interception.places` are there."""

    settings: Settings
    listener: socket.socket
    programs: ProgramDoors
    grpc: GrpcDoors | None
    certified: "Future[Certificates] | None"
    intercepting: "Future[Interception]"
    zygote: ZygoteHandle
    buckets: BucketKeeper
    storage_port: int
    storage_tls_port: int
    bucket_socket: Path
    gateway_socket: Path
    bucket_rules: BucketRules
    store: Store
    token: str
    tokens: TokenAuthority
    jobs: JobTokens
    sealer: Sealer

    @property
    def ports(self) -> tuple[int, ...]:
        """All that the service listens on."""
        doors = (self.grpc.plain, self.grpc.secure) if self.grpc else ()
        listening = (door.getsockname()[1] for door in (self.listener, *doors))
        return tuple(filter(None, (*listening, self.storage_port, self.storage_tls_port)))


@dataclass(frozen=True, slots=True)
class Works:
    """What `wire` connected, as far as a service starts, asks and closes it."""

    controller: Controller
    suggesting: Suggesting
    advisor: ProcessAdvisor
    runtimes: LocalRuntimes
    services: Services
    lag: LagMeter


def wire(parts: Parts, stopping: asyncio.Event) -> Works:
    """Build everything; nothing runs yet. `stopping`: set when the service is to take no more work."""
    settings, data = parts.settings, parts.settings.data
    buckets = LocalStore(data / "buckets", now=clock.now, rules=parts.bucket_rules)
    buckets.ensure_bucket(settings.default_bucket, settings.region)
    for table in settings.buckets:
        buckets.ensure_bucket(table.name, settings.region, table.project)
    door, notices, logs = BucketDoor(buckets), Notices(), LogReader(data / "logs")
    new_uid, lag = clock.JobUids(), LagMeter(clock.now)
    engine = _engine(parts)
    choosing = RuntimeSettings(
        exact=settings.exact_runtimes,
        image_map=settings.images,
        terms=build_terms(settings, engine, parts.ports),
        has_gpu=lambda: bool(NvmlDevices(os.environ).find()),
    )
    runtimes = LocalRuntimes(
        settings.cache, door, choosing, now=clock.now, images=_images(settings, engine)
    )
    advisor = ProcessAdvisor(EngineName(settings.tuning_engine))
    suggesting = Suggesting(
        parts.store.studies, advisor, notices, clock.now, settings.max_study_trials
    )
    controller = Controller(
        ledger=parts.store.ledger,
        reader=parts.store.reader,
        logs=logs,
        hands=lambda report: Hands(
            engine=engine,
            runtimes=runtimes,
            buckets=door,
            log=ServiceLog(data / "logs", notices.publish),
            launching=Launching(
                memory_cap=settings.memory_per_replica << 20,
                stall_after=round(settings.stall_after * 1e9),
            ),
            report=report,
            grace=round(settings.grace * 1e9),
        ),
        notices=notices,
        now=clock.now,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        doors=_doors(parts, advisor, buckets, new_uid),
        scheduling=Policy(
            strict=settings.capacity == "strict",
            max_replicas=settings.max_replicas,
            patience=round(settings.patience * 1e9),
            public_quotas=settings.quotas == "public",
        ),
        failures=FailurePolicy(table_with(settings.failure_rules), settings.max_attempts),
    )
    services = Services(
        intake=parts.store.intake,
        reader=parts.store.reader,
        studies=parts.store.studies,
        models=parts.store.models,
        secrets=parts.store.secrets,
        sealer=parts.sealer,
        logs=logs,
        notices=notices,
        runtimes=runtimes.catalog,
        buckets=door,
        history=BucketHistory(data / "buckets", door),
        shells=_shells(parts, engine),
        program_logs=EngineLogs(engine),
        promises=lambda: asdict(engine.capabilities()),
        lag=lag.reading,
        now=clock.now,
        new_uid=new_uid,
        wake=controller.wake,
        suggest=suggesting.wake,
        room=controller.answers,
        settings=_api_settings(settings),
        closing=stopping,
    )
    return Works(controller, suggesting, advisor, runtimes, services, lag)


def _engine(parts: Parts) -> LocalEngine:
    settings = parts.settings
    intercepting = interception.places(settings.data.resolve())
    options = Options(
        storage_socket=parts.bucket_socket,
        rest_url=f"http://127.0.0.1:{parts.listener.getsockname()[1]}",
        rest_socket=parts.programs.rest_path,
        grpc_socket=parts.programs.grpc_path,
        # Of the cache a program sees what it runs in, not what others run in.
        hidden=(settings.data, settings.cache),
        certificate=intercepting.certificate,
        trust=intercepting.trust,
        keeping=Keeping(
            round(settings.autopsy_ttl * 3600e9), round(settings.autopsy_limit * 2**30)
        ),
        now=clock.now,
        nodes=settings.nodes,
        secrets=Vault(
            parts.store.secrets,
            parts.sealer,
            clock.now,
            parts.jobs.reduction_token,
            lambda uid: job_certificate(uid, parts.jobs.authority_seed(uid)),
        ),
        lease=settings.lease,
        level=settings.isolation,
        visible=tuple(Path(path) for path in settings.visible_paths.split(":") if path),
        processes=settings.max_processes,
        kept_ports=parts.ports,
        usage_every=settings.usage_every,
        disk_enforced=settings.enforce_disk,
        node_vcpus=settings.node_cpus,
        node_memory_bytes=round(settings.node_memory * 2**30),
        node_accelerators=accelerators_of(settings.node_accelerators),
    )
    return LocalEngine(settings.data, options, zygote=parts.zygote)


def _shells(parts: Parts, engine: LocalEngine) -> EngineShells:
    settings = parts.settings
    address = settings.web_url or web_address(settings, parts.listener.getsockname()[1])
    links = Links(link_key(parts.token), address)
    allowed = settings.shell == "on"
    return EngineShells(
        engine, Tickets(clock.now), links, allowed=allowed, idle=settings.shell_idle
    )


def _images(settings: Settings, engine: LocalEngine) -> Images:
    def unsupported() -> str:
        if engine.capabilities().images:
            return ""
        return (
            "Container images need namespaces, so that their files can take the place of the machine's, and this service "
            f"has none (its isolation is {engine.capabilities().isolation})."
        )

    return Images(
        settings.cache / "images",
        ImageSettings(settings.container_tool, settings.image_pull),
        now=clock.now,
        unsupported=unsupported,
    )


def _doors(
    parts: Parts, advisor: Advisor, buckets: LocalStore, new_uid: Callable[[], JobUid]
) -> Doors:
    return Doors(
        intake=parts.store.intake,
        reader=parts.store.reader,
        studies=parts.store.studies,
        models=parts.store.models,
        advisor=advisor,
        metrics=MetricsReader(parts.settings.data / "logs"),
        summaries=BucketSummaries(buckets),
        buckets=BucketDoor(buckets),
        now=clock.now,
        new_uid=new_uid,
    )


def _api_settings(settings: Settings) -> ApiSettings:
    return ApiSettings(
        version=version("trainshed"),
        project=settings.project,
        region=settings.region,
        bucket=settings.default_bucket,
        max_study_trials=settings.max_study_trials,
        reduction_tls=settings.reduction_tls,
        error_delay=round(settings.error_delay * 1e9),
    )
