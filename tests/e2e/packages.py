"""Python packages for jobs, made and uploaded by tests."""

import io
import socket
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.running import SKLEARN, Service, custom_job, submit, worker_pool

PROGRAMS = Path(__file__).parent / "programs"
_SETUP = "from setuptools import setup; setup(name='pkg', version='1.0', packages=['trainer'])"


def source_package(task: str, setup: str = _SETUP) -> bytes:
    """A source distribution whose module trainer.task is `task`, built by `setup`."""
    files = {
        "pkg-1.0/setup.py": setup,
        "pkg-1.0/trainer/__init__.py": "",
        "pkg-1.0/trainer/task.py": task,
        "pkg-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def packed(name: str, directory: Path) -> Path:
    """The program's source distribution, with the names that `setup.py sdist` gives."""
    archive = directory / f"{name}-0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(PROGRAMS / name, f"{name}-0.1", filter=_without_caches)
    return archive


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member


def upload(service: Service, name: str, content: bytes) -> str:
    """Put an object into the default bucket; returns its URI."""
    service.put("trainshed", name, content)
    return f"gs://trainshed/{name}"


def package_job(*uris: str, module: str = "trainer.task") -> dict[str, Any]:
    spec = {"executorImageUri": SKLEARN, "packageUris": list(uris), "pythonModule": module}
    return custom_job(worker_pool(pythonPackageSpec=spec), name="package")


@dataclass(frozen=True, slots=True)
class EndlessBuild:
    """A job whose package build never ends. Builds see nothing of the machine's files, so each says that it
    has begun over the loopback network."""

    job_id: str
    listener: socket.socket

    def begins(self) -> None:
        """Wait until the next build of it has begun."""
        connection, _ = self.listener.accept()
        connection.close()


def submit_endless_build(service: Service, mark: str) -> EndlessBuild:
    """Submit it and wait until its build has begun, which is a process with the mark."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(180)
    port = listener.getsockname()[1]
    setup = (
        "import subprocess, sys\n"
        "endless = 'import socket, time; '\n"
        f"endless += 'socket.create_connection((\"127.0.0.1\", {port})); time.sleep(600)'\n"
        f"subprocess.run([sys.executable, '-c', endless, {mark!r}])"
    )
    uri = upload(service, f"{mark}/pkg-1.0.tar.gz", source_package("", setup))
    build = EndlessBuild(submit(service, package_job(uri)), listener)
    build.begins()
    return build
