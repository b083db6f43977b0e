"""A service with two projects, one of which attacks the other, at one level and as one user."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.caches import cache_of
from tests.contract.ordinary_user import NOBODY, interpreter_of_nobody
from tests.e2e.hostile.table import Column
from tests.e2e.processes import find_marked
from tests.e2e.running import (
    ROOT,
    SMALL,
    NotStarted,
    Service,
    custom_job,
    down,
    launch,
    ready,
    start,
    worker_pool,
)
from tests.sources import search_path
from trainshed.core.launch import WARM_LABEL
from trainshed.core.names import project_number
from trainshed.replica.system import trees

OWN, OTHER = "attacking-project", "attacked-project"
BUCKETS = {OWN: "attacking", OTHER: "attacked"}
"""The bucket of each project."""
REGION = "us-central1"
STAGING = (
    *("trainshed", f"trainshed-{OTHER}"),
    *("trainshed-third-project", f"third-project-vertex-staging-{REGION}-12ab"),
)
"""Buckets for code of other projects: the first two exist and contain a package, the others do
not exist yet.
"""
PROGRAM = ("-m", "trainshed")
"""The code that an interpreter runs to start a service."""
STAGED = "trainshed-run/0123456789abcdef/task.whl"
PROGRAMS = Path(__file__).parents[1] / "programs" / "hostile"
PROCESSES = 60
MEMORY = 192 << 20
LIMITS = f"""
max_processes = {PROCESSES}
memory_per_replica = {MEMORY >> 20}
grace = 1
[[images]]
pattern = "python:*"
{SMALL}
"""


def canary() -> str:
    """Private data of a user."""
    return f"canary-{uuid.uuid4().hex}"


def parent_of(project: str) -> str:
    return f"/v1/projects/{project}/locations/{REGION}/customJobs"


@dataclass
class AttackSetup:
    """`place`: a directory that programs can reach. The files in it belong to the service's user."""

    level: str
    user: int
    place: Path
    service: Service
    secrets: list[str] = field(default_factory=list[str])
    #: Of all jobs. Programs have separate interpreters.
    labels: dict[str, str] = field(default_factory=lambda: {WARM_LABEL: "off"})

    def open(self) -> None:
        """Prepare the service for the attack."""

    def submit(self, project: str, program: str, *arguments: str, **environ: str) -> str:
        """Create a job of one replica; return its ID."""
        text = (PROGRAMS / f"{program}.py").read_text()
        container = {
            "imageUri": "python:3",
            "command": ["python3", "-c", text, *arguments],
            "env": [{"name": name, "value": value} for name, value in environ.items()],
        }
        body = custom_job(worker_pool(containerSpec=container), name=program)
        body["labels"] = self.labels
        name: str = self.service.call("POST", parent_of(project), body)["name"]
        return name.rsplit("/", 1)[1]

    def secret(self) -> str:
        self.secrets.append(canary())
        return self.secrets[-1]

    def printed_value(self, job: str, word: str) -> Any:
        """Return the value after a word in the program's output."""
        for line in self.service.follow(job):
            if line.startswith(word + " "):
                return line.removeprefix(word + " ")
        raise AssertionError(f"{job} has not said {word}: {self.service.lines(job)}")

    def write(self, name: str, text: str = "") -> Path:
        """Create a file in the place that only its owner can read."""
        path = self.place / name
        path.write_text(text or self.secret())
        path.chmod(0o600)
        os.chown(path, self.user, self.user)
        return path

    def target(
        self, victim: list[int], other: str, endpoint: str, abstract: str, at_home: Path | None
    ) -> dict[str, Any]:
        """Return the attacker's input: more than it could find out."""
        data, cache = self.service.data, self.cache
        place, port = endpoint.split()
        assert victim, "there is nothing to be attacked"
        # A name without garbage collection, next to the environments of programs.
        (cache / "others").mkdir(exist_ok=True)
        kept = cache / "others" / "layer"
        kept.write_text(canary())
        elsewhere = self.write("diary")
        service_files = [
            data / name
            for name in (
                "trainshed.db",
                "access.json",
                "jobs.key",
                "secrets.key",
                "service.json",
                "gateway.sock",
                "buckets.sock",
                "buckets.state",
            )
        ]
        service_files += list((data / "tls").glob("*.key")) + list((data / "tls").glob("*key*"))
        assert all(path.exists() for path in service_files[:3]), service_files
        return {
            "level": self.level,
            "data": str(data),
            "service_files": [str(path) for path in service_files if path.exists()],
            "others_files": self.others_files(),
            "cache_files": [str(kept)],
            "home_files": [str(at_home)] if at_home else [],
            "elsewhere_files": [str(elsewhere)],
            "set_user_program": self._set_user_program(),
            "others_pids": self.numbers([*victim, self.shim(victim[0]), self.service.pid]),
            "processes": PROCESSES,
            "own_project": OWN,
            "own_job_parent": parent_of(OWN),
            "own_bucket": "attacking",
            "other_project": OTHER,
            "other_number": str(project_number(OTHER)),
            "other_bucket": "attacked",
            "staging": list(STAGING),
            "staged": STAGED,
            "other_job": other,
            "other_endpoint": place,
            "other_port": int(port),
            "storage_port": self.service.extra["storage"].removeprefix("http://"),
            "rest": self.service.rest.removeprefix("http://"),
            "link_targets": [str(data / "trainshed.db"), str(elsewhere), "/etc/hostname"],
            "planted": str(data / "planted"),
            "abstract": abstract,
            "flood": 24,
        }

    def others_files(self) -> list[str]:
        """Return working directories, logs and autopsies of other jobs, as paths in the attacker's view."""
        data = self.service.data
        kinds = "slots/*/*/*/files/*/secret", "logs/*/*/*/*.jsonl", "autopsies/*/*/*"
        files = [list(data.glob(kind)) for kind in kinds]
        assert all(files), "there is nothing to be attacked"
        return [str(path) for some in files for path in some]

    def numbers(self, pids: list[int]) -> list[int]:
        """Return process IDs in the attacker's view."""
        return pids

    @contextlib.contextmanager
    def listening(self, name: str) -> Generator[None]:
        """Open another user's abstract socket on the attacker's machine."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + name)
            listener.listen()
            yield

    def _set_user_program(self) -> list[str]:
        """Return a command that prints root's secret if the caller becomes root through it. None if these
        tests are not root.
        """
        if os.geteuid():
            return []
        program, secret = self.place / "show", self.place / "roots"
        shutil.copy("/bin/cat", program)
        secret.write_text(canary())
        secret.chmod(0o600)
        program.chmod(0o4755)
        return [str(program), str(secret)]

    @property
    def cache(self) -> Path:
        """Return the environment of programs."""
        return cache_of(self.user)

    def home_file(self) -> Path | None:
        """Create a file in the home directory of the service's user. None if the user has no home."""
        home = Path(pwd.getpwuid(self.user).pw_dir)
        if len(home.parts) < 2 or not home.is_dir() or home.stat().st_uid != self.user:
            return None
        path = home / f".trainshed-test-{uuid.uuid4().hex}"
        path.write_text(canary())
        path.chmod(0o600)
        return path

    def processes(self, job: str, mark: str) -> list[int]:
        """Return a running job's processes whose program has `mark` in its command line or environment."""
        return find_marked(mark)

    def shim(self, pid: int) -> int:
        """Return the process ID of the shim of a program's main process."""
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def readable_directory() -> Path:
    """Return a directory that is readable for programs: not in a home, and not replaced by a private
    directory.
    """
    for place in (Path("/srv"), Path("/opt"), ROOT / "build"):
        closed = place.is_relative_to(Path.home()) or place.is_relative_to("/tmp")
        if not closed and os.access(place, os.W_OK):
            return place
    pytest.skip("no directory here is open to programs of all users: this is NOT tested")


@contextlib.contextmanager
def open_attack_setup(
    column: Column, kind: type[AttackSetup] = AttackSetup, program: Sequence[str] = PROGRAM
) -> Generator[AttackSetup]:
    """Start a service at the column's level, with both projects. `kind`: the setup class. `program`: the code
    that starts the service. Skips if the level is not available on this machine.
    """
    level, user, python = column.level, os.geteuid(), sys.executable
    if column.as_root and user:
        pytest.skip("the suite does not run as root: this level is NOT tested")
    if not column.as_root and not user:
        user, python = NOBODY, interpreter_of_nobody()
        if not python:
            pytest.skip("no interpreter of this version that another user may run")
    place = Path(tempfile.mkdtemp(prefix="trainshed-hostile-", dir=readable_directory()))
    place.chmod(0o755)
    data, cache = place / "data", cache_of(user)
    (place / "trainshed.toml").write_text(f"port = 0\n{LIMITS}")
    data.mkdir()
    for directory in (data, place):
        os.chown(directory, user, user)
    try:
        service = _start(level, user, [python, *program], data, cache)
        try:
            yield with_buckets(kind(level, user, place, service))
        finally:
            try:
                if user == os.geteuid():
                    down(data)
                else:
                    words = [python, *program, "down", "--data", str(data)]
                    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "timeout": 60}
                    subprocess.run(words, check=False, **options, **_of_user(user, cache))
            finally:
                service.process.kill()
                service.process.wait()
    finally:
        # Clean up like a service: programs leave files that other users cannot delete.
        trees.delete(str(place))


Y = TypeVar("Y", bound=AttackSetup)


def with_buckets(setup: Y) -> Y:
    """Create each project's bucket with an object."""
    service = setup.service
    for project, bucket in (*BUCKETS.items(), (OTHER, STAGING[1])):
        service.call("POST", f"/storage/v1/b?project={project}", {"name": bucket})
    for bucket in STAGING[:2]:
        service.put(bucket, STAGED, b"theirs")
    service.put("attacking", "mine", b"mine")
    service.put("attacked", "secret", setup.secret().encode())
    return setup


def environment_of(cache: Path) -> dict[str, str]:
    """A service of another user, who may read this checkout."""
    kept = ("PIP_", "UV_", "SSL_", "REQUESTS_", "HTTP", "NO_PROXY", "http", "no_proxy")
    libraries = Path(pytest.__file__).parents[1]
    return {
        **{name: text for name, text in os.environ.items() if name.startswith(kept)},
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": search_path(libraries),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRAINSHED_CACHE": str(cache),
    }


def _of_user(user: int, cache: Path) -> dict[str, Any]:
    """Return Popen options for a process of that user."""
    options: dict[str, Any] = {"env": environment_of(cache), "cwd": "/"}
    if user != os.geteuid():
        options |= {"user": user, "group": user, "extra_groups": []}
    return options


def _start(level: str, user: int, program: Sequence[str], data: Path, cache: Path) -> Service:
    log = data.parent / "service.log"
    words = ("--config", str(data.parent / "trainshed.toml"), "--isolation", level)
    try:
        if user == os.geteuid() and program[1:] == list(PROGRAM):
            return start(data, *words)
        argv = [*program, "up", "--data", str(data), *words]
        process, reader = launch(argv, log, **_of_user(user, cache))
        return ready(data, process, reader, log)
    except NotStarted as failure:
        text = str(failure)
        if "does not work on this machine" in text:
            pytest.skip(f"{level} is NOT tested as user {user}: {text[-300:]}")
        raise
