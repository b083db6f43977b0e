"""Submitting a job: what is typed is checked by the API's own validator as it is typed, and shown for other
clients."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from msgspec import UNSET

from trainshed.console.pages.job import describe
from trainshed.console.rendering import id_of
from trainshed.console.visits import View, Visit, job_path, redirect
from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.httpd.messages import Response
from trainshed.wire.status import Refused
from trainshed.wire.trainshed_v1.capacity import Explanation

_IMAGES: Final = "us-docker.pkg.dev/vertex-ai/training/"
IMAGES: Final = (
    f"{_IMAGES}scikit-learn-cpu.1-6:latest",
    f"{_IMAGES}pytorch-cpu.2-4.py310:latest",
    f"{_IMAGES}tf-cpu.2-17.py310:latest",
    f"{_IMAGES}xgboost-cpu.2-1:latest",
)
MACHINES: Final = (
    "n1-standard-4",
    "n1-standard-8",
    "n1-standard-16",
    "n1-highmem-8",
    "e2-standard-4",
)
_SCRIPT: Final = """import time

for epoch in range(1, 11):
    print(f"Epoch {epoch}/10 loss {1 / epoch:.3f}", flush=True)
    time.sleep(1)
"""
_OF_FIELDS: Final = (
    ("display_name", "name"),
    ("labels", "labels"),
    ("machine_type", "machine"),
    ("accelerator_count", "accelerators"),
    ("accelerator_type", "accelerator"),
    ("machine_spec", "machine"),
    ("replica_count", "replicas"),
    ("image_uri", "image"),
    ("env", "env"),
    ("command", "program"),
    ("args", "args"),
    ("output", "output"),
    ("timeout", "timeout"),
    ("location", "region"),
    ("project", "project"),
)
"""Parts of paths of the API's fields, and the field of the form that each stands for."""


@dataclass(slots=True)
class Draft:
    """A job that is being written: its JSON, and what is wrong with the form itself."""

    body: dict[str, Any]
    #: By field of the form; "" = of the whole.
    faults: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def fault(self, name: str, text: str) -> None:
        """Note it."""
        self.faults.setdefault(name, []).append(text)


async def page(visit: Visit) -> View:
    """`/submit[?from=JOB]`: an empty form, or one that is filled in as a job was."""
    form = default_form(visit)
    if visit.query("from"):
        source = await describe(_of(visit, visit.query("from")))
        form |= form_of(
            dict(source.resource) if source.resource and source.resource is not UNSET else {}
        )
    return await _shown(visit, form)


async def check(visit: Visit) -> View:
    """`POST /submit/check`: what is wrong with it, what would run where, the same job for other clients."""
    return await _shown(visit, visit.form, "_submit_result.html")


async def create(visit: Visit) -> Response | View:
    """`POST /submit`: store it, or say beside the fields what is wrong."""
    draft = draft_of(visit.form)
    if draft.faults:
        return await _shown(visit, visit.form, status=400)
    project, region = _place(visit, visit.form)
    path = f"/v1/projects/{project}/locations/{region}/customJobs"
    try:
        made = await visit.backend.call(
            visit.principal, "POST", path, json.dumps(draft.body).encode()
        )
    except Refused:
        return await _shown(visit, visit.form, status=400)
    return redirect(job_path(id_of(str(made["name"]))))


def _of(visit: Visit, job: str) -> Visit:
    return replace(visit, variables={"job": job})


def _place(visit: Visit, form: Mapping[str, str]) -> tuple[str, str]:
    project = form.get("project") or visit.principal.project or visit.facts.project
    return project, form.get("region") or visit.facts.region


async def _shown(
    visit: Visit, form: Mapping[str, str], template: str = "submit.html", *, status: int = 200
) -> View:
    draft = draft_of(form)
    project, region = _place(visit, form)
    plan: Explanation | None = None
    if not draft.faults:
        asked = {"api": "vertex", "project": project, "location": region, "job": draft.body}
        try:
            answer = await visit.do("POST", "jobs:explain", asked)
            assert isinstance(answer, Explanation)
            plan = answer
        except Refused as refused:
            _note(draft, refused)
    others = [
        (name, snippet(kind, Api.VERTEX, project, region, draft.body))
        for name, kind in (
            ("gcloud", SnippetForm.GCLOUD),
            ("Python", SnippetForm.PYTHON),
            ("JSON", SnippetForm.JSON),
        )
    ]
    return View(
        "New job",
        template,
        {
            "form": {**default_form(visit), **form},
            "faults": draft.faults,
            "plan": plan,
            "others": others,
            "images": IMAGES,
            "machines": MACHINES,
        },
        place="submit",
        status=status,
    )


def _note(draft: Draft, refused: Refused) -> None:
    """Each violation to the field of the form that it is about."""
    if not refused.violations:
        draft.fault("", str(refused))
    for violation in refused.violations:
        found = next((mine for part, mine in _OF_FIELDS if part in _snake(violation.field)), "")
        text = violation.description
        draft.fault(found, text if found else f"{violation.field}: {text}".lstrip(": "))


def _snake(path: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in path)


def default_form(visit: Visit) -> dict[str, str]:
    """What the form has before anything is typed."""
    return {
        "name": "first",
        "kind": "script",
        "script": _SCRIPT,
        "command": "",
        "args": "",
        "image": IMAGES[0],
        "machine": MACHINES[0],
        "replicas": "1",
        "accelerator": "",
        "accelerators": "1",
        "env": "",
        "labels": "",
        "output": "",
        "timeout": "",
        "project": visit.principal.project or visit.facts.project,
        "region": visit.facts.region,
        "rest": "",
    }


def draft_of(form: Mapping[str, str]) -> Draft:
    """The job's JSON that the form means."""
    draft = Draft({})

    def text(name: str) -> str:
        return form.get(name, "").replace("\r\n", "\n").strip()

    count = _count(draft, "replicas", text("replicas"))
    machine: dict[str, Any] = {"machineType": text("machine")}
    if text("accelerator"):
        machine["acceleratorType"] = text("accelerator")
        machine["acceleratorCount"] = _count(draft, "accelerators", text("accelerators"))
    container: dict[str, Any] = {"imageUri": text("image")}
    if form.get("kind") == "command":
        container["command"] = _words(draft, "program", text("command"))
    else:
        script = form.get("script", "").replace("\r\n", "\n")
        if not script.strip():
            draft.fault("program", "Type a program.")
        container["command"] = ["python3", "-u", "-c", script]
    if text("args"):
        container["args"] = _words(draft, "args", text("args"))
    if text("env"):
        pairs = _pairs(draft, "env", text("env"))
        container["env"] = [{"name": name, "value": value} for name, value in pairs.items()]
    pool = {"machineSpec": machine, "replicaCount": 1, "containerSpec": container}
    pools: list[dict[str, Any]] = [pool]
    if count > 1:
        pools.append({**pool, "replicaCount": count - 1})
    spec: dict[str, Any] = {"workerPoolSpecs": pools}
    if text("output"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": text("output")}
    if text("timeout"):
        spec["scheduling"] = {"timeout": f"{text('timeout').removesuffix('s')}s"}
    draft.body = {"displayName": text("name"), "jobSpec": spec}
    if text("labels"):
        draft.body["labels"] = _pairs(draft, "labels", text("labels"))
    return draft


def _count(draft: Draft, name: str, text: str) -> int:
    """A number from 1 on."""
    if text in ("", "1"):
        return 1
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < 1:
        draft.fault(name, f"{text!r} is no whole number from 1 on.")
        return 1
    return int(text)


def _words(draft: Draft, name: str, text: str) -> list[str]:
    """Words as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError as wrong:
        draft.fault(name, f"It cannot be split into words: {wrong}.")
        return []


def _pairs(draft: Draft, name: str, text: str) -> dict[str, str]:
    """Lines or words `NAME=VALUE`."""
    found: dict[str, str] = {}
    for line in filter(None, (part.strip() for part in text.splitlines())):
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip()
        else:
            draft.fault(name, f"{line!r} has no =; write NAME=VALUE, one a line.")
    return found


def form_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """The form that means a custom job, as far as it can: its first pool's program, all replicas alike."""
    spec: Any = resource.get("jobSpec") or {}
    pools = [pool for pool in cast(Sequence[Any], spec.get("workerPoolSpecs") or ()) if pool]
    if not pools:
        return {}
    first: Any = pools[0]
    container: Any = first.get("containerSpec") or {}
    machine: Any = first.get("machineSpec") or {}
    package: Any = first.get("pythonPackageSpec") or {}
    command = list(container.get("command") or ())
    is_script = command[:2] == ["python3", "-u"] and len(command) == 4 and command[2] == "-c"
    if not is_script and len(command) == 3 and command[:2] == ["python3", "-c"]:
        is_script = True
    arguments: Any = container.get("args") or package.get("args") or ()
    place: Any = spec.get("baseOutputDirectory") or {}
    accelerator = str(machine.get("acceleratorType", ""))
    return {
        "name": str(resource.get("displayName", "")),
        "kind": "script" if is_script else "command",
        "script": command[-1] if is_script else _SCRIPT,
        "command": "" if is_script else shlex.join(command),
        "args": shlex.join([str(word) for word in arguments]),
        "image": str(container.get("imageUri") or package.get("executorImageUri") or IMAGES[0]),
        "machine": str(machine.get("machineType", MACHINES[0])),
        "accelerator": "" if accelerator.endswith("UNSPECIFIED") else accelerator,
        "accelerators": str(machine.get("acceleratorCount", 1)),
        "replicas": str(sum(int(pool.get("replicaCount", 1)) for pool in pools)),
        "env": "\n".join(
            f"{pair.get('name', '')}={pair.get('value', '')}" for pair in container.get("env") or ()
        ),
        "labels": "\n".join(f"{k}={v}" for k, v in dict(resource.get("labels") or {}).items()),
        "output": str(place.get("outputUriPrefix", "")),
        "rest": "It ran a Python package, which this form cannot name: give the command instead."
        if package
        else "",
    }
