"""What makes a service an emulator for tests of other programs (`trainshed emulate`): whoever calls is its
owner, jobs end as a plan says, the buckets of requests are there, and what clients send is written down.

By a plan a tiny program runs in place of a job's own. The rest of the job's life is real: its states, logs,
retries and timeline are those of that program.
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
"""An image whose environment is built in seconds."""
_BUCKET: Final = re.compile(r"gs://([^/\"\\]+)")
_PROJECT: Final = re.compile(r"/projects/([^/:]+)")
_VARIABLE: Final = re.compile(r"\{([^={}]++)[^{}]*+\}")


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of the jobs that it is for."""

    #: Pattern of display names, for AI Platform of job ids, as of file names: `train-*`.
    job: str
    #: The status with which each replica ends.
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0
    #: Seconds that each replica runs.
    seconds: Annotated[float, Meta(ge=0)] = 0
    #: What each replica prints on standard error at its end.
    prints: str = ""
    #: What a trial measures, by the ids of metrics; of others 0.
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    #: Whether the job is refused when it is submitted, because it would exceed a quota.
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
    """A catalog that takes every image: what a plan has replaced need not be there."""

    def __init__(self, catalog: RuntimeCatalog) -> None:
        self._catalog = catalog

    def for_image(self, image_uri: str) -> RuntimeChoice:
        choice = self._catalog.for_image(image_uri)
        is_refused = isinstance(choice, RuntimeRefusal)
        return RuntimeChoice(CONTAINER, "", "", image=image_uri) if is_refused else choice

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        return self._catalog.for_runtime_version(runtime_version, python_version)


class Emulation:
    """The plan and the capture of one emulator."""

    def __init__(self, plan: Path | None, capture: Path | None) -> None:
        """`plan`: a JSON list of rules, read anew for each job, so that a test can change it; `capture`: a
        file to which each request is added as a line of JSON. Raises FailedPrecondition."""
        self._plan = plan
        try:
            # Without a buffer, which would keep what could not be written.
            self._file = capture.open("ab", buffering=0) if capture else None
        except OSError as failure:
            raise FailedPrecondition(f"--capture {capture}: {failure.strerror}.") from None
        self._rules()

    def around(self, services: Services) -> Services:
        self._services = services
        return replace(
            services,
            runtimes=_AnyImage(services.runtimes),
            instead=self._instead,
            sent=self._receive,
        )

    def _rules(self) -> tuple[Rule, ...]:
        try:
            return msgspec.json.decode(
                self._plan.read_bytes() if self._plan else b"[]", type=tuple[Rule, ...]
            )
        except (OSError, ValueError) as failure:
            raise FailedPrecondition(
                f"The emulator's plan {self._plan} cannot be read: {failure}. It is a list of rules, such as "
                '[{"job": "train-*", "exit_code": 1}].'
            ) from None

    def _instead(self, name: str, spec: JobSpec, metrics: tuple[str, ...]) -> JobSpec:
        """Return what is run in place of a job's specification. `metrics`: the ids of those of a trial."""
        catalog = self._services.runtimes
        rule = next((rule for rule in self._rules() if fnmatchcase(name, rule.job)), None)
        if rule is not None:
            small = catalog.for_image(_SMALL)
            assert isinstance(small, RuntimeChoice), "it runs on every Python of the service"
            measured = dict.fromkeys(metrics, 0.0) | rule.metrics
            return _emulated(replace(rule, metrics=measured), spec, small)
        refused = [
            Violation("", f"{answer.reason} Or give the job a rule in the emulator's plan.")
            for pool in spec.pools
            if pool.program.runtime.family == CONTAINER
            and isinstance(answer := catalog.for_image(pool.program.runtime.image), RuntimeRefusal)
        ]
        if refused:
            raise InvalidRequest(tuple(refused))
        return spec

    def _receive(self, method: str, request: Message) -> None:
        """Write a request down, and make the buckets that it names."""
        form = http_form(method, request)
        line = json.dumps(form)
        if self._file is not None:
            _append(self._file, f"{line}\n".encode())
        if form["method"] == "POST" and (parent := _PROJECT.search(form["path"])):
            services, project = self._services, parent[1]
            for bucket in _BUCKET.findall(line):
                # What is no name of a bucket is told by the handler.
                with contextlib.suppress(BucketsError):
                    services.buckets.ensure(bucket, services.settings.region, project)


def _append(file: FileIO, line: bytes) -> None:
    """Add all of a line to a capture, or nothing. Raises FailedPrecondition."""
    rest = line
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as failure:
        if written := len(line) - len(rest):
            file.truncate(os.fstat(file.fileno()).st_size - written)
        raise FailedPrecondition(
            f"--capture {file.name}: {failure.strerror}. The request was not carried out."
        ) from None


def _emulated(rule: Rule, spec: JobSpec, runtime: RuntimeChoice) -> JobSpec:
    """Return a specification whose programs, other than reducers, do what the rule says. `runtime`: any with
    Python. Raises ResourceExhausted if the rule refuses the job."""
    if rule.over_quota:
        kinds = {pool.machine.accelerators.type for pool in spec.pools if pool.machine.accelerators}
        names = sorted(kind.removeprefix("NVIDIA_").lower() for kind in kinds)
        quotas = [f"custom_model_training_nvidia_{name}_gpus" for name in names]
        quotas = quotas or ["custom_model_training_cpus"]
        metrics = ", ".join(f"aiplatform.googleapis.com/{quota}" for quota in quotas)
        raise ResourceExhausted(
            f"The following quota metrics exceed quota limits: {metrics} (so says the emulator's rule for "
            f"{rule.job!r})."
        )
    command = ("python3", "-c", _PROGRAM, msgspec.json.encode(rule).decode())

    def emulated(program: Program) -> Program:
        return Program(runtime, program.image_uri, command=command, env=program.env)

    pools = (
        pool if is_reducer(spec, pool.position) else replace(pool, program=emulated(pool.program))
        for pool in spec.pools
    )
    return replace(spec, pools=tuple(pools))


def http_form(method: str, request: Message) -> dict[str, Any]:
    """Return a request, over whatever transport it came, as REST has it: `method`, `path`, `query`, `body`.
    `method`: the full name of its RPC."""
    route = _routes()[method]
    fields = wire_json.to_public(request)
    path = _VARIABLE.sub(
        lambda variable: str(attrgetter(variable[1])(request)), route.template.text
    )
    for name in _VARIABLE.findall(route.template.text):
        fields.pop(_json_name(request, name), None)
    body: Any = {}
    if route.body == "*":
        body, fields = fields, {}
    elif route.body:
        body = fields.pop(_json_name(request, route.body), {})
    return {"method": route.verb, "path": path, "query": fields, "body": body}


def _json_name(request: Message, name: str) -> str:
    """Return a field's name in JSON; "" for a field of a part, which stays in it."""
    known = request.DESCRIPTOR.fields_by_name.get(name)
    return known.json_name if known is not None else ""


@cache
def _routes() -> dict[str, Route]:
    """Return the first REST binding of each RPC, by its full name."""
    listed = [route for api in pool.APIS for route in routes.routes(api)]
    return {route.rpc.full_name: route for route in reversed(listed)}
