"""A cache with one environment for all tests of this folder."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.caches import copy_environment, of_most_jobs, remove_cache
from tests.commands import execute
from tests.e2e.packages import Objects, tar_archive
from tests.e2e.running import SKLEARN
from tests.isolation import probe
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.port import PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings


def sdist(name: str, setup: str, modules: Mapping[str, str], version: str = "0.1") -> bytes:
    """Return a source distribution like those of gcloud and the SDK: setup.py, PKG-INFO, modules."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "setup.py": setup,
        **modules,
    }
    return tar_archive({f"{name}-{version}/{path}": text for path, text in files.items()})


@dataclass
class Workshop:
    """The runtimes and the bucket of a service."""

    cache: Path
    objects: Objects
    runtimes: LocalRuntimes
    choice: RuntimeChoice
    base: PreparedRuntime
    #: Messages about the prepared runtimes, one line each.
    messages: list[str]
    #: The service's own directory, which is hidden from setup scripts.
    data: Path
    terms: InstallationTerms
    #: Why stronger isolation levels are unavailable here, by level.
    refusals: Mapping[str, str]

    def prepare(self, *uris: str) -> PreparedRuntime:
        packages = tuple(map(JobPackage, uris))
        return asyncio.run(self.runtimes.prepare(self.choice, packages, self.messages.append))


@dataclass
class Replica:
    """A copy of a template, like the copy that a shim creates. A test can run programs in it."""

    root: Path
    runtime: PreparedRuntime

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        user = self.root / "python-user"
        path = [str(self.root / "python" / "bin"), str(user / "bin"), *self.runtime.path]
        passed_on = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_CERT_")) or name.lower().endswith("_proxy")
        }
        return execute(
            *command,
            cwd=self.root,
            env={
                **passed_on,
                "PATH": os.pathsep.join([*path, "/usr/bin", "/bin"]),
                "HOME": str(self.root),
                "PYTHONUSERBASE": str(user),
            },
        )

    def python(self, code: str) -> str:
        answer = self.run("python3", "-c", code)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Runtimes on a copy of the environment of most jobs. test_runtimes_built.py tests building one."""
    cache = tmp_path_factory.mktemp("runtimes") / "cache"
    environments = cache / "environments"
    environments.mkdir(parents=True)
    kept = of_most_jobs()
    assert kept is not None
    copy_environment(kept, environments, environments)
    objects = Objects()
    lines: list[str] = []
    data = tmp_path_factory.mktemp("data")
    (data / "secret").write_text("a secret of the service")
    level, refused = probe(tmp_path_factory.mktemp("probe"))
    terms = InstallationTerms(level, hidden=(str(data),), memory_bytes=2 << 30, processes=2000, seconds=600)
    settings = RuntimeSettings(terms=lambda: terms)
    runtimes = LocalRuntimes(cache, objects, settings, now=time.monotonic_ns)
    choice = runtimes.catalog.for_image(SKLEARN)
    assert isinstance(choice, RuntimeChoice)
    base = runtimes.ready(choice, ())
    assert base is not None
    yield Workshop(cache, objects, runtimes, choice, base, lines, data, terms, refused)
    runtimes.close()
    remove_cache(cache)


@pytest.fixture
def replica(workshop: Workshop, tmp_path: Path) -> Replica:
    return copy_template(workshop.base, tmp_path)


def copy_template(prepared: PreparedRuntime, root: Path) -> Replica:
    shutil.copytree(prepared.template, root / "python", symlinks=True)
    return Replica(root, prepared)


def content(prepared: PreparedRuntime) -> dict[str, str]:
    """Return the recorded versions by package name."""
    lines = (Path(prepared.template).parent / "content.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)
