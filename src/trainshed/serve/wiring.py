"""What runs in a service, built from its parts and connected: engine, runtimes, controller, and the API's services."""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from trainshed.access.tokens import TokenAuthority
from trainshed.api.services import ApiSettings, Services
from trainshed.buckets.local import LocalStore
from trainshed.controller.carrier import Hands
from trainshed.controller.controller import Controller
from trainshed.controller.launching import Launching
from trainshed.controller.parents import Doors
from trainshed.controller.suggesting import Suggesting
from trainshed.core.failure.overrides import table_with
from trainshed.core.lifecycle.turn import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.scheduler.model import Policy
from trainshed.serve import clock
from trainshed.serve.adapters import BucketDoor, BucketHistory
from trainshed.serve.children import BucketKeeper
from trainshed.serve.grpc_front import GrpcDoors
from trainshed.serve.settings import Settings, accelerators_of
from trainshed.store.logs.metrics import MetricsReader
from trainshed.store.logs.reader import LogReader
from trainshed.store.notices import Notices
from trainshed.store.port import Store
from trainshed.studies.advisor.client import ProcessAdvisor
from trainshed.studies.port import Advisor, EngineName


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


@dataclass(frozen=True, slots=True)
class Works:
    """What `wire` connected, as far as a service starts, asks and closes it."""

    controller: Controller
    suggesting: Suggesting
    advisor: ProcessAdvisor
    runtimes: LocalRuntimes
    services: Services


def wire(parts: Parts, stopping: asyncio.Event) -> Works:
    """Build everything; nothing runs yet. `stopping`: set when the service is to take no more work."""
    settings, data = parts.settings, parts.settings.data
    buckets = LocalStore(data / "buckets", now=clock.now)
    buckets.ensure_bucket(settings.default_bucket, settings.region)
    door, notices, logs = BucketDoor(buckets), Notices(), LogReader(data / "logs")
    new_uid = clock.JobUids()
    exact = RuntimeSettings(exact=settings.exact_runtimes)
    runtimes = LocalRuntimes(settings.cache, door, exact, now=clock.now)
    advisor = ProcessAdvisor(EngineName(settings.tuning_engine))
    suggesting = Suggesting(
        parts.store.studies, advisor, notices, clock.now, settings.max_study_trials
    )
    engine = _engine(parts)
    controller = Controller(
        ledger=parts.store.ledger,
        reader=parts.store.reader,
        logs=logs,
        hands=lambda report: Hands(
            engine=engine,
            runtimes=runtimes,
            buckets=door,
            launching=Launching(
                gcs_root=str(data / "buckets"),
                memory_cap=settings.memory_per_replica << 20,
                stall_after=round(settings.stall_after * 1e9),
            ),
            report=report,
            grace=round(settings.grace * 1e9),
        ),
        notices=notices,
        now=clock.now,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        doors=_doors(parts, advisor, door, new_uid),
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
        logs=logs,
        notices=notices,
        runtimes=runtimes.catalog,
        buckets=door,
        history=BucketHistory(data / "buckets", door),
        now=clock.now,
        new_uid=new_uid,
        wake=controller.wake,
        suggest=suggesting.wake,
        room=controller,
        settings=_api_settings(settings),
        closing=stopping,
    )
    return Works(controller, suggesting, advisor, runtimes, services)


def _engine(parts: Parts) -> LocalEngine:
    settings = parts.settings
    return LocalEngine(
        settings.data,
        zygote=parts.zygote,
        storage_socket=parts.bucket_socket,
        hidden=(settings.data,),
        read_only=(settings.cache,),
        nodes=settings.nodes,
        lease=settings.lease,
        node_vcpus=settings.node_cpus,
        node_memory_bytes=round(settings.node_memory * 2**30),
        node_accelerators=accelerators_of(settings.node_accelerators),
    )


def _doors(
    parts: Parts, advisor: Advisor, buckets: BucketDoor, new_uid: Callable[[], JobUid]
) -> Doors:
    return Doors(
        intake=parts.store.intake,
        reader=parts.store.reader,
        studies=parts.store.studies,
        models=parts.store.models,
        advisor=advisor,
        metrics=MetricsReader(parts.settings.data / "logs"),
        buckets=buckets,
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
    )
