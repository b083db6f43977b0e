"""Turns a service into an emulator for tests of other programs (`trainshed emulate`).

Every caller is the owner of the service, a plan specifies the results of jobs, buckets that a request refers
to are created, and requests are recorded. If a rule of the plan matches a job, a tiny program replaces the
job's own program. The job then has the real states, logs, retries and timeline of the tiny program.
"""

import contextlib
import json
import os
import re
from fnmatch import fnmatchcase
from functools import cache
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from google.protobuf.message import Message
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from trainshed.api.calls.services import Services
from trainshed.buckets.errors import BucketsError
from trainshed.core.cluster import is_reducer
from trainshed.core.errors import FailedPrecondition, InvalidRequest, ResourceExhausted, Violation
from trainshed.core.job import JobSpec, Program
from trainshed.core.runtime import CONTAINER, RuntimeCatalog, RuntimeChoice, RuntimeRefusal
from trainshed.wire import json as wire_json
from trainshed.wire import pool, routes
from trainshed.wire.routes import Route

_SMALL: Final = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
"""A prebuilt image whose environment is built in seconds."""
_BUCKET: Final = re.compile(r"gs://([^/\"\\]+)")
_PROJECT: Final = re.compile(r"/projects/([^/:]+)")
_VARIABLE: Final = re.compile(r"\{([^={}]++)[^{}]*+\}")


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """The planned result of jobs."""

    #: Pattern of display names, or of AI Platform job IDs, with wildcards as for file names: `train-*`.
    job: str
    #: The exit status of each replica.
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0
    #: The running time of each replica in seconds.
    seconds: Annotated[float, Meta(ge=0)] = 0
    #: Text that each replica prints to standard error before it exits.
    prints: str = ""
    #: The measurements of a trial, by metric ID. Missing metrics have the value 0.
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    #: Whether the service rejects the job, as if it exceeded a quota.
    over_quota: bool = False


_PROGRAM: Final = """\
import json, os, sys, time, urllib.parse, urllib.request
rule = json.loads(sys.argv[1])
print("The emulator's plan runs this program in place of the job's own: " + sys.argv[1], flush=True)
time.sleep(rule["seconds"])
if file := os.environ.get("CLOUD_ML_HP_METRIC_FILE"):
    with open(file, "w") as lines:
        for metric, value in rule["metrics"].items():
            print(json.dumps({"trial": "0", metric: str(value), "global_step": "1"}), file=lines)
if (model := os.environ.get("AIP_MODEL_DIR")) and not rule["exit_code"]:
    bucket, _, name = model.removeprefix("gs://").partition("/")
    address = os.environ["STORAGE_EMULATOR_HOST"] + "/upload/storage/v1/b/" + bucket + "/o?uploadType=media"
    name = urllib.parse.quote(name + "emulated.txt", safe="")
    urllib.request.urlopen(address + "&name=" + name, data=b"a model")
if rule["prints"]:
    print(rule["prints"], file=sys.stderr)
sys.exit(rule["exit_code"])
"""


class _AnyImage:
    """A runtime catalog that accepts every image, because the image of a job whose program the emulator
    replaces may not exist."""

    def __init__(self, catalog: RuntimeCatalog) -> None:
        self._catalog = catalog

    def for_image(self, image_uri: str) -> RuntimeChoice:
        choice = self._catalog.for_image(image_uri)
        is_refused = isinstance(choice, RuntimeRefusal)
        return (
            RuntimeChoice(family=CONTAINER, version="", python_version="", image=image_uri)
            if is_refused
            else choice
        )

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        return self._catalog.for_runtime_version(runtime_version, python_version)


class Emulation:
    """The plan (the results of jobs) and the capture (the recorded requests) of one emulator."""

    def __init__(self, plan: Path | None, capture: Path | None) -> None:
        """`plan`: a JSON file with a list of rules. It is read again for each job, so that a test can change
        it. `capture`: a file for the requests, one line of JSON each. Raises FailedPrecondition."""
        self._plan = plan
        try:
            # Unbuffered, because a buffer would keep data after a failed write.
            self._file = capture.open("ab", buffering=0) if capture else None
        except OSError as failure:
            raise FailedPrecondition(
                f"The file of --capture {capture} cannot be opened: {failure.strerror}. Specify another file."
            ) from None
        self._rules()

    def around(self, services: Services) -> Services:
        self._services = services
        return replace(
            services,
            runtimes=_AnyImage(services.runtimes),
            replace_spec=self._replace_spec,
            on_request=self._receive,
        )

    def _rules(self) -> tuple[Rule, ...]:
        try:
            return msgspec.json.decode(
                self._plan.read_bytes() if self._plan else b"[]", type=tuple[Rule, ...]
            )
        except (OSError, ValueError) as failure:
            raise FailedPrecondition(
                f"The emulator's plan {self._plan} cannot be read: {failure}. Write a list of rules, such "
                f'as [{{"job": "train-*", "exit_code": 1}}].'
            ) from None

    def _replace_spec(self, name: str, spec: JobSpec, metrics: tuple[str, ...]) -> JobSpec:
        """Return the specification that replaces a job's own. `metrics`: the metric IDs of a trial."""
        catalog = self._services.runtimes
        rule = next((rule for rule in self._rules() if fnmatchcase(name, rule.job)), None)
        if rule is not None:
            small = catalog.for_image(_SMALL)
            assert isinstance(small, RuntimeChoice), "it runs on every Python of the service"
            measured = dict.fromkeys(metrics, 0.0) | rule.metrics
            return _emulate(replace(rule, metrics=measured), spec, small)
        refused = [
            Violation("", f"{answer.reason} Or add a rule for the job to the emulator's plan.")
            for pool in spec.pools
            if pool.program.runtime.family == CONTAINER
            and isinstance(answer := catalog.for_image(pool.program.runtime.image), RuntimeRefusal)
        ]
        if refused:
            raise InvalidRequest(tuple(refused))
        return spec

    def _receive(self, method: str, request: Message) -> None:
        """Record a request, and create the buckets that it refers to."""
        form = http_form(method, request)
        line = json.dumps(form)
        if self._file is not None:
            _append(self._file, f"{line}\n".encode())
        if form["method"] == "POST" and (parent := _PROJECT.search(form["path"])):
            services, project = self._services, parent[1]
            for bucket in _BUCKET.findall(line):
                # Ignore an invalid bucket name here, because the handler of the request reports it.
                with contextlib.suppress(BucketsError):
                    services.buckets.ensure(bucket, services.settings.region, project)


def _append(file: FileIO, line: bytes) -> None:
    """Append a whole line to a capture file, or nothing. Raises FailedPrecondition."""
    rest = line
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as failure:
        if written := len(line) - len(rest):
            file.truncate(os.fstat(file.fileno()).st_size - written)
        raise FailedPrecondition(
            f"The file of --capture {file.name} cannot be written: {failure.strerror}. The request was not "
            "executed. Fix the cause, and send the request again."
        ) from None


def _emulate(rule: Rule, spec: JobSpec, runtime: RuntimeChoice) -> JobSpec:
    """Return a specification whose programs, except for reducers, follow the rule.

    `runtime`: any runtime with Python. Raises ResourceExhausted if the rule rejects the job.
    """
    if rule.over_quota:
        kinds = {pool.machine.accelerators.type for pool in spec.pools if pool.machine.accelerators}
        names = sorted(kind.removeprefix("NVIDIA_").lower() for kind in kinds)
        quotas = [f"custom_model_training_nvidia_{name}_gpus" for name in names]
        quotas = quotas or ["custom_model_training_cpus"]
        metrics = ", ".join(f"aiplatform.googleapis.com/{quota}" for quota in quotas)
        raise ResourceExhausted(
            f"The following quota metrics exceed quota limits: {metrics} (from the emulator's rule for "
            f"{rule.job!r})."
        )
    command = ("python3", "-c", _PROGRAM, msgspec.json.encode(rule).decode())

    def emulate(program: Program) -> Program:
        return Program(runtime, program.image_uri, command=command, env=program.env)

    pools = (
        pool if is_reducer(spec, pool.position) else replace(pool, program=emulate(pool.program))
        for pool in spec.pools
    )
    return replace(spec, pools=tuple(pools))


def http_form(method: str, request: Message) -> dict[str, Any]:
    """Return a request of REST or gRPC in the form of REST: `method`, `path`, `query`, `body`. The argument
    `method` is the full name of its RPC."""
    route = _routes()[method]
    fields = wire_json.to_public(request)
    path = _VARIABLE.sub(lambda variable: str(attrgetter(variable[1])(request)), route.template.text)
    for name in _VARIABLE.findall(route.template.text):
        fields.pop(_json_name(request, name), None)
    body: Any = {}
    if route.body == "*":
        body, fields = fields, {}
    elif route.body:
        body = fields.pop(_json_name(request, route.body), {})
    return {"method": route.verb, "path": path, "query": fields, "body": body}


def _json_name(request: Message, name: str) -> str:
    """Return the JSON name of a request's field, or "" for a field of a nested message (`job.name`)."""
    known = request.DESCRIPTOR.fields_by_name.get(name)
    return known.json_name if known is not None else ""


@cache
def _routes() -> dict[str, Route]:
    """Return the first REST binding of each RPC, by its full name."""
    listed = [route for api in pool.APIS for route in routes.routes(api)]
    return {route.rpc.full_name: route for route in reversed(listed)}
