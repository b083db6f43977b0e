"""The built environment, its template, a program's own installs (spec/runtimes#environments)."""

import asyncio
import fcntl
import io
import os
import time
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest

from tests.contract.runtimes.conftest import Replica, Workshop
from tests.e2e.packages import Objects
from tests.e2e.running import SLIM
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.environments import Base, Environments
from trainshed.runtimes.layers import Layers
from trainshed.runtimes.port import PackageFailed
from trainshed.runtimes.service import LocalRuntimes


def test_many_callers_build_once(workshop: Workshop) -> None:
    assert sum("Building the runtime" in line for line in workshop.built) == 1
    assert sum("is built in" in line for line in workshop.built) == 1


def test_what_is_built_is_ready_at_once_and_for_another_service_too(workshop: Workshop) -> None:
    started = time.thread_time()
    assert workshop.runtimes.ready(workshop.choice, ()) == workshop.base
    assert time.thread_time() - started < 0.02
    other = LocalRuntimes(workshop.cache, workshop.objects, now=time.monotonic_ns)
    assert other.ready(workshop.choice, ()) == workshop.base
    other.close()


async def test_a_service_ends_while_another_one_builds_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Base, "key", "key")
    lock = tmp_path / "environments" / ".locks" / "key"
    lock.parent.mkdir(parents=True)
    runtimes, choice = fresh(tmp_path, Objects())
    waits, loop = asyncio.Event(), asyncio.get_running_loop()
    with lock.open("w") as builds:
        fcntl.flock(builds, fcntl.LOCK_EX)

        def hear(line: str) -> None:
            loop.call_soon_threadsafe(waits.set)

        job = asyncio.create_task(runtimes.prepare(choice, (), hear))
        await asyncio.wait_for(waits.wait(), 60)
        job.cancel()
        await asyncio.wait_for(asyncio.to_thread(runtimes.close), 60)


async def test_what_a_full_cache_loses_while_packages_are_fetched_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = [True]

    class Losing(Objects):
        def open(self, uri: str) -> BinaryIO:
            built.clear()
            return io.BytesIO(b"content")

        def fingerprint(self, uri: str) -> str:
            return uri

    def has(*_: object) -> bool:
        return bool(built)

    def build(*_: object) -> None:
        built.append(True)

    monkeypatch.setattr(Environments, "has", has)
    monkeypatch.setattr(Environments, "build", build)
    monkeypatch.setattr(Layers, "build", Mock(side_effect=PackageFailed))
    runtimes, choice = fresh(tmp_path, Losing())
    with pytest.raises(PackageFailed):
        await runtimes.prepare(choice, (JobPackage("gs://b/p.tar.gz"),))
    assert built, "packages are installed on a base that is there"
    runtimes.close()


def fresh(cache: Path, objects: Objects) -> tuple[LocalRuntimes, RuntimeChoice]:
    runtimes = LocalRuntimes(cache, objects, now=time.monotonic_ns)
    choice = runtimes.catalog.named("scikit-learn", SLIM)
    assert isinstance(choice, RuntimeChoice)
    return runtimes, choice


def test_the_environment_is_read_only(workshop: Workshop) -> None:
    environment = Path(workshop.base.template).parent
    for directory, names, files in os.walk(environment):
        if Path(directory) == environment:
            names.remove("template")
        for name in files:
            path = Path(directory, name)
            assert path.is_symlink() or path.stat().st_mode & 0o222 == 0, path
        assert Path(directory).stat().st_mode & 0o222 == 0, directory
    assert str(environment) in workshop.base.read_only
    assert str(workshop.cache) not in workshop.base.read_only


def test_a_program_sees_the_base_and_nothing_of_the_host(replica: Replica) -> None:
    replica.python("import numpy, scipy, sklearn, google.cloud.storage, hypertune, setuptools")
    places = replica.python("import sys; print(*sys.path, sep='\\n')").splitlines()
    allowed = (str(replica.root), str(Path(replica.prepared.template).parent))
    assert all(place.startswith(allowed) for place in places if place)
    listed = replica.run("python", "-m", "pip", "list").stdout
    for name in ("numpy", "scikit-learn", "google-cloud-storage", "cloudml-hypertune"):
        assert name in listed


def test_base_modules_are_compiled(replica: Replica) -> None:
    """spec/runtimes#environments: imports without bytecode take three times as long."""
    cached = replica.python("import sklearn.ensemble as m; print(m.__cached__)")
    assert Path(cached).exists()


def test_a_program_knows_its_own_interpreter(replica: Replica) -> None:
    assert replica.python("import sys; print(sys.executable)") == str(
        replica.root / "python" / "bin" / "python3"
    )
    version = replica.python("import sys; print('%d.%d' % sys.version_info[:2])").strip()
    for name in ("python", "python3", f"python{version}"):
        assert replica.run(name, "-c", "import numpy").returncode == 0
    # A child process, as multiprocessing starts it, is the same environment.
    child = "import subprocess, sys; subprocess.check_call([sys.executable, '-c', 'import numpy'])"
    replica.python(child)


def test_virtual_environments_can_be_made(replica: Replica) -> None:
    assert replica.run("python3", "-m", "venv", "--without-pip", "own").returncode == 0
    assert replica.run("own/bin/python", "-c", "import ssl, sqlite3").returncode == 0
    assert replica.run("own/bin/python", "-c", "import numpy").returncode != 0
