"""Converts the form of a custom job to the job's JSON, and the JSON to a form. Pure.

A form that was filled in from a job carries that job as `base`. What the form has no field for, and the
fields that nobody has changed, stay in the new job as they were.
"""

import copy
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct, field

_GIVEN: Final = ("displayName", "labels", "jobSpec", "encryptionSpec")
"""Fields of a custom job's resource that clients give; all others are set by the service."""
_POOL: Final = (
    "kind",
    "script",
    "command",
    "packages",
    "module",
    "args",
    "image",
    "machine",
    "accelerator",
    "accelerators",
    "env",
)
"""The form's fields that describe a worker pool, except for its number of replicas."""
_NO_ACCELERATOR: Final = "ACCELERATOR_TYPE_UNSPECIFIED"


class Draft(Struct):
    """A job that is being written: its JSON, and what is wrong with the form itself."""

    body: dict[str, Any]
    #: Texts by field of the form; "" = about the whole form.
    faults: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def fault(self, name: str, text: str) -> None:
        """Add a fault of a field."""
        self.faults.setdefault(name, []).append(text)


class _Fields:
    """The fields that were sent, compared with those of the job that the form was filled in from."""

    def __init__(self, form: Mapping[str, str], was: Mapping[str, str]) -> None:
        self._form = form
        self._was = was

    def text(self, name: str) -> str:
        return _plain(self._form.get(name, ""))

    @property
    def script(self) -> str:
        """The script, with the white space at its beginning and end."""
        return self._form.get("script", "").replace("\r\n", "\n")

    def is_touched(self, *names: str) -> bool:
        """Whether one of the fields was changed. True for a form that was not filled in from a job."""
        return not self._was or any(self.text(name) != _plain(self._was[name]) for name in names)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def draft_of(form: Mapping[str, str]) -> Draft:
    """Return the job that the form describes, with the form's faults."""
    draft = Draft({})
    base = _base(draft, form.get("base", ""))
    fields = _Fields(form, form_of(base) if base else {})
    body = copy.deepcopy(base)
    body["displayName"] = fields.text("name")
    if fields.is_touched("labels"):
        body["labels"] = _pairs(draft, "labels", fields.text("labels"))
        if not body["labels"]:
            del body["labels"]
    spec: dict[str, Any] = body.setdefault("jobSpec", {})
    spec["workerPoolSpecs"] = _pools(draft, fields, spec.get("workerPoolSpecs") or [{}])
    if fields.is_touched("output"):
        spec.pop("baseOutputDirectory", None)
        if output := fields.text("output"):
            spec["baseOutputDirectory"] = {"outputUriPrefix": output}
    if fields.is_touched("timeout"):
        scheduling = {k: v for k, v in spec.pop("scheduling", {}).items() if k != "timeout"}
        if timeout := fields.text("timeout"):
            scheduling["timeout"] = f"{timeout.removesuffix('s')}s"
        if scheduling:
            spec["scheduling"] = scheduling
    draft.body = body
    return draft


def _base(draft: Draft, text: str) -> dict[str, Any]:
    """Return the job that the form was filled in from; {} = none."""
    if not text:
        return {}
    try:
        base = json.loads(text)
    except (ValueError, RecursionError):
        base = None
    if isinstance(base, dict):
        return cast(dict[str, Any], base)
    draft.fault("", "The job that this form was filled in from cannot be read: clone it again.")
    return {}


def _pools(draft: Draft, fields: _Fields, old: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    first = old[0]
    if fields.is_touched(*_POOL):
        first = {**first, "machineSpec": _machine(draft, fields, first.get("machineSpec") or {})}
        first = _with_program(draft, fields, first)
    count = _count(draft, "replicas", fields.text("replicas"))
    if not are_alike(old):
        if fields.is_touched("replicas"):
            first = {**first, "replicaCount": count}
        return [first, *old[1:]]
    if not fields.is_touched("replicas"):
        return [{**first, "replicaCount": pool.get("replicaCount", 1)} for pool in old]
    made = [{**first, "replicaCount": 1}]
    if count > 1:
        made.append({**first, "replicaCount": count - 1})
    return made


def are_alike(pools: Sequence[Any]) -> bool:
    """Whether all replicas run the same program on the same machine."""
    kinds = [{k: v for k, v in pool.items() if k != "replicaCount"} for pool in pools]
    return all(kind and kind == kinds[0] for kind in kinds) or len(pools) == 1


def _machine(draft: Draft, fields: _Fields, old: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in old.items() if not k.startswith("accelerator")}
    machine: dict[str, Any] = {**kept, "machineType": fields.text("machine")}
    if fields.text("accelerator"):
        machine["acceleratorType"] = fields.text("accelerator")
        machine["acceleratorCount"] = _count(draft, "accelerators", fields.text("accelerators"))
    return machine


def _with_program(draft: Draft, fields: _Fields, pool: dict[str, Any]) -> dict[str, Any]:
    """Return the pool with the form's program, which runs in a container or is a Python package."""
    is_package = fields.text("kind") == "package"
    name, other = "containerSpec", "pythonPackageSpec"
    if is_package:
        name, other = other, name
    pool = {k: v for k, v in pool.items() if k != other}
    program: dict[str, Any] = dict(pool.get(name) or {})
    if is_package:
        program["executorImageUri"] = fields.text("image")
        program["packageUris"] = fields.text("packages").split()
        program["pythonModule"] = fields.text("module")
    else:
        program["imageUri"] = fields.text("image")
        if fields.is_touched("kind", "script", "command"):
            program["command"] = _command(draft, fields)
    if fields.is_touched("args"):
        _set(program, "args", _words(draft, "args", fields.text("args")))
    if fields.is_touched("env"):
        pairs = _pairs(draft, "env", fields.text("env"))
        _set(program, "env", [{"name": key, "value": value} for key, value in pairs.items()])
    return {**pool, name: program}


def _set(program: dict[str, Any], name: str, value: list[Any]) -> None:
    program.pop(name, None)
    if value:
        program[name] = value


def _command(draft: Draft, fields: _Fields) -> list[str]:
    if fields.text("kind") == "command":
        return _words(draft, "program", fields.text("command"))
    if not fields.text("script"):
        draft.fault("program", "Type a program.")
    return ["python3", "-u", "-c", fields.script]


def _count(draft: Draft, name: str, text: str) -> int:
    """Parse a number of at least 1; "" = 1. Adds a fault and returns 1 if it is not one."""
    if text in ("", "1"):
        return 1
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < 1:
        draft.fault(name, f"{text!r} is no whole number from 1 on.")
        return 1
    return int(text)


def _words(draft: Draft, name: str, text: str) -> list[str]:
    """Split a text into words as a shell does. Adds a fault and returns [] if that is impossible."""
    try:
        return shlex.split(text)
    except ValueError as wrong:
        draft.fault(name, f"It cannot be split into words: {wrong}.")
        return []


def _pairs(draft: Draft, name: str, text: str) -> dict[str, str]:
    """Parse lines `NAME=VALUE`. Adds a fault for each other line."""
    names: dict[str, str] = {}
    for line in filter(None, (part.strip() for part in text.splitlines())):
        key, equals, value = line.partition("=")
        if equals:
            names[key.strip()] = value.strip()
        else:
            draft.fault(name, f"{line!r} has no =; write NAME=VALUE, one a line.")
    return names


def form_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the form of a custom job; {} if the resource is not one."""
    spec: Any = resource.get("jobSpec") or {}
    pools: Any = spec.get("workerPoolSpecs") or ()
    if not pools or not pools[0]:
        return {}
    first: Any = pools[0]
    container: Any = first.get("containerSpec") or {}
    machine: Any = first.get("machineSpec") or {}
    package: Any = first.get("pythonPackageSpec") or {}
    command = list(container.get("command") or ())
    is_script = command[:1] == ["python3"] and command[1:-1] in (["-c"], ["-u", "-c"])
    place: Any = spec.get("baseOutputDirectory") or {}
    accelerator = str(machine.get("acceleratorType", ""))
    same = are_alike(pools)
    counts = [int(pool.get("replicaCount", 1)) for pool in (pools if same else pools[:1])]
    variables: Any = container.get("env") or package.get("env") or ()
    scheduling: Any = spec.get("scheduling") or {}
    return {
        "name": str(resource.get("displayName", "")),
        "kind": "package" if package else "script" if is_script else "command",
        "script": command[-1] if is_script else "",
        "command": "" if is_script else shlex.join(command),
        "packages": "\n".join(package.get("packageUris") or ()),
        "module": str(package.get("pythonModule", "")),
        "args": shlex.join(
            [str(word) for word in container.get("args") or package.get("args") or ()]
        ),
        "image": str(container.get("imageUri") or package.get("executorImageUri") or ""),
        "machine": str(machine.get("machineType", "")),
        "accelerator": "" if accelerator == _NO_ACCELERATOR else accelerator,
        "accelerators": str(machine.get("acceleratorCount", 1)),
        "replicas": str(sum(counts)),
        "env": "\n".join(f"{pair.get('name', '')}={pair.get('value', '')}" for pair in variables),
        "labels": "\n".join(f"{k}={v}" for k, v in dict(resource.get("labels") or {}).items()),
        "output": str(place.get("outputUriPrefix", "")),
        "timeout": str(scheduling.get("timeout", "")).removesuffix("s"),
        "base": json.dumps({name: resource[name] for name in _GIVEN if name in resource}),
        "rest": ""
        if same
        else "Its worker pools differ. The form has the first one; the others stay as they are.",
    }
