"""Advice for users whose program failed, based on its last lines, its exit status and its limits. Pure.

`advice.toml` contains all texts. It also contains a table of errors, with the patterns that match them. Each
function returns a few sentences that advise the user, or None if the lines contain no known error.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from trainshed.core.catalog import images
from trainshed.core.catalog.machines import GIB, MachineType, machine_types
from trainshed.core.catalog.tables import table
from trainshed.core.job import ExitRecord, JobSpec, Program, WorkerPool
from trainshed.core.runtime import CONTAINER

ON_TIME_LIMITS: Final = (
    "A program that does not resume from a checkpoint starts over each time and "
    "never finishes. Save checkpoints to gs:// and load the latest one at the "
    "start, or request a longer time limit from the cluster's administrator."
)
"""Advice for users whose replicas repeatedly reach a time limit of the cluster."""
_SDK_SCRIPT: Final = "aiplatform_custom_trainer_script"
"""The package into which the Vertex SDK puts a script."""
_RUN_PROGRAM: Final = "trainshed_program."
"""The prefix of modules that `trainshed run` has packaged."""


def advice(tail: str, spec: JobSpec, pool: int) -> str | None:
    """Return advice on the error in the last lines of a program of this pool, or None if no advice is
    known."""
    program = spec.pool(pool).program
    return _module_advice(tail, program) or _command_advice(tail) or _row_advice(tail, spec, program)


def advice_on_end(ended: ExitRecord, status: int, spec: JobSpec, pool: int) -> str | None:
    """Return advice on the exit of a program of this pool, or None if no advice is known. `status`: the
    published exit status."""
    if ended.oom or ended.child_oom:
        return _memory_advice(spec, pool)
    return advice(ended.tail, spec, pool) or _signal_advice(
        ended.tail, status, is_signal=ended.signal is not None
    )


@cache
def _texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("advice.toml").read_text("utf-8"))


def _row_advice(tail: str, spec: JobSpec, program: Program) -> str | None:
    """Return the text of the first row of `advice.toml` that matches the last lines, or None."""
    has_own_image = program.runtime.family == CONTAINER
    facts = {
        "own_image": has_own_image,
        "replicas": "one" if len(spec.replicas()) == 1 else "several",
        "api": spec.api.value,
        "packed": (program.module or "").startswith(_RUN_PROGRAM),
    }
    for row in _texts()["advice"]:
        if any(row.get(name, fact) != fact for name, fact in facts.items()):
            continue
        if (value := _value(row, tail)) is not None:
            return row["text"].replace("{}", value)
    return None


def _value(row: Mapping[str, Any], tail: str) -> str | None:
    """Return the part of the last lines that a row's pattern captures, or None if the row does not match."""
    if not re.search(row.get("requires", ""), tail):
        return None
    lines = tail.rstrip().splitlines()
    window = lines[-row.get("lines", len(lines)) :]
    if "unless" in row and re.search(row["unless"], "\n".join(window)):
        return None
    shared, pattern = _texts()["patterns"], row["pattern"]
    patterns = shared[pattern] if isinstance(pattern, str) else pattern
    for line in reversed(window):
        for match in filter(None, (re.search(pattern, line.rstrip()) for pattern in patterns)):
            value = next(filter(None, match.groups()), "")
            is_near = "in_last_line" not in row or value in lines[-1]
            if is_near and re.fullmatch(row.get("values", ".*"), value):
                return value
    return None


def _command_advice(tail: str) -> str | None:
    """Return advice for a job whose command is a single text instead of a list, or None for other jobs."""
    absent = ": command not found; looked in "
    name = next((line.partition(absent)[0] for line in tail.splitlines() if absent in line), "")
    if " " not in name:
        return None
    try:
        words = shlex.split(name)
    except ValueError:  # A quotation mark is missing, so split at spaces only.
        words = name.split()
    return (
        "The service treats the whole text as the name of the program. Write a list with one word per item: "
        f"{json.dumps(words)}"
    )


# Advice for missing modules. It depends on the way in which the job was submitted.

_MISSING_MODULE: Final = re.compile(r"(?:Error|python[\d.]*): No module named '?([A-Za-z_][\w.]*)")
"""Matches the last line of a traceback, and the error of an interpreter that cannot find its module."""


def _module_advice(tail: str, program: Program) -> str | None:
    missing = _MISSING_MODULE.findall(tail)
    if not missing:
        return None
    module: str = missing[-1]
    root = module.partition(".")[0]
    if program.module and root == program.module.partition(".")[0]:
        return (
            f"{module} belongs to the job's own package, and the package does not contain "
            "it. In setup.py, packages=find_packages() includes every folder with an "
            "__init__.py, and package_data includes data files."
        )
    framework: str | None = _texts()["frameworks"].get(root)
    if with_framework := _framework_advice(framework, program):
        return with_framework
    if "." in module and framework == program.runtime.family:
        return (
            f"{root} {program.runtime.version} is installed and has no module {module}. "
            "Another version may have it."
        )
    distribution, way = _distribution(module), _submission_method(program)
    texts = _texts()["modules"][way]
    install = texts["install"].replace("{}", distribution or root)
    if distribution:
        return (
            f"{module} is in the distribution {distribution}, which this job's environment lacks: {install}."
        )
    own = texts["own"].replace("{}", root)
    text = f"{own} If it is in a distribution of the package index: {install}."
    package = (program.module or "").rpartition(".")[0]
    if way == "package" and package:
        # Advise on the import: programs for Python 2, such as many public samples, import modules of their
        # own package without the package name.
        return (
            f"If {root} is a file of your own in {package}/, import it by its package: `from {package} "
            f"import {root}`. {text}"
        )
    return text


def _distribution(module: str) -> str | None:
    """Return the name of the distribution on the package index that contains a well-known module, or None."""
    root, *below = module.split(".")
    if (root, *below[:1]) == ("google", "cloud"):
        return "-".join((root, *below[:2])).replace("_", "-") if below[1:] else None
    known = table("modules")["distributions"]
    return known.get(".".join((root, *below[:1]))) or known.get(root)


def _framework_advice(framework: str | None, program: Program) -> str | None:
    """Return advice to use an image that contains the framework. Return None if `framework` is None, or if
    the job's image already contains the framework. Also return None for a container, because its contents are
    unknown."""
    if framework is None or program.runtime.family in (framework, CONTAINER):
        return None
    image = framework if _submission_method(program) == "run" else images.image_for_name(framework)
    return (
        f"It is part of other images: set one, such as {image} (--image of trainshed "
        "run; imageUri, or executorImageUri of a package; masterConfig.imageUri)."
    )


def _submission_method(program: Program) -> str:
    """Return the way in which a program was submitted, as a key of `[modules]` in `advice.toml`."""
    module = program.module or ""
    if any(_SDK_SCRIPT in word for word in (module, *program.command, *program.args)):
        return "sdk"
    if module:
        return "run" if module.startswith(_RUN_PROGRAM) else "package"
    return "container" if program.runtime.family == CONTAINER else "command"


# Advice for exit statuses that represent a signal, and for memory limits.

_NEGATIVE: Final = {256 - number: number for number in (6, 9, 11)}
"""Signals by exit status. Such a status is 256 minus the number of a signal. A program has it if it exits
with the return code of a child process that a signal ended, such as -11."""
_DUMPED: Final = re.compile(r"Fatal Python error|Current thread 0x")
"""Lines that Python's fault handler prints."""


def _signal_advice(tail: str, status: int, *, is_signal: bool) -> str | None:
    """Return a text about the signal that an exit status represents and how to find its cause. Return None if
    the status represents no signal. `is_signal`: whether a status below 128 is the number of a signal."""
    number = status if is_signal and status < 128 else status - 128 if 128 < status < 160 else 0
    number = number or _NEGATIVE.get(status, 0)
    text = _texts()["signals"].get(str(number))
    if text is None:
        return None
    traced = "" if number == SIGKILL or _DUMPED.search(tail) else f" {_texts()['trace']}"
    return f"Status {status} stands for a signal: {text}{traced}"


def _memory_advice(spec: JobSpec, pool: int) -> str:
    """Return advice with the memory limit of the pool's replicas and the next larger machine type."""
    machine = spec.pool(pool).machine
    text = (
        f"The memory limit of a replica on {machine.type or 'this machine'} is "
        f"{_gib(machine.memory_limit_bytes)} (less if this machine has less), and the "
        "replica's processes together reached it."
    )
    if larger := _next_larger(spec.pool(pool)):
        text += f" The next larger machine type: {larger.name}, {_gib(larger.memory_limit_bytes)}."
    return (
        f"{text} trainshed describe usage shows the memory over time. To use less, "
        "reduce the batch size or the number of DataLoader workers, or read data in "
        "parts."
    )


def _next_larger(pool: WorkerPool) -> MachineType | None:
    """Return the smallest machine type with more memory than the pool's machine, preferably of the same
    series, or None."""
    types = machine_types()
    own = types.get(pool.machine.type)
    if own is None:
        return None
    larger = [
        kind
        for kind in types.values()
        if kind.memory_limit_bytes > own.memory_limit_bytes
        and own.apis <= kind.apis
        and kind.needs_accelerators == own.needs_accelerators
        and kind.is_legacy == own.is_legacy
        and kind.vcpus >= own.vcpus
    ]
    series = own.name.partition("-")[0]
    return min(
        larger,
        key=lambda kind: (kind.name.partition("-")[0] != series, kind.memory_limit_bytes, kind.vcpus),
        default=None,
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
