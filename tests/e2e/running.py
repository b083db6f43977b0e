"""A real service for end-to-end tests: started as a user would, on free ports, in a directory of its own."""

import atexit
import contextlib
import functools
import http.client
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from click.testing import CliRunner

from tests.commands import execute
from tests.e2e import nursery
from trainshed.__main__ import group

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "test-cache"
"""Runtimes built once for all test runs of a checkout; never the user's own cache."""

SKLEARN = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:slim"
SLIM = "1.6+slim" if sys.version_info < (3, 14) else "1.9+slim"
"""The release of scikit-learn in which jobs run that do not care."""
SMALL = f'runtime = "scikit-learn {SLIM}"\npython = "3.10"'
"""Lines of a service's settings: images stand for the environment that `SKLEARN` has."""
PROJECT, REGION = "trainshed", "us-central1"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Of an error."""
        return self.json["error"]["message"]


@dataclass
class Service:
    """A running service. `rest` is its URL; `kill` and `terminate` end the service process alone."""

    data: Path
    process: subprocess.Popen[bytes] | nursery.Forked
    rest: str
    token: str
    pid: int
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @contextlib.contextmanager
    def opened(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        place: str = "rest",
        token: str | None = "",
        headers: Mapping[str, str] = {},
        seconds: float = 60,
    ) -> Generator[http.client.HTTPResponse]:
        """The answer of one request on a connection of its own. `body`: JSON, unless it is bytes or a file,
        which is sent in chunks. `place`: of service.json. `token`: the service's own if it is empty; None
        sends none."""
        parts = urlsplit(self.rest if place == "rest" else str(self.extra[place]))
        is_tls = parts.scheme == "https"
        connect = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = connect(parts.hostname or "", parts.port, timeout=seconds)
        known = {} if token is None else {"Authorization": f"Bearer {token or self.token}"}
        if body is not None and not isinstance(body, bytes | io.IOBase):
            known["Content-Type"] = "application/json"
            body = json.dumps(body).encode()
        with contextlib.closing(connection):
            connection.request(verb, path, body, {**known, **headers})
            yield connection.getresponse()

    def ask(self, verb: str, path: str, body: Any = None, **how: Any) -> Answer:
        """The whole answer, whatever it says; with what `opened` takes."""
        with self.opened(verb, path, body, **how) as answer:
            return Answer(answer.status, answer.headers, answer.read())

    def call(self, verb: str, path: str, body: Any = None, *, expect: int = 200) -> Any:
        """One JSON request with the service's token; asserts the HTTP status."""
        answer = self.ask(verb, path, body)
        text = answer.body.decode(errors="replace")
        assert answer.status == expect, f"{verb} {path}: {answer.status} {text}"
        return answer.json if text else None

    def watch(self, job_id: str, seconds: float = math.inf) -> Iterator[dict[str, Any]]:
        """Views of a job at each change, until its end; sleeps on the service's stream, never polls. Fails if
        the job has not ended after so many seconds."""
        end = time.monotonic() + seconds
        last: Any = None
        for line in self.stream(f"/trainshed/v1/jobs/{job_id}/watch"):
            if line.strip():
                yield (last := json.loads(line))
            assert time.monotonic() < end, f"{job_id} is not over after {seconds} s: {last}"

    def finish(self, job_id: str, seconds: float = math.inf) -> dict[str, Any]:
        """Wait for the end of a job; the last view. Fails if it has not come after so many seconds."""
        return list(self.watch(job_id, seconds))[-1]

    def wait_for_autopsy(self, job_id: str) -> None:
        """Wait for what a failed job left: it is taken care of after its end is told."""
        end = time.monotonic() + 60
        while not self.call("GET", f"/trainshed/v1/jobs/{job_id}")["autopsies"]:
            assert time.monotonic() < end, f"{job_id} left nothing within a minute"
            time.sleep(0.05)

    def lines(self, job_id: str, replica: str | None = None) -> list[str]:
        """All log messages of the programs of a job that is over, oldest first; with `replica` "service"
        those of builds."""
        return list(self._messages(job_id, replica))

    def follow(self, job_id: str, replica: str | None = None) -> Iterator[str]:
        """Log messages of programs, of one replica or of all, as they come, until the end of the job."""
        return self._messages(job_id, replica, follow="true")

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Upload an object."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        kind = {"Content-Type": "application/octet-stream"}
        assert self.ask("POST", path, content, headers=kind).status == 200

    def read(self, bucket: str, name: str, generation: str = "") -> bytes:
        """The content of an object."""
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media&generation={generation}"
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.body

    def _messages(self, job_id: str, replica: str | None, **query: str) -> Iterator[str]:
        query |= {"replica": replica} if replica else {}
        lines = self.stream(f"/trainshed/v1/jobs/{job_id}/logs?{urlencode(query)}")
        entries = map(json.loads, filter(bytes.strip, lines))
        return (line["message"] for line in entries if replica or line["task"] != "service")

    def stream(self, path: str) -> Iterator[bytes]:
        """The lines of an answer as they come; a silent one has a blank line now and then."""
        with self.opened("GET", path, seconds=180) as answer:
            assert answer.status == 200, answer.read()
            yield from answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=60)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "trainshed", *args]


def trainshed(
    *arguments: str,
    data: Path,
    stdin: str = "",
    status: int | None = 0,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command on a service to its end; what it loads is loaded already (tests/e2e/nursery.py).
    `status`: what it has to end with; None if that does not matter."""
    words = ["-m", "trainshed", *arguments]
    run = nursery.services().run(
        words, {**environment(data), **(variables or {})}, stdin=stdin.encode(), cwd=cwd
    )
    done = subprocess.CompletedProcess(
        words, run.returncode, run.stdout.decode(), run.stderr.decode()
    )
    assert status in (None, done.returncode), (done.stdout, done.stderr)
    return done


@functools.cache
def common_place() -> Path:
    """A directory that programs may read, pipes in it write to as well: they find nothing else of the
    machine's /tmp."""
    place = Path(tempfile.mkdtemp(prefix="trainshed-commons-"))
    place.chmod(0o755)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@functools.cache
def _certificates() -> Path:
    """Where services of this process find certificates: those of the first, which made them."""
    place = Path(tempfile.mkdtemp(prefix="trainshed-tls-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place / "tls"


@functools.cache
def _pythons() -> Path:
    """In the place of pyenv's directory: those of its Pythons that jobs of tests run in. A service runs each
    that it finds, which takes as long as all else of its start."""
    place = Path(tempfile.mkdtemp(prefix="trainshed-pyenv-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "versions").mkdir()
    real = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for minor in ("3.7", "3.10", "3.11"):
        for python in real.glob(f"{minor}.*"):
            (place / "versions" / python.name).symlink_to(python)
    return place


def environment(data: Path) -> dict[str, str]:
    # A service asks the tool for images how it is; a tool is for tests that gave it a storage of its own.
    images = {} if "CONTAINERS_STORAGE_CONF" in os.environ else {"TRAINSHED_CONTAINER_TOOL": "none"}
    return {
        **images,
        **{k: v for k, v in os.environ.items() if not k.startswith(("CLOUDSDK_", "GOOGLE_"))},
        "TRAINSHED_DATA": str(data),
        "TRAINSHED_CACHE": str(CACHE),
        "TRAINSHED_VISIBLE_PATHS": ":".join(
            filter(None, (str(common_place()), os.environ.get("TRAINSHED_VISIBLE_PATHS")))
        ),
    }


@contextlib.contextmanager
def beginning(place: Path, *words: str, **variables: str) -> Generator["subprocess.Popen[str]"]:
    """A command that has a service of its own, and its temporary directory in `place`."""
    (place / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        command(*words),
        cwd=place,
        env=environment(place / "unused") | {"TMPDIR": str(place / "tmp")} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


class NotStarted(AssertionError):
    """A service ended before it served requests; the message has its log."""


def ready(
    data: Path, process: subprocess.Popen[bytes] | nursery.Forked, reader: int, log: Path
) -> Service:
    """The service of a process that was given the other end of `reader` as `--ready-fd`; returns once it
    serves requests. Raises NotStarted."""
    with os.fdopen(reader) as pipe:
        line = pipe.readline()
    if not line:
        process.wait()
        raise NotStarted(f"the service did not start:\n{log.read_text()}")
    facts = json.loads(line)
    return Service(data, process, facts["rest"], facts["token"], facts["pid"], facts)


def launch(argv: Sequence[str], log: Path, **options: Any) -> tuple[subprocess.Popen[bytes], int]:
    """A process of `up` with options of Popen's, and the end of a pipe for `ready`."""
    reader, writer = os.pipe()
    with log.open("ab") as output:
        process = subprocess.Popen[bytes](
            [*argv, "--ready-fd", str(writer)],
            pass_fds=(writer,),
            stdout=output,
            stderr=output,
            **options,
        )
    os.close(writer)
    return process, reader


def start(
    data: Path,
    *args: str,
    prefix: Sequence[str] = (),
    own_group: bool = False,
    new_authority: bool = False,
    forked: bool = True,
) -> Service:
    """`trainshed up` on a free port; returns once it serves requests.

    `prefix`: a command that runs it, such as `unshare --user`. `own_group`: as from a shell, its own process
    group. `new_authority`: it makes its certificates, which costs it half a second, as users' services do.
    `forked`: what it loads is loaded already (tests/e2e/nursery.py).
    """
    data.mkdir(parents=True, exist_ok=True)
    if not new_authority and _certificates().exists() and not (data / "tls").exists():
        shutil.copytree(_certificates(), data / "tls")
    log = data / "service.log"
    words = ["up", "--port", "0", "--data", str(data), *args]
    environ = environment(data) | {"PYENV_ROOT": str(_pythons())}
    process: subprocess.Popen[bytes] | nursery.Forked
    if forked and not prefix and not own_group:
        reader, writer = os.pipe()
        with log.open("ab") as output:
            process = nursery.services().fork(
                ["-m", "trainshed", *words, "--ready-fd", str(writer)],
                environ,
                stdout=output.fileno(),
                stderr=output.fileno(),
                kept=[writer],
            )
        os.close(writer)
    else:
        group = 0 if own_group else None
        argv = [*prefix, *command(*words)]
        process, reader = launch(argv, log, env=environ, process_group=group)
    service = ready(data, process, reader, log)
    if (
        not new_authority
        and not _certificates().exists()
        and (data / "tls" / "server.pem").exists()
    ):
        shutil.copytree(data / "tls", _certificates())
    return service


@contextlib.contextmanager
def running(
    data: Path, *args: str, settings: str = "", new_authority: bool = False, forked: bool = True
) -> Generator[Service]:
    """A service that is gone with its jobs when the block ends. `settings`: its file of them."""
    if settings:
        config = data.with_suffix(".toml")
        config.write_text(settings)
        args = (*args, "--config", str(config))
    service = start(data, *args, new_authority=new_authority, forked=forked)
    try:
        yield service
    finally:
        try:
            if service.process.poll() is None:
                down(data)
        finally:
            if service.process.poll() is None:
                service.kill()


def down(data: Path) -> None:
    """`trainshed down` in this process, which has loaded what it needs already."""
    CliRunner().invoke(group, ["down", "--data", str(data)], catch_exceptions=False)


def worker_pool(
    count: int = 1, machine: str = "n1-standard-4", **program: object
) -> dict[str, Any]:
    """One of so many replicas; 0 replicas skip it."""
    if not count:
        return {}
    return {"machineSpec": {"machineType": machine}, "replicaCount": str(count), **program}


def custom_job(*pools: dict[str, Any], name: str = "job") -> dict[str, Any]:
    return {"displayName": name, "jobSpec": {"workerPoolSpecs": list(pools)}}


def container_job(script: str, *, pools: Sequence[int] = (1,), name: str = "job") -> dict[str, Any]:
    """A CustomJob that runs a Python script in the scikit-learn image; 0 replicas skip a pool."""

    def program() -> dict[str, Any]:
        return {"imageUri": SKLEARN, "command": ["python3", "-c", script]}

    return custom_job(*(worker_pool(count, containerSpec=program()) for count in pools), name=name)


CUSTOM_JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/customJobs"


def submit(service: Service, body: dict[str, Any]) -> str:
    """Create a CustomJob; returns its id."""
    return service.call("POST", CUSTOM_JOBS, body)["name"].rsplit("/", 1)[1]


def given_by_env(service: Service) -> dict[str, str]:
    """The environment of a shell after `eval "$(trainshed env)"`."""
    printed = trainshed("env", data=service.data).stdout
    shell = execute(
        "/bin/sh", "-c", f"{printed}\nenv -0", env=environment(service.data), check=True, timeout=60
    ).stdout
    return dict(row.split("=", 1) for row in shell.split("\0") if row)


def seen_by(
    program: Path, *arguments: str, variables: dict[str, str], seconds: float = 240
) -> dict[str, Any]:
    """Run a client's program, for so many seconds at most, and return the JSON of its one line `SEEN ...`."""
    done = nursery.sdk_programs().run([str(program), *arguments], variables, seconds=seconds)
    assert done.returncode == 0, done.stderr.decode()
    return json_of(done.stdout.decode().splitlines(), "SEEN")


def json_of(lines: Iterable[str], word: str) -> Any:
    """The JSON behind the one line that begins with `word`."""
    (line,) = (line for line in lines if line.startswith(f"{word} "))
    return json.loads(line.removeprefix(word))


KEPT_CHANNEL = "import grpc; kept = grpc.insecure_channel('localhost:1')\n"
"""Keeps gRPC's threads: when the last channel is collected, gRPC 1.85 waits for them with Python's lock, and
for ever if one of them drops an object of Python (grpc/grpc#42247)."""

_SDK = """
import json, os, pathlib, sys, time
from google.cloud import aiplatform
from google.oauth2.credentials import Credentials

transport, endpoint, token, *arguments = sys.argv[1:]
aiplatform.init(
    project="trainshed",
    location="us-central1",
    api_endpoint=endpoint,
    api_transport=transport,
    credentials=Credentials(token),
    staging_bucket="gs://trainshed",
)
"""


def seen_by_sdk(
    service: Service, program: str, *arguments: str, transport: str = "grpc", seconds: float = 240
) -> dict[str, Any]:
    """Return what a program says of the Vertex SDK, over gRPC with TLS or REST: it goes on from `_SDK`, and
    finds its own arguments in `arguments`."""
    endpoint = str(service.extra["grpc_tls"]) if transport == "grpc" else service.rest
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "program.py")
        path.write_text(KEPT_CHANNEL + _SDK + program)
        words = (transport, endpoint, service.token, *arguments)
        return seen_by(path, *words, variables=given_by_env(service), seconds=seconds)
