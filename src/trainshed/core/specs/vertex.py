"""A Vertex CustomJob in public JSON becomes a `JobSpec`, or a list of everything wrong with it.

Rules: spec/submit, facts/resources#vertex, facts/lifecycle#scheduling, facts/packaging, facts/limits. Fields
that are read but not served are either refused, where the program could not run as meant, or named in a
warning, where it runs all the same.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from trainshed.core.catalog import accelerators
from trainshed.core.job.spec import DEFAULT_TIMEOUT, JobSpec, Scheduling, Strategy, WorkerPool
from trainshed.core.names import Api
from trainshed.core.requests import Faults, Section
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax, warnings
from trainshed.core.specs.vertex_pools import MAX_POOLS, read_pools

FLEX_START_WAIT = 24 * 3600 * 10**9
"""Nanoseconds that a FLEX_START job waits for its machines unless it says otherwise
(facts/lifecycle#scheduling)."""

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
    "enableDashboardAccess": "there is no dashboard access",
    "experiment": "there are no experiments",
    "experimentRun": "there are no experiments",
    "models": "only jobs of the public service's own make use of it",
    "persistentResourceId": "the job gets its machines as any other, none are kept for it",
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
    display_name = syntax.read_display_name(job)
    labels = syntax.read_labels(job)
    spec = read_job_spec(job.section("jobSpec"), region, runtimes)
    job.faults.refuse()
    return ParsedCustomJob(with_warnings(spec, *unserved(job)), display_name, labels)


def read_job_spec(spec: Section, region: str, runtimes: RuntimeCatalog) -> JobSpec:
    """A CustomJobSpec, wherever it stands. What is wrong is reported to the section's faults; the spec of a
    faulty request is of no use."""
    pools = read_pools(spec, runtimes)
    scheduling = _read_scheduling(spec.section("scheduling"), pools)
    if fault := syntax.service_account_fault(spec.text("serviceAccount")):
        spec.fault("serviceAccount", fault)
    _check_names(spec)
    output = _read_output_directory(spec)
    job_json = json.dumps(spec.values, ensure_ascii=False, separators=(",", ":"))
    if fault := syntax.cluster_size_fault(job_json, sum(pool.replica_count for pool in pools)):
        spec.fault("workerPoolSpecs", fault)
    return JobSpec(
        api=Api.VERTEX,
        region=region,
        pools=pools,
        scheduling=scheduling,
        job_json=job_json,
        service_account=spec.text("serviceAccount"),
        base_output_directory=output,
        warnings=(*_ignored(spec), *warnings.pool_warnings(pools)),
    )


def unserved(resource: Section) -> tuple[str, ...]:
    """Warnings for what a job or pipeline itself asks for and does not get."""
    if not resource.is_set("encryptionSpec"):
        return ()
    return ("encryption_spec is not served here: the job's files are stored without that key.",)


def with_warnings(spec: JobSpec, *more: str) -> JobSpec:
    return dataclasses.replace(spec, warnings=(*spec.warnings, *more))


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
    no_retries = section.flag("disableRetries")
    return Scheduling(
        timeout=timeout,
        max_wait=wait or None,
        # Disabling retries also turns restarts of the whole job off (facts/lifecycle#scheduling).
        restart_job_on_worker_restart=section.flag("restartJobOnWorkerRestart") and not no_retries,
        disable_retries=no_retries,
        strategy=strategy,
    )


def _check_flex_start(section: Section, timeout: int, pools: tuple[WorkerPool, ...]) -> None:
    """facts/lifecycle#scheduling: newer GPUs, at most seven days, one machine configuration."""
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
    """Resources named by the job's spec: how they must look. Whether they exist is for the API to say."""
    for field, collection in (("network", "global/networks"), ("tensorboard", "tensorboards")):
        name = spec.text(field)
        if name and not _is_resource(name, collection):
            wanted = (
                "projects/PROJECT/global/networks/NETWORK"
                if field == "network"
                else "projects/PROJECT/locations/LOCATION/tensorboards/TENSORBOARD"
            )
            spec.fault(field, f"{name!r} is not a resource name; it must look like {wanted}.")


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


def _ignored(spec: Section) -> tuple[str, ...]:
    """Warnings for what was asked and does not happen."""
    found = [
        f"{spec.at(name)} is not served here: {instead}."
        for name, instead in _IGNORED.items()
        if spec.is_set(name)
    ]
    for pool in islice(spec.sections("workerPoolSpecs"), MAX_POOLS):
        machine = pool.section("machineSpec")
        found.extend(
            f"{machine.at(name)} is not served here: the job runs on what the host has."
            for name in ("reservationAffinity", "gpuPartitionSize")
            if machine.is_set(name)
        )
    return tuple(found)
