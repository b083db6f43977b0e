"""Makes a custom job of the Vertex API from the options of `trainshed run`. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click

from trainshed.cli.text.moments import seconds_of
from trainshed.core.catalog.images import named_image, short_names
from trainshed.core.catalog.machines import (
    RETIRED,
    accelerator_types,
    allowed,
    machine_types,
    named_in,
)
from trainshed.core.errors import closest
from trainshed.core.names import Api
from trainshed.core.terminals import page_entry
from trainshed.core.units import Nanos

DEFAULT_IMAGE = "scikit-learn"
DEFAULT_MACHINE = "n1-standard-4"
_USUAL_GPU = "NVIDIA_TESLA_T4"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of `trainshed run` that describe a job."""

    name: str
    #: A short name (`pytorch`, `tensorflow=2.11`) or an image's URI.
    image: str = DEFAULT_IMAGE
    #: The program's arguments.
    arguments: Sequence[str] = ()
    #: gs:// URIs of packages to install; () = the image runs as it is.
    packages: Sequence[str] = ()
    #: The module in them that `python -m` runs.
    module: str = ""
    replicas: int = 1
    #: "" = `DEFAULT_MACHINE`, or the smallest one that goes with the GPUs.
    machine_type: str = ""
    #: GPUs of each replica.
    gpus: int = 0
    #: Their type; "" = the first of `on_nodes` that goes with a machine, else a usual one.
    accelerator: str = ""
    #: Types of accelerators that the nodes have, the most frequent first.
    on_nodes: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: gs:// URI of the output directory; "" = none.
    output: str = ""
    service_account: str = ""
    #: Maximum running time, such as "3600s"; "" = none.
    timeout: str = ""
    spot: bool = False
    #: Whether shells can be opened in its replicas.
    web_access: bool = False


def image_uri(image: str, *, gpus: bool) -> str:
    """Return the image URI that --image means. Raises click.UsageError for a framework or a version that does
    not exist."""
    try:
        uri = named_image(image, gpu=gpus)
    except ValueError as fault:
        raise click.UsageError(f"--image {image}: {fault}.") from None
    if uri:
        return uri
    word = image.partition("=")[0]
    if "/" not in image and ":" not in image:
        near = closest(word, short_names())
        raise click.UsageError(
            f"--image: there is no framework {word!r}.{near} There are {', '.join(short_names())}, each"
            " also with a version (tensorflow=2.11); an image of your own is named with its registry"
            f" (localhost/{image})."
        )
    return image


def custom_job(request: RunRequest) -> dict[str, Any]:
    """Return the body of `customJobs.create`. Raises click.UsageError."""
    pool: dict[str, Any] = {"machineSpec": _machine(request), "replicaCount": "1"}
    image = image_uri(request.image, gpus=request.gpus > 0)
    arguments = {"args": list(request.arguments)} if request.arguments else {}
    env = (
        {"env": [{"name": name, "value": value} for name, value in request.env.items()]}
        if request.env
        else {}
    )
    if request.module:
        pool["pythonPackageSpec"] = {
            "executorImageUri": image,
            "packageUris": list(request.packages),
            "pythonModule": request.module,
            **arguments,
            **env,
        }
    else:
        pool["containerSpec"] = {"imageUri": image, **arguments, **env}
    pools = [pool]
    if request.replicas > 1:
        pools.append({**pool, "replicaCount": str(request.replicas - 1)})
    spec: dict[str, Any] = {"workerPoolSpecs": pools}
    if request.output:
        spec["baseOutputDirectory"] = {"outputUriPrefix": request.output}
    if request.service_account:
        spec["serviceAccount"] = request.service_account
    if request.web_access:
        spec["enableWebAccess"] = True
    scheduling = {
        **({"timeout": request.timeout} if request.timeout else {}),
        **({"strategy": "SPOT"} if request.spot else {}),
    }
    if scheduling:
        spec["scheduling"] = scheduling
    job: dict[str, Any] = {"displayName": request.name, "jobSpec": spec}
    return {**job, "labels": dict(request.labels)} if request.labels else job


def read_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse the values `NAME=VALUE` of --env or --secret. Raises click.UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        # Errors do not show the value, which may be secret.
        if not equals:
            raise click.UsageError(f"{option}: write NAME=VALUE, not {name!r} alone.")
        if not _NAME.fullmatch(name):
            raise click.UsageError(
                f"{option}: {name!r} is no name of a variable; it has letters, digits and underscores and "
                "does not begin with a digit."
            )
        pairs[name] = value
    return pairs


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse the values `key=value` of --label. Raises click.UsageError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not _LABEL.fullmatch(key):
            raise click.UsageError(
                f"--label: write key=value in lower case, such as team=vision, not {text!r}."
            )
        labels[key] = value
    return labels


def read_ports(texts: Sequence[str]) -> list[str]:
    """Parse the values `NAME=PORT` of --port into entries of a job's label. Raises click.UsageError."""
    try:
        return [page_entry(name, port) for name, _, port in (text.partition("=") for text in texts)]
    except ValueError as wrong:
        raise click.UsageError(f"--port: {wrong}.") from None


def timeout(text: str) -> str:
    """Convert `2h` or `90m` to a duration of the API; "" stays "". Raises click.UsageError."""
    if not text:
        return ""
    try:
        seconds = round(seconds_of(text))
    except ValueError:
        seconds = 0
    if not seconds:
        raise click.UsageError(f"--timeout: write a time such as 90m, 2h or 1d, not {text!r}.")
    return f"{seconds}s"


def output_directory(bucket: str, name: str, now: Nanos) -> str:
    """Return a new output directory for a job that names none. `now`: nanoseconds since the epoch."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"
    moment = datetime.fromtimestamp(now // 10**9, UTC)
    return f"gs://{bucket}/runs/{word}-{moment:%Y%m%d-%H%M%S}-{now % 10**9 // 10**6:03d}"


def _machine(request: RunRequest) -> dict[str, Any]:
    name, kind = request.machine_type, request.accelerator
    if not request.gpus:
        if kind:
            raise click.UsageError(
                f"--accelerator {kind}: say how many each replica is to have: --gpus 1."
            )
        return {"machineType": name or DEFAULT_MACHINE}
    by_size = sorted(named_in(Api.VERTEX), key=lambda machine: machine.vcpus)
    machines = [
        (
            machine.name,
            {gpu: n for gpu, n in allowed(machine, Api.VERTEX).items() if "NVIDIA" in gpu},
        )
        for machine in (machine_types()[DEFAULT_MACHINE], *by_size)
        if name in ("", machine.name)
    ]
    others = sorted(accelerator_types(Api.VERTEX), key=RETIRED.__contains__)
    wanted = [kind] if kind else [*request.on_nodes, _USUAL_GPU, *others]
    fitting = (
        (gpu, machine)
        for gpu in wanted
        for machine, counts in machines
        if request.gpus in counts.get(gpu, ())
    )
    # What fits nowhere, or is not known here, the service refuses and says why.
    kind, name = next(fitting, (kind, name))
    if not kind and machines:
        numbers = {number for _, counts in machines for of in counts.values() for number in of}
        either = f"{', '.join(map(str, sorted(numbers)))} GPUs" if numbers else "no GPU"
        raise click.UsageError(
            f"--gpus {request.gpus}: a {name or 'machine'} can have {either}; name another"
            " one by --machine-type, such as n1-standard-8."
        )
    spec: dict[str, Any] = {"machineType": name or DEFAULT_MACHINE}
    return {**spec, "acceleratorType": kind, "acceleratorCount": request.gpus}
