"""The first job of a runtime and a repeated job, compared with a new virtual environment and with `podman
run`.

Both sides build from uv's downloads in the same cache. An unmeasured round fills the cache first, so the
network is not measured. A cold round of the service starts with an empty cache of runtimes.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.packages import package_job, source_package, upload
from tests.e2e.running import Service, environment, running

from bench import measures
from bench.measures import STAMP, Connection, Row, median, medians
from trainshed.runtimes.trees import remove_tree

MAX_ADDED_MS = 20.0
"""Maximum milliseconds that a repeated job adds to the start of its program without Trainshed."""
WARM_UP_ROUNDS = 2
"""Warm-up rounds whose times do not count."""
_IMAGE = "trainshed-bench-cold"
_SETUP = (
    "from setuptools import setup; setup(name='pkg', version='1.0', packages=['trainer'], "
    "install_requires=['six'])"
)
_RUNS = f"{STAMP}\nimport os, sys; print('runs', sys.executable, flush=True)"


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a run. `directory`: its files. `downloads`: uv's cache, which all runs share.
    `package`: the job's package."""

    directory: Path
    downloads: Path

    @property
    def package(self) -> Path:
        return self.directory / "pkg-1.0.tar.gz"

    @property
    def variables(self) -> dict[str, str]:
        return environment(self.directory) | {"UV_CACHE_DIR": str(self.downloads)}


def measure(rounds: int) -> list[Row]:
    """Measure `rounds` warm rounds and a few cold rounds. Each cold round takes half a minute."""
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory:
        place = Place(Path(directory), Path(directory, "downloads"))
        place.package.write_bytes(source_package(_RUNS, _SETUP))
        with _uv_downloads_in(place.downloads):
            return _rows(place, rounds)


def _rows(place: Place, rounds: int) -> list[Row]:
    content = _warm_up(place)
    ours: list[float] = []
    venv: list[float] = []
    for number in range(max(2, rounds // 10)):
        venv.append(fresh_environment(place, place.directory / "venv", content))
        with _service(place, f"cold-{number}") as service:
            ours.append(_first_line(service, place)[0])
    rows = [medians("cold: first job of a runtime → first line, p50", ours, venv)]
    with _service(place, "warm") as service:
        _, interpreter = _first_line(service, place)
        uri = upload(service, "pkg-1.0.tar.gz", place.package.read_bytes())
        connection = Connection(service)
        python = str(place.directory / "venv" / "bin" / "python")
        again, own, bare = (
            values[WARM_UP_ROUNDS:]
            for values in measures.measure_interleaved(
                rounds + WARM_UP_ROUNDS,
                lambda: _run_job(connection, uri)[0],
                lambda: by_hand(interpreter),
                lambda: measures.bare_first_line(python),
            )
        )
        rows.append(
            medians("warm: repeated job → first line, against the environment's own Python, p50", again, bare)
        )
        added = median(again) - median(own)
        rows.append(
            Row(
                "warm: overhead of the repeated job over a manual start of its program, p50",
                f"{added:.1f} ms",
                f"{median(own):.1f} ms",
                None,
                f"≤ {MAX_ADDED_MS:g} ms",
                added <= MAX_ADDED_MS,
            )
        )
        if (podman := container_tool(place)) is None:
            print("NOTE: podman does not work here; its row is SKIPPED.", file=sys.stderr)
            return rows
        try:
            again, contained = measures.measure_interleaved(
                max(3, rounds // 3),
                lambda: _run_job(connection, uri)[0],
                lambda: contained_first_line(podman),
            )
        finally:
            podman.run("rmi", "--force", _IMAGE)
        rows.append(
            medians(
                "warm: repeated job → first line, against `podman run` of an image, p50", again, contained
            )
        )
    return rows


@contextlib.contextmanager
def _service(place: Place, name: str) -> Generator[Service]:
    """Start a service with an empty cache of runtimes."""
    cache = place.directory / name / "cache"
    config = place.directory / f"{name}.toml"
    config.write_text(f'cache = "{cache}"\n')
    try:
        with running(place.directory / name / "data", "--config", str(config)) as service:
            yield service
    finally:
        remove_tree(cache)


@contextlib.contextmanager
def _uv_downloads_in(directory: Path) -> Generator[None]:
    """Set uv's cache directory, for services and for the new virtual environment."""
    before = os.environ.get("UV_CACHE_DIR")
    os.environ["UV_CACHE_DIR"] = str(directory)
    try:
        yield
    finally:
        os.environ.pop("UV_CACHE_DIR")
        if before is not None:
            os.environ["UV_CACHE_DIR"] = before


def _warm_up(place: Place) -> list[str]:
    """Download all packages once. Return the contents of the job's runtime as requirements."""
    with _service(place, "download") as service:
        _first_line(service, place)
        (content,) = (place.directory / "download" / "cache").glob("environments/*/content.txt")
        return content.read_text().split()


def _first_line(service: Service, place: Place) -> tuple[float, str]:
    """Return the time from the submission of a job with a package to its first statement, and the job's
    interpreter."""
    uri = upload(service, "pkg-1.0.tar.gz", place.package.read_bytes())
    return _run_job(Connection(service), uri)


def _run_job(connection: Connection, uri: str) -> tuple[float, str]:
    begun = time.time_ns()
    job = connection.submit(package_job(uri))
    stamp, interpreter = 0, ""
    for message in connection.messages(job):
        if message.isdigit():
            stamp = int(message)
        elif message.startswith("runs "):
            interpreter = message.split()[1]
    if not stamp:
        raise RuntimeError(f"{job} wrote no line; see its log")
    return (stamp - begun) / 1e6, interpreter


def fresh_environment(place: Place, directory: Path, content: list[str]) -> float:
    """Return the time to create a virtual environment, install the same packages, and run the first
    statement."""
    shutil.rmtree(directory, ignore_errors=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    python = str(directory / "bin" / "python")
    installed = [*(line for line in content if not line.startswith("pip==")), str(place.package)]
    begun = time.time_ns()
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(directory)],
        [uv, "pip", "install", "--quiet", "--python", python, *installed],
    ):
        subprocess.run(command, env=place.variables, check=True)
    return (_first_statement(python) - begun) / 1e6


def by_hand(python: str) -> float:
    """Return the time from spawn to the first statement of the job's program, in an environment with its
    package.
    """
    begun = time.time_ns()
    return (_first_statement(python) - begun) / 1e6


def _first_statement(python: str) -> int:
    """Run the job's program; return the time of its first statement in ns."""
    process = subprocess.run([python, "-m", "trainer.task"], stdout=subprocess.PIPE, text=True, check=True)
    return int(process.stdout.split()[0])


@dataclass(frozen=True, slots=True)
class Podman:
    """A podman that works on this machine, with the options and variables that it requires."""

    options: tuple[str, ...]
    variables: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *self.options, *arguments],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def container_tool(place: Place) -> Podman | None:
    """Return podman with an image of a shell and `date`, or None if podman or the image does not work."""
    if shutil.which("podman") is None:
        return None
    settings = place.directory / "containers.conf"
    # With podman's defaults, every start fails if the limits of this process cannot be raised.
    settings.write_text("[containers]\ndefault_ulimits=[]\n")
    archive = _root_file_system(place.directory / "image")
    for options in ((), ("--runtime", "runc")):
        podman = Podman(options, os.environ | {"CONTAINERS_CONF": str(settings)})
        if podman.run("import", str(archive), _IMAGE).returncode:
            continue
        if podman.run("run", "--rm", "--network", "host", _IMAGE, "/bin/date").returncode == 0:
            return podman
    return None


def _root_file_system(directory: Path) -> Path:
    """Return `date` with its libraries, as an archive."""
    program = Path(shutil.which("date") or "/bin/date").resolve()
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    needed = [word for word in listed.stdout.split() if word.startswith("/")]
    for source, target in ((str(program), "/bin/date"), *((library, library) for library in needed)):
        place = directory / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
    return Path(shutil.make_archive(str(directory), "tar", directory))


def contained_first_line(podman: Podman) -> float:
    """Return the time from spawn to the time that a program in a container prints. As in a job, the program
    uses the host's network."""
    begun = time.time_ns()
    done = podman.run("run", "--rm", "--network", "host", _IMAGE, "/bin/date", "+%s%N")
    return (int(done.stdout) - begun) / 1e6
