"""A Vertex CustomJob in public JSON becomes a `JobSpec`, or a list of everything wrong with it.

Rules: SPEC §1.3-§1.6, facts §1.2, §2.6, §5, §6. Fields that are read but not served are either refused,
where the program could not run as meant, or named in a warning, where it runs all the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.core.catalog import accelerators
from trainshed.core.names import Api
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax, warnings
from trainshed.core.specs.model import DEFAULT_TIMEOUT, JobSpec, Scheduling, Strategy, WorkerPool
from trainshed.core.specs.request import Faults, Section
from trainshed.core.specs.vertex_pools import read_pools

FLEX_START_WAIT = 24 * 3600 * 10**9
"""Nanoseconds that a FLEX_START job waits for its machines unless it says otherwise (facts §2.6)."""

_STRATEGIES = {
    "": Strategy.STANDARD,
    "ON_DEMAND": Strategy.STANDARD,
    "LOW_COST": Strategy.SPOT,
    "STANDARD": Strategy.STANDARD,
    "SPOT": Strategy.SPOT,
    "FLEX_START": Strategy.FLEX_START,
}
_IGNORED = {
    "network": "the job runs in the network of its host",
    "reservedIpRanges": "the job runs in the network of its host",
    "pscInterfaceConfig": "the job runs in the network of its host",
    "enableWebAccess": "there is no shell into replicas",
    "enableDashboardAccess": "there is no dashboard access",
    "experiment": "there are no experiments",
    "experimentRun": "there are no experiments",
    "models": "there is no model registry",
    "protectedArtifactLocationId": "there are no protected artifacts",
    "tensorboard": "its name reaches the program, but nothing is uploaded to it",
}
"""Fields of the job's spec that are not served, and what holds instead."""


@dataclass(frozen=True, slots=True)
class ParsedCustomJob:
    """A valid CustomJob; `labels` in the order given."""

    spec: JobSpec
    display_name: str
    labels: tuple[tuple[str, str], ...]


def parse_custom_job(
    public: Mapping[str, Any], *, region: str, runtimes: RuntimeCatalog
) -> ParsedCustomJob:
    """Read a CustomJob.

    `public` is its proto3 JSON: camelCase keys, enum names, int64 as strings, unset fields absent, as the
    wire room hands it on. `region` is the location of the request and taken as given.
    Raises InvalidRequest with every violation; field paths are snake_case from the CustomJob down.
    """
    job = Section(public, "", Faults())
    display_name = job.text("displayName")
    _check_display_name(job, display_name)
    labels = syntax.read_labels(job)
    spec = job.section("jobSpec")
    pools = read_pools(spec, runtimes)
    scheduling = _read_scheduling(spec.section("scheduling"), pools)
    if fault := syntax.service_account_fault(spec.text("serviceAccount")):
        spec.fault("serviceAccount", fault)
    _check_names(spec)
    output = _read_output_directory(spec)
    job_json = json.dumps(spec.values, ensure_ascii=False, separators=(",", ":"))
    if fault := syntax.cluster_size_fault(job_json, sum(pool.replica_count for pool in pools)):
        spec.fault("workerPoolSpecs", fault)
    job.faults.refuse()
    return ParsedCustomJob(
        spec=JobSpec(
            api=Api.VERTEX,
            region=region,
            pools=pools,
            scheduling=scheduling,
            job_json=job_json,
            service_account=spec.text("serviceAccount"),
            base_output_directory=output,
            warnings=(*_ignored(job, spec), *warnings.pool_warnings(pools)),
        ),
        display_name=display_name,
        labels=labels,
    )


def _check_display_name(job: Section, name: str) -> None:
    if not name:
        job.fault("displayName", "The display name must be set.")
    elif len(name) > syntax.MAX_DISPLAY_NAME:
        job.fault(
            "displayName",
            f"The display name has {len(name)} characters; at most {syntax.MAX_DISPLAY_NAME} are "
            "allowed.",
        )


def _read_scheduling(section: Section, pools: tuple[WorkerPool, ...]) -> Scheduling:
    strategy = _STRATEGIES.get(section.enum("strategy"))
    if strategy is None:
        section.fault("strategy", f"Choose {', '.join(s.value for s in Strategy)}.")
        strategy = Strategy.STANDARD
    timeout = section.duration("timeout") or DEFAULT_TIMEOUT
    if not 0 < timeout <= syntax.MAX_DURATION:
        section.fault("timeout", "The timeout must be positive and at most 100 years.")
    wait = section.duration("maxWaitDuration")
    if wait is not None and not 0 <= wait <= syntax.MAX_DURATION:
        section.fault("maxWaitDuration", "The wait must be positive, or 0s for no limit.")
    if strategy is Strategy.FLEX_START:
        _check_flex_start(section, timeout, pools)
        wait = FLEX_START_WAIT if wait is None else wait
    elif wait is not None:
        section.fault(
            "maxWaitDuration",
            "max_wait_duration goes only with the strategy FLEX_START; leave it out.",
        )
    no_retries = section.flag("disableRetries")
    return Scheduling(
        timeout=timeout,
        max_wait=wait or None,
        # Disabling retries also turns restarts of the whole job off (facts §2.6).
        restart_job_on_worker_restart=section.flag("restartJobOnWorkerRestart") and not no_retries,
        disable_retries=no_retries,
        strategy=strategy,
    )


def _check_flex_start(section: Section, timeout: int, pools: tuple[WorkerPool, ...]) -> None:
    """Facts §2.6: newer GPUs, at most seven days, one machine configuration."""
    if timeout > DEFAULT_TIMEOUT:
        section.fault("timeout", "With the strategy FLEX_START the timeout is at most 604800s.")
    configurations = {(pool.machine.type, pool.machine.accelerators) for pool in pools}
    if len(configurations) > 1:
        section.fault(
            "strategy", "FLEX_START needs the same machine configuration in all worker pools."
        )
    kinds = {devices.type if devices else "" for _, devices in configurations}
    if not kinds <= accelerators.FLEX_START_TYPES:
        section.fault(
            "strategy",
            "FLEX_START needs accelerators of one of these types: "
            f"{', '.join(sorted(accelerators.FLEX_START_TYPES))}.",
        )


def _check_names(spec: Section) -> None:
    """Resources named by the job's spec: how they must look, and those that cannot be served."""
    for field, collection in (("network", "global/networks"), ("tensorboard", "tensorboards")):
        name = spec.text(field)
        if name and not _is_resource(name, collection):
            wanted = (
                "projects/PROJECT/global/networks/NETWORK"
                if field == "network"
                else "projects/PROJECT/locations/LOCATION/tensorboards/TENSORBOARD"
            )
            spec.fault(field, f"{name!r} is not a resource name; it must look like {wanted}.")
    if spec.text("persistentResourceId"):
        spec.fault(
            "persistentResourceId",
            "Persistent resources are not served; leave the field out and the job gets machines of its "
            "own.",
        )


def _is_resource(name: str, collection: str) -> bool:
    parts = name.split("/")
    place = collection.split("/")
    if place[0] == "global":
        fixed = [parts[0], *parts[2:4]] == ["projects", *place] and len(parts) == 5
    else:
        fixed = parts[::2] == ["projects", "locations", *place] and len(parts) == 6
    return fixed and all(parts)


def _read_output_directory(spec: Section) -> str:
    section = spec.section("baseOutputDirectory")
    uri = section.text("outputUriPrefix")
    if spec.has("baseOutputDirectory") and not uri:
        section.fault("outputUriPrefix", "Give a Cloud Storage path: gs://BUCKET/PATH.")
    elif uri and (fault := syntax.bucket_path_fault(uri)):
        section.fault("outputUriPrefix", fault)
    return uri


def _ignored(job: Section, spec: Section) -> tuple[str, ...]:
    """Warnings for what was asked and does not happen."""
    found = [
        f"{spec.at(name)} is not served here: {instead}."
        for name, instead in _IGNORED.items()
        if spec.is_set(name)
    ]
    if job.is_set("encryptionSpec"):
        found.append(
            "encryption_spec is not served here: the job's files are stored without that key."
        )
    for pool in spec.sections("workerPoolSpecs"):
        machine = pool.section("machineSpec")
        found.extend(
            f"{machine.at(name)} is not served here: the job runs on what the host has."
            for name in ("reservationAffinity", "gpuPartitionSize")
            if machine.is_set(name)
        )
    return tuple(found)
