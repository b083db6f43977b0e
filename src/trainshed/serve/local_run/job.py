"""Makes the job of a local run from a CustomJob request, so that a service's rules and defaults apply.
Pure."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from trainshed.core.catalog.accelerators import allowed
from trainshed.core.catalog.machines import machine_types
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.job.spec import JobSpec
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import RuntimeCatalog, RuntimeChoice, RuntimeRefusal
from trainshed.core.secrets import SecretRef, references
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.core.units import Nanos
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.runtimes.families import FAMILIES, sheet_of
from trainshed.serve.local_run.program_files import ProgramFiles, is_installed
from trainshed.serve.local_run.request import LocalRunRequest, NotRun

REPLICA = ReplicaId(0, 0)
_OPTIONS = {
    "machine_type": "--machine-type",
    "accelerator_type": "--gpu",
    "image_uri": "--executor-image-uri",
    "executor_image_uri": "--executor-image-uri",
    "output_uri_prefix": "--base-output-dir",
    "service_account": "--service-account",
    "python_module": "--python-module",
    "command": "--script",
}


@dataclass(frozen=True, slots=True)
class ProjectRegion:
    """Project and region of the job, from the settings."""

    project: str
    region: str


class NamedRuntimes:
    """A catalog that also knows runtimes by their names: `pytorch`, `tensorflow=2.11`, `python=3.12`."""

    def __init__(self, catalog: LocalCatalog, image: str) -> None:
        self._catalog = catalog
        family, _, version = image.partition("=")
        self.uri = image if sheet_of(family) is None else family
        self._version = version

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        """Return the choice, as the protocol says."""
        sheet = sheet_of(image_uri)
        if sheet is None:
            near = _misspelt(image_uri)
            return RuntimeRefusal(near) if near else self._catalog.for_image(image_uri)
        versioned = any(release.version for release in sheet.releases)
        version, python = (self._version, "") if versioned else ("", self._version)
        choice = self._catalog.named(sheet.family, version, python)
        if python and isinstance(choice, RuntimeChoice) and choice.python_version != python:
            return RuntimeRefusal(
                f"{sheet.title} on Python {python} cannot be had here; the nearest is "
                f"{sheet.family}={choice.python_version}."
            )
        return choice

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return the choice, as the protocol says."""
        return self._catalog.for_runtime_version(runtime_version, python_version)


def _misspelt(image: str) -> str:
    """Return the message for an image that was probably meant to be a runtime's name; "" = it was not."""
    word = image.partition("=")[0]
    names = [sheet.family for sheet in FAMILIES]
    if "/" in word or ":" in word or not (near := difflib.get_close_matches(word, names, 1)):
        return ""
    return (
        f"There is no runtime {word}; did you mean {near[0]}? An image of that name is localhost/{word} or "
        "has its registry before it."
    )


def default_image() -> str:
    """Return the runtime that is used if no image is named: the service's default runtime."""
    return FAMILIES[0].family


def custom_job(request: LocalRunRequest, pack: ProgramFiles, image: str) -> dict[str, Any]:
    """Return the CustomJob in public JSON. Raises NotRun."""
    pool: dict[str, Any] = {"machineSpec": _machine(request), "replicaCount": "1"}
    env = [{"name": name, "value": value} for name, value in request.env]
    if is_installed(request):
        pool["pythonPackageSpec"] = {
            "executorImageUri": image,
            "packageUris": [parcel.uri for parcel in pack.parcels],
            "pythonModule": request.module,
            "args": list(request.arguments),
            "env": env,
        }
    else:
        command = _command(request)
        container = {"imageUri": image, "command": command, "args": list(request.arguments)}
        pool["containerSpec"] = {**container, "env": env}
    spec: dict[str, Any] = {"workerPoolSpecs": [pool]}
    if request.output:
        spec["baseOutputDirectory"] = {"outputUriPrefix": request.output}
    if request.service_account:
        spec["serviceAccount"] = request.service_account
    return {"displayName": "local run", "jobSpec": spec}


def specified(
    request: LocalRunRequest,
    pack: ProgramFiles,
    place: ProjectRegion,
    public: Mapping[str, Any],
    runtimes: RuntimeCatalog,
) -> JobSpec:
    """Return the spec of the request. Raises NotRun where a service would refuse the request."""
    try:
        spec = parse_custom_job(public, region=place.region, runtimes=runtimes).spec
    except InvalidRequest as invalid:
        faults = [
            f"{_option(violation.field)}: {_described(violation)}"
            for violation in invalid.violations
        ]
        raise NotRun("\n".join(faults)) from None
    pool = spec.pools[0]
    _check_secrets(pool.program.env, request.secrets)
    # A request for a container cannot say that packages are installed first, but the program of its spec can.
    uris = tuple(parcel.uri for parcel in pack.parcels)
    program = replace(pool.program, package_uris=uris)
    return replace(spec, pools=(replace(pool, program=program),))


def job(uid: JobUid, place: ProjectRegion, spec: JobSpec, now: Nanos, node: str) -> Job:
    """Return the job as if it had just been placed on `node`."""
    return Job(
        uid=uid,
        name=JobName(Api.VERTEX, place.project, place.region, str(uid)),
        display_name="local run",
        spec=spec,
        public_json="{}",
        created=now,
        updated=now,
        attempt=1,
        replicas=(Replica(REPLICA, node=node),),
    )


def _command(request: LocalRunRequest) -> list[str]:
    if request.module:
        return ["python3", "-m", request.module]
    if not request.script:
        return []
    return ["python3" if request.script.endswith(".py") else "/bin/bash", request.script]


def _machine(request: LocalRunRequest) -> dict[str, str]:
    spec = {"machineType": request.machine_type}
    machine = machine_types().get(request.machine_type)
    if not request.gpu or machine is None:
        return spec
    types = {
        kind: counts for kind, counts in allowed(machine, Api.VERTEX).items() if "NVIDIA" in kind
    }
    if not types:
        raise NotRun(
            f"--gpu: no GPU goes with machine type {request.machine_type}; name another one by "
            "--machine-type, for example n1-standard-8."
        )
    kind = next((name for name in types if name.endswith("_T4")), next(iter(types)))
    return {**spec, "acceleratorType": kind, "acceleratorCount": str(min(types[kind]))}


def _check_secrets(env: Iterable[tuple[str, str]], secrets: Mapping[SecretRef, str]) -> None:
    named = [(name, ref) for name, value in env for ref in references(value)]
    missing = [
        f"--env {name}: the secret {ref} is not given; a local run knows those of --secret "
        f"{ref.name}=VARIABLE only."
        for name, ref in named
        if ref not in secrets
    ]
    if missing:
        raise NotRun("\n".join(missing))


def _described(violation: Violation) -> str:
    if violation.field.endswith(".command"):
        return (
            "A runtime runs nothing by itself, as an image may; give --script or --python-module."
        )
    return violation.description


def _option(field: str) -> str:
    last = field.rpartition(".")[2]
    name = last.partition("[")[0]
    if name in ("args", "env"):
        return f"--{name}{last[len(name) :]}"
    return _OPTIONS.get(name, field)
