"""Converts the options of `trainshed run` to fields of the job. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from trainshed.cli.text.moments import seconds_of
from trainshed.core.catalog.images import image_for_name, prebuilt_name, short_names
from trainshed.core.catalog.machines import (
    GIB,
    RETIRED,
    accelerator_types,
    allowed_accelerators,
    machine_types,
    requestable_types,
)
from trainshed.core.dependencies import AFTER_LABEL, Condition, format_after
from trainshed.core.errors import closest
from trainshed.core.names import Api
from trainshed.core.terminals import page_entry
from trainshed.core.units import Nanos

DEFAULT_IMAGE = "scikit-learn"
DEFAULT_MACHINE = "n1-standard-4"
_SIZED = ("n1-standard-", "n1-highmem-", "n1-highcpu-")
"""Machine types that errors suggest for a number of CPUs or an amount of memory."""
_SIZE_OPTIONS = {
    **dict.fromkeys(("--cpu", "--cpus", "--cores", "--vcpus"), "CPUs"),
    **dict.fromkeys(("--mem", "--memory", "--ram"), "memory"),
}
_USUAL_GPU = "NVIDIA_TESLA_T4"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")


def image_uri(image: str, *, gpus: bool) -> str:
    """Return the image URI of --image. Raises click.UsageError for an unknown framework or version."""
    try:
        uri = image_for_name(image, gpu=gpus)
    except ValueError as fault:
        raise click.UsageError(f"--image {image}: {fault}.") from None
    if uri:
        return uri
    if listed := prebuilt_name(image):
        raise click.UsageError(f"--image: {image!r} has no registry. Did you mean --image {listed}?")
    if "/" not in image and ":" not in image:
        near = closest(image, short_names())
        raise click.UsageError(
            f"--image: the framework {image!r} does not exist.{near} The frameworks are "
            f"{', '.join(short_names())}, each also with a version (tensorflow=2.11). For your own image, "
            f"add its registry (localhost/{image})."
        )
    return image


def machine_advice(option: str, words: Sequence[str]) -> str | None:
    """Return advice if `option` is a size such as --cpus or --memory, otherwise None. `words`: the command
    line with the option's value. The advice contains a fitting machine type, because the machine type
    determines CPUs and memory."""
    kind = _SIZE_OPTIONS.get(option)
    if kind is None:
        return None
    value = re.search(rf"(?<!\S){option}[= ]+([\d.]+)", " ".join(words))
    wanted = float(value[1]) if value and re.fullmatch(r"\d+(\.\d+)?", value[1]) else 0.0
    fitting = [
        machine
        for machine in requestable_types(Api.VERTEX)
        if machine.name.startswith(_SIZED)
        and (machine.vcpus if kind == "CPUs" else machine.memory_limit_bytes / GIB) >= wanted
    ]
    usual = min(fitting, key=lambda machine: (machine.vcpus, machine.memory_bytes), default=None)
    offer = f": --machine-type {usual.name}" if usual else ""
    return f"The machine type sets {kind}{offer}. List all types: trainshed machine-types list"


def read_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse the values `NAME=VALUE` of --env or --secret. Raises click.UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        # The error does not contain the value, which may be secret.
        if not equals:
            raise click.UsageError(f"{option}: {name!r} has no value. Write NAME=VALUE.")
        if not _NAME.fullmatch(name):
            raise click.UsageError(
                f"{option}: {name!r} is not a valid name of a variable. Use letters, digits and "
                "underscores, and do not begin with a digit."
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
                f"--label: {text!r} is not a valid label. Write key=value in lower case, such as team=vision."
            )
        labels[key] = value
    return labels


def read_ports(texts: Sequence[str]) -> list[str]:
    """Parse the values `NAME=PORT` of --port into entries of the label that lists the job's pages. Raises
    click.UsageError."""
    try:
        return [page_entry(name, port) for name, _, port in (text.partition("=") for text in texts)]
    except ValueError as wrong:
        raise click.UsageError(f"--port: {wrong}.") from None


def read_after(texts: Sequence[str]) -> list[tuple[str, Condition]]:
    """Split the values `JOB[:succeeded|:finished]` of --after into references and conditions."""
    entries: list[tuple[str, Condition]] = []
    for text in texts:
        job, _, condition = text.rpartition(":")
        is_condition = condition in tuple(Condition)
        entries.append((job, Condition(condition)) if is_condition else (text, Condition.SUCCEEDED))
    return entries


def after_label(uids: Sequence[str], conditions: Sequence[Condition]) -> str:
    """Return the label for jobs and their conditions, as a value of --label. Raises click.UsageError if the
    label would be too long."""
    value = format_after(zip(uids, conditions, strict=True))
    if not _LABEL.fullmatch(value):
        raise click.UsageError(
            f"--after: {len(uids)} jobs do not fit into one label. Use at most three jobs, or two with "
            ":finished."
        )
    return f"{AFTER_LABEL}={value}"


def timeout(text: str | None) -> str | None:
    """Convert a time such as `2h` or `90m` to a duration of the API. None remains None. Raises
    click.UsageError."""
    if not text:
        return None
    try:
        seconds = round(seconds_of(text))
    except ValueError:
        seconds = 0
    if not seconds:
        raise click.UsageError(f"--timeout: {text!r} is not a time. Write a time such as 90m, 2h or 1d.")
    return f"{seconds}s"


def output_directory(bucket: str, name: str, now: Nanos) -> str:
    """Return a new output directory for a job without --output. `now`: nanoseconds since the epoch."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"
    moment = datetime.fromtimestamp(now // 10**9, UTC)
    return f"gs://{bucket}/runs/{word}-{moment:%Y%m%d-%H%M%S}-{now % 10**9 // 10**6:03d}"


def machine_spec(name: str | None, gpus: int, kind: str | None, on_nodes: Sequence[str]) -> dict[str, Any]:
    """Return the `machineSpec` of replicas. Raises click.UsageError.

    Args:
        name: the machine type; None = `DEFAULT_MACHINE`, or the smallest type with the GPUs
        kind: the GPU type; None = the first of `on_nodes` that a machine type offers, otherwise a common type
        on_nodes: the GPU types of the nodes
    """
    if not gpus:
        if kind:
            raise click.UsageError(
                f"--accelerator {kind} needs the number of GPUs per replica. Add --gpus 1."
            )
        return {"machineType": name or DEFAULT_MACHINE}
    by_size = sorted(requestable_types(Api.VERTEX), key=lambda machine: machine.vcpus)
    machines = [
        (
            machine.name,
            {gpu: n for gpu, n in allowed_accelerators(machine, Api.VERTEX).items() if "NVIDIA" in gpu},
        )
        for machine in (machine_types()[DEFAULT_MACHINE], *by_size)
        if not name or name == machine.name
    ]
    others = sorted(accelerator_types(Api.VERTEX), key=RETIRED.__contains__)
    wanted = [kind] if kind else [*on_nodes, _USUAL_GPU, *others]
    fitting = (
        (gpu, machine) for gpu in wanted for machine, counts in machines if gpus in counts.get(gpu, ())
    )
    # If no combination fits, keep the user's values. The service then rejects them with the reason.
    kind, name = next(fitting, (kind, name))
    if not kind and machines:
        numbers = {number for _, counts in machines for of in counts.values() for number in of}
        either = f"{', '.join(map(str, sorted(numbers)))} GPUs" if numbers else "no GPU"
        raise click.UsageError(
            f"--gpus {gpus}: a {name or 'machine'} can have {either}. Use another --machine-type, such "
            "as n1-standard-8."
        )
    spec: dict[str, Any] = {"machineType": name or DEFAULT_MACHINE}
    return {**spec, "acceleratorType": kind or "", "acceleratorCount": gpus}
