"""A real service for end-to-end tests: started like a user's, on free ports, in its own directory."""

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
from tests.e2e import fork_server
from trainshed.__main__ import group

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "test-cache"
"""Runtimes built once for all test runs of a checkout, separate from the user's cache."""

SKLEARN = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:slim"
SLIM = "1.6+slim" if sys.version_info < (3, 14) else "1.9+slim"
"""The scikit-learn version of jobs without special needs."""
SMALL = f'runtime = "scikit-learn {SLIM}"\npython = "3.10"'
"""Settings of a service: all images use the environment of `SKLEARN`."""
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
        """Lines of the log in an error."""
        return self.json["error"]["message"]


@dataclass
class Service:
    """A running service. `rest` is its URL. `kill` and `terminate` end only the service process."""

    data: Path
    process: subprocess.Popen[bytes] | fork_server.ForkedProcess
    rest: str
    token: str
    pid: int
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @contextlib.contextmanager
    def open_response(
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
        """Send a request on a new connection; return the response. `body`: JSON, bytes, or a file, which is
        sent in chunks. `place`: of service.json. `token`: "" sends the service's own, None sends none.
        """
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
        """Return the complete response with any status. Arguments as in `opened`."""
        with self.open_response(verb, path, body, **how) as answer:
            return Answer(answer.status, answer.headers, answer.read())

    def call(self, verb: str, path: str, body: Any = None, *, expect: int = 200) -> Any:
        """Send a JSON request with the service's token; assert the HTTP status."""
        answer = self.ask(verb, path, body)
        text = answer.body.decode(errors="replace")
        assert answer.status == expect, f"{verb} {path}: {answer.status} {text}"
        return answer.json if text else None

    def watch(self, job_id: str, seconds: float = math.inf) -> Iterator[dict[str, Any]]:
        """Yield views of a job at each change, until its end, from the service's stream. Fails if the job
        does not end in time.
        """
        end = time.monotonic() + seconds
        last: Any = None
        for line in self.stream(f"/trainshed/v1/jobs/{job_id}/watch"):
            if line.strip():
                yield (last := json.loads(line))
            assert time.monotonic() < end, f"{job_id} is not over after {seconds} s: {last}"

    def finish(self, job_id: str, seconds: float = math.inf) -> dict[str, Any]:
        """Wait for the end of a job; return the last view. Fails if it does not end in time."""
        return list(self.watch(job_id, seconds))[-1]

    def wait_for_autopsy(self, job_id: str) -> None:
        """Wait for the files of a failed job, which are stored after its end is published."""
        end = time.monotonic() + 60
        while not self.call("GET", f"/trainshed/v1/jobs/{job_id}")["autopsies"]:
            assert time.monotonic() < end, f"{job_id} left nothing within a minute"
            time.sleep(0.05)

    def lines(self, job_id: str, replica: str | None = None) -> list[str]:
        """Return all log messages of a finished job's programs, oldest first. `replica` "service": those of
        builds.
        """
        return list(self._messages(job_id, replica))

    def follow(self, job_id: str, replica: str | None = None) -> Iterator[str]:
        """Yield log messages of one replica or of all, live, until the end of the job."""
        return self._messages(job_id, replica, follow="true")

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Upload an object."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        kind = {"Content-Type": "application/octet-stream"}
        assert self.ask("POST", path, content, headers=kind).status == 200

    def read(self, bucket: str, name: str, generation: str = "") -> bytes:
        """Return the content of an object."""
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
        """Yield the lines of a response as they arrive. A silent one has blank lines."""
        with self.open_response("GET", path, seconds=180) as answer:
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
    """Run a command on a service, with its modules already loaded (tests/e2e/fork_server.py). `status`:
    expected exit status; None = any.
    """
    words = ["-m", "trainshed", *arguments]
    run = fork_server.services().run(
        words, {**environment(data), **(variables or {})}, stdin=stdin.encode(), cwd=cwd
    )
    done = subprocess.CompletedProcess(words, run.returncode, run.stdout.decode(), run.stderr.decode())
    assert status in (None, done.returncode), (done.stdout, done.stderr)
    return done


@functools.cache
def common_place() -> Path:
    """A directory that programs may read, with pipes that they may write: the rest of the machine's /tmp is
    hidden.
    """
    place = Path(tempfile.mkdtemp(prefix="trainshed-commons-"))
    place.chmod(0o755)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@functools.cache
def _certificates() -> Path:
    """The certificates of this process's services, created by the first one."""
    place = Path(tempfile.mkdtemp(prefix="trainshed-tls-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place / "tls"


@functools.cache
def _pythons() -> Path:
    """Replaces pyenv's directory: only the Pythons that jobs of tests use. A service runs each Python that it
    finds, which takes as long as the rest of its start.
    """
    place = Path(tempfile.mkdtemp(prefix="trainshed-pyenv-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "versions").mkdir()
    real = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for minor in ("3.7", "3.10", "3.11"):
        for python in real.glob(f"{minor}.*"):
            (place / "versions" / python.name).symlink_to(python)
    return place


def environment(data: Path) -> dict[str, str]:
    # A service runs the image tool to check it. Only tests with their own image storage have a tool.
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
    """Run a command with its own service, with its temporary directory in `place`."""
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
    """A service exited before it was ready. The message contains its log."""


def ready(
    data: Path, process: subprocess.Popen[bytes] | fork_server.ForkedProcess, reader: int, log: Path
) -> Service:
    """Return the service of a process that writes to `reader` through `--ready-fd`, as soon as it is ready.
    Raises NotStarted.
    """
    with os.fdopen(reader) as pipe:
        line = pipe.readline()
    if not line:
        process.wait()
        raise NotStarted(f"the service did not start:\n{log.read_text()}")
    facts = json.loads(line)
    return Service(data, process, facts["rest"], facts["token"], facts["pid"], facts)


def launch(argv: Sequence[str], log: Path, **options: Any) -> tuple[subprocess.Popen[bytes], int]:
    """Start `up` with options of Popen; return the process and the pipe for `ready`."""
    reader, writer = os.pipe()
    with log.open("ab") as output:
        process = subprocess.Popen[bytes](
            [*argv, "--ready-fd", str(writer)], pass_fds=(writer,), stdout=output, stderr=output, **options
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
    """Start `trainshed up` on a free port; return when it is ready.

    `prefix`: a command that runs it, such as `unshare --user`. `own_group`: a separate process group, as from
    a shell. `new_authority`: it creates its certificates, which takes half a second, like a user's service.
    `forked`: its modules are already loaded (tests/e2e/fork_server.py).
    """
    data.mkdir(parents=True, exist_ok=True)
    if not new_authority and _certificates().exists() and not (data / "tls").exists():
        shutil.copytree(_certificates(), data / "tls")
    log = data / "service.log"
    words = ["up", "--port", "0", "--data", str(data), *args]
    environ = environment(data) | {"PYENV_ROOT": str(_pythons())}
    process: subprocess.Popen[bytes] | fork_server.ForkedProcess
    if forked and not prefix and not own_group:
        reader, writer = os.pipe()
        with log.open("ab") as output:
            process = fork_server.services().fork(
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
    if not new_authority and not _certificates().exists() and (data / "tls" / "server.pem").exists():
        shutil.copytree(data / "tls", _certificates())
    return service


@contextlib.contextmanager
def running(
    data: Path, *args: str, settings: str = "", new_authority: bool = False, forked: bool = True
) -> Generator[Service]:
    """A service that is stopped with its jobs at the end of the block. `settings`: its configuration file."""
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
    """Run `trainshed down` in this process, which has its modules loaded."""
    CliRunner().invoke(group, ["down", "--data", str(data)], catch_exceptions=False)


def worker_pool(count: int = 1, machine: str = "n1-standard-4", **program: object) -> dict[str, Any]:
    """Return a pool with this number of replicas; None for 0."""
    if not count:
        return {}
    return {"machineSpec": {"machineType": machine}, "replicaCount": str(count), **program}


def custom_job(*pools: dict[str, Any], name: str = "job") -> dict[str, Any]:
    return {"displayName": name, "jobSpec": {"workerPoolSpecs": list(pools)}}


def container_job(script: str, *, pools: Sequence[int] = (1,), name: str = "job") -> dict[str, Any]:
    """Return a CustomJob that runs a Python script in the scikit-learn image. 0 replicas omit a pool."""

    def program() -> dict[str, Any]:
        return {"imageUri": SKLEARN, "command": ["python3", "-c", script]}

    return custom_job(*(worker_pool(count, containerSpec=program()) for count in pools), name=name)


CUSTOM_JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/customJobs"


def submit(service: Service, body: dict[str, Any]) -> str:
    """Create a CustomJob; return its ID."""
    return service.call("POST", CUSTOM_JOBS, body)["name"].rsplit("/", 1)[1]


def env_variables(service: Service) -> dict[str, str]:
    """Return the environment of a shell after `eval "$(trainshed env)"`."""
    printed = trainshed("env", data=service.data).stdout
    shell = execute(
        "/bin/sh", "-c", f"{printed}\nenv -0", env=environment(service.data), check=True, timeout=60
    ).stdout
    return dict(row.split("=", 1) for row in shell.split("\0") if row)


def seen_by(
    program: Path, *arguments: str, variables: dict[str, str], seconds: float = 240
) -> dict[str, Any]:
    """Run a client's program within a time limit; return the JSON of its line `SEEN ...`."""
    done = fork_server.sdk_programs().run([str(program), *arguments], variables, seconds=seconds)
    assert done.returncode == 0, done.stderr.decode()
    return json_of(done.stdout.decode().splitlines(), "SEEN")


def json_of(lines: Iterable[str], word: str) -> Any:
    """Return the JSON after `word` of the single line that starts with it."""
    (line,) = (line for line in lines if line.startswith(f"{word} "))
    return json.loads(line.removeprefix(word))


KEPT_CHANNEL = "import grpc; kept = grpc.insecure_channel('localhost:1')\n"
"""Keep gRPC's threads. gRPC 1.85 waits for them with the GIL when the last channel is collected, forever if
one of them drops a Python object (grpc/grpc#42247).
"""

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
    """Return the output of a program with the Vertex SDK, over gRPC with TLS or REST. It continues `_SDK`,
    and `arguments` contains its arguments.
    """
    endpoint = str(service.extra["grpc_tls"]) if transport == "grpc" else service.rest
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "program.py")
        path.write_text(KEPT_CHANNEL + _SDK + program)
        words = (transport, endpoint, service.token, *arguments)
        return seen_by(path, *words, variables=env_variables(service), seconds=seconds)
