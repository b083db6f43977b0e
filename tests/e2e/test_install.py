"""Installation by pip: the wheels in empty environments. The client is small; the service runs a job."""

import json
import os
import platform
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from tools import release

from tests.commands import execute, needs_compiler
from tests.e2e.running import ROOT, SKLEARN, Service, environment
from trainshed.runtimes.indexes import index_environment
from trainshed.runtimes.interpreters import Interpreters

pytestmark = pytest.mark.e2e
_UV = Path(sys.executable).with_name("uv")
_ENVIRON = os.environ | index_environment(os.environ)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheels of the service and of the reducers. test_image.py builds all wheels."""
    place = tmp_path_factory.mktemp("release")
    release.build(place, "trainshed", "trainshed-reduction")
    return place


def test_release_contains_a_list_of_its_dependencies_with_hashes(wheels: Path) -> None:
    """`./dev release` checks reproducibility by building twice."""
    # A wheel and a source archive of each distribution.
    assert len(release.digests(wheels)) == 2 * 2 + 1
    by_name = {item["name"]: item for item in release.bill_of_materials()["components"]}
    assert {"click", "lightkube", "msgspec", "numpy"} <= by_name.keys()
    assert all(item["hashes"] for item in by_name.values())


@needs_compiler
def test_reduction_wheel_contains_the_c_library(wheels: Path, tmp_path: Path) -> None:
    """Compiled for this machine. `./dev release` compiles for two architectures without Docker. The guide
    installs the fitting wheel among others.
    """
    [plain] = wheels.glob("trainshed_reduction-*-none-any.whl")
    place = shutil.copytree(wheels, tmp_path / "dist")
    tag = f"linux_{platform.machine()}"
    made = release.compiled_wheel(place, ["cc"], platform.machine(), tag)
    assert made.name == plain.name.replace("any", tag)
    uv("venv", "--python", sys.executable, tmp_path / "env")
    python = tmp_path / "env/bin/python"
    made.with_name(made.name.replace(platform.machine(), "other")).touch()
    guide = (ROOT / "docs/server.md").read_text().splitlines()
    line = next(line for line in guide if "--find-links dist" in line)
    options = line.partition(" trainshed ")[0].split()[2:]
    options = [place if word == "dist" else word for word in options]
    uv("pip", "install", "--python", python, *options, "trainshed-reduction")
    looks = "from trainshed_reduction.native import library; print(bool(library.load()), library.reason())"
    done = execute(python, "-c", looks, check=True)
    assert done.stdout.split() == ["True"]


def uv(*words: str | Path) -> None:
    done = execute(_UV, *words, "--quiet", env=_ENVIRON)
    assert done.returncode == 0, done.stderr


def install_service(wheels: Path, place: Path, extra: str = "", python: str = sys.executable) -> Path:
    """Install the service's wheel with its dependencies. Return the environment's bin directory."""
    uv("venv", "--python", python, place)
    [wheel] = wheels.glob("trainshed-0*.whl")
    links = ("--find-links", wheels)
    uv("pip", "install", "--python", place / "bin/python", *links, f"{wheel}{extra}")
    return place / "bin"


def size_of(place: Path) -> float:
    """Megabytes."""
    return sum(file.lstat().st_size for file in place.rglob("*") if file.is_file()) / 10**6


_CALLS = """
import sys
from trainshed.__main__ import group
for words in (["status"], ["jobs", "list"], ["list", "nodes"], ["env"], ["console"]):
    group([*words, "--url", sys.argv[1], "--token", sys.argv[2]], standalone_mode=False)
"""


def test_client_installation_is_small_and_connects_to_a_service(
    wheels: Path, service: Service, tmp_path: Path
) -> None:
    place = install_service(wheels, tmp_path / "client")
    packages = [*(tmp_path / "client").glob("lib/*/site-packages/*.dist-info")]
    assert len(packages) <= 5 and size_of(tmp_path / "client") < 25
    [skill] = (tmp_path / "client").glob("lib/*/site-packages/trainshed/SKILL.md")
    assert "submit_job" in skill.read_text()
    [points] = (tmp_path / "client").glob("lib/*/site-packages/trainshed-*/entry_points.txt")
    assert "trainshed.cli.pytest_plugin" in points.read_text()
    about = points.with_name("METADATA").read_text().splitlines()
    # Package indexes and upload tools reject newer metadata versions than they know.
    assert {"Metadata-Version: 2.4", "License-File: LICENSE"} <= {*about}
    bill = json.loads(points.with_name("sboms").joinpath("sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    environ = {"HOME": str(tmp_path)}
    done = execute(place / "python", "-c", _CALLS, service.rest, service.token, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    refused = execute(place / "trainshed", "up", env=environ)
    assert refused.returncode == 1
    assert "pip install 'trainshed[service]'" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "python", [None, *(pytest.param((3, n), marks=pytest.mark.soak) for n in (11, 12, 13, 14))]
)
def test_service_without_its_console_runs_a_job(
    wheels: Path, tmp_path: Path, python: tuple[int, int] | None
) -> None:
    """It runs on the interpreter of the tests, and before a release on all interpreters.
    tests/contract/api/test_additions.py tests the responses without the console's pages."""
    interpreter = Interpreters().get(python) if python else None
    if python and interpreter is None:
        pytest.skip(f"no Python {python} here")
    executable = interpreter.executable if interpreter else sys.executable
    place = install_service(wheels, tmp_path / "service", "[service]", executable)
    assert not [*(tmp_path / "service").rglob("jinja2")] and size_of(tmp_path / "service") < 250
    (tmp_path / "task.py").write_text("print('without pages', flush=True)")
    command = place / "trainshed"
    trainshed = partial(execute, command, cwd=tmp_path, env=environment(tmp_path / "data"))
    begun = trainshed("up", "--detach", "--port=0")
    assert begun.returncode == 0, begun.stderr
    try:
        done = trainshed("run", f"--image={SKLEARN}", "--watch", "task.py")
        assert done.returncode == 0 and "without pages" in done.stdout, done.stderr
        assert "/login" not in begun.stdout + begun.stderr
    finally:
        assert trainshed("down").returncode == 0
