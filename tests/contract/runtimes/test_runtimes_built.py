"""Built environments, their templates, and packages that a program installs (spec/runtimes#environments)."""

import asyncio
import fcntl
import functools
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest

from tests.caches import remove_cache, wait_for_builds
from tests.contract.runtimes.conftest import Replica, content
from tests.e2e.packages import Objects
from tests.waiting import until
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import REDUCERS, RuntimeChoice
from trainshed.runtimes.environments import Base, Environments
from trainshed.runtimes.families import format_minor
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.layers import Layers
from trainshed.runtimes.port import PackageFailed, PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes


@pytest.fixture(scope="module")
def built_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedRuntime]:
    """A small environment requested by several callers at once. It is built once, and all callers
    receive its progress."""
    runtimes, choice = fresh(cache := tmp_path_factory.mktemp("built") / "cache", Objects())
    heard: list[list[str]] = [[], [], []]
    build_base = Environments.build

    def build_for_all(own: Environments, base: Base, tell: Callable[[str], None]) -> None:
        asyncio.run(until(lambda: runtimes._bases._flights[base.key].callers == len(heard)))  # pyright: ignore[reportPrivateUsage] - to see who waits
        build_base(own, base, tell)

    async def build() -> list[PreparedRuntime]:
        return await asyncio.gather(*(runtimes.prepare(choice, (), messages.append) for messages in heard))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environments, "build", build_for_all)
        first, *others = asyncio.run(build())
    assert others == [first, first]
    assert sum("Building the environment" in line for line in heard[0]) == 1
    assert all(sum("is built in" in line for line in messages) == 1 for messages in heard)
    # The service ends while the environment is compiled. The next service completes it.
    runtimes.close()
    wait_for_builds()
    later, _ = fresh(cache, Objects())
    later._environments.compile_all()  # pyright: ignore[reportPrivateUsage] - `search` calls it in a thread
    later.close()
    yield first
    remove_cache(cache)


def test_environment_built_by_one_service_is_ready_for_other_services(
    built_environment: PreparedRuntime,
) -> None:
    runtimes, choice = fresh(Path(built_environment.template).parents[2], Objects())
    assert runtimes.ready(choice, ()) == built_environment
    gc.collect()  # No collection may happen during the measurement.
    started = time.thread_time()
    assert runtimes.ready(choice, ()) == built_environment
    assert time.thread_time() - started < 0.02
    runtimes.close()


async def test_service_can_stop_while_waiting_for_a_build_by_another_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Base, "key", "key")
    lock = tmp_path / "environments" / ".locks" / "key"
    lock.parent.mkdir(parents=True)
    runtimes, choice = fresh(tmp_path, Objects())
    waits = threading.Event()
    with lock.open("w") as builds:
        fcntl.flock(builds, fcntl.LOCK_EX)
        job = asyncio.create_task(runtimes.prepare(choice, (), lambda _: waits.set()))
        assert await asyncio.to_thread(waits.wait, 60)
        job.cancel()
        await asyncio.wait_for(asyncio.to_thread(runtimes.close), 60)


async def test_environment_removed_during_a_download_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_environment = [True]

    class Losing(Objects):
        def open(self, uri: str) -> BinaryIO:
            built_environment.clear()
            return super().open(uri)

    def has(*_: object) -> bool:
        return bool(built_environment)

    def build(*_: object) -> None:
        built_environment.append(True)

    monkeypatch.setattr(Environments, "has", has)
    monkeypatch.setattr(Environments, "build", build)
    monkeypatch.setattr(Layers, "build", Mock(side_effect=PackageFailed))
    runtimes, choice = fresh(tmp_path, losing := Losing())
    losing.content["gs://b/p.tar.gz"] = b"content"
    with pytest.raises(PackageFailed):
        await runtimes.prepare(choice, (JobPackage("gs://b/p.tar.gz"),))
    assert built_environment, "packages are installed on a base that is there"
    runtimes.close()


interpreters = functools.cache(Interpreters)
"""Return this machine's interpreters, searched once."""


def fresh(cache: Path, objects: Objects) -> tuple[LocalRuntimes, RuntimeChoice]:
    """Return new runtimes and a small family on the newest installed interpreter."""
    runtimes = LocalRuntimes(cache, objects, now=time.monotonic_ns, interpreters=interpreters())
    choice = runtimes.catalog.for_family(REDUCERS, "", format_minor(max(interpreters().found())))
    assert isinstance(choice, RuntimeChoice)
    return runtimes, choice


def test_environment_is_read_only(built_environment: PreparedRuntime) -> None:
    environment = Path(built_environment.template).parent
    for directory, names, files in os.walk(environment):
        if Path(directory) == environment:
            names.remove("template")
        for path in map(Path(directory).joinpath, files):
            assert path.is_symlink() or path.stat().st_mode & 0o222 == 0, path
        assert Path(directory).stat().st_mode & 0o222 == 0, directory
    assert str(environment) in built_environment.read_only
    assert str(environment.parents[1]) not in built_environment.read_only


def test_program_imports_packages_of_its_environment_and_not_of_the_machine(replica: Replica) -> None:
    """spec/runtimes#environments: the installed versions are recorded."""
    recorded = content(replica.runtime)
    names = ("numpy", "scikit-learn", "google-cloud-storage", "cloudml-hypertune")
    code = (
        "import hypertune, sys; from importlib import metadata as m; "
        f"print(*sys.path, *map(m.version, {names}), sep='\\n')"
    )
    *places, numpy, sklearn, storage, hypertune = replica.python(code).splitlines()
    allowed = (str(replica.root), str(Path(replica.runtime.template).parent))
    assert all(place.startswith(allowed) for place in places if place)
    assert [numpy, sklearn, storage, hypertune] == [recorded[name] for name in names]


def test_modules_of_a_built_environment_are_compiled(built_environment: PreparedRuntime) -> None:
    """spec/runtimes#environments: imports without bytecode take three times as long."""
    [numpy] = Path(built_environment.template).parent.glob("lib/python*/site-packages/numpy")
    for path in numpy.rglob("*.py"):
        assert "tests" in path.parts or [*path.parent.glob(f"__pycache__/{path.stem}.*.pyc")], path


def test_program_uses_its_own_interpreter(replica: Replica) -> None:
    code = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
    executable, version = replica.python(code).split()
    assert executable == str(replica.root / "python" / "bin" / "python3")
    for name in ("python", f"python{version}"):
        assert replica.run(name, "-c", "import hypertune").returncode == 0
    # A child process of multiprocessing uses the same environment.
    child = "import subprocess, sys; subprocess.check_call([sys.executable, '-c', 'import numpy'])"
    replica.python(child)


def test_program_can_create_virtual_environments(replica: Replica) -> None:
    assert replica.run("python3", "-m", "venv", "--without-pip", "own").returncode == 0
    assert replica.run("own/bin/python", "-c", "import ssl, sqlite3").returncode == 0
    assert replica.run("own/bin/python", "-c", "import numpy").returncode != 0
