"""Python packages for jobs, built and uploaded by tests."""

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tests.e2e.running import SKLEARN, Service, custom_job, worker_pool

PROGRAMS = Path(__file__).parent / "programs"
_SETUP = "from setuptools import setup; setup(name='pkg', version='1.0', packages=['trainer'])"


def tar_archive(files: Mapping[str, str]) -> bytes:
    """Return a tar archive of texts with the compression of source distributions."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def source_package(task: str, setup: str = _SETUP) -> bytes:
    """Return a source distribution whose module trainer.task is `task`, built by `setup`."""
    files = {
        "pkg-1.0/setup.py": setup,
        "pkg-1.0/trainer/__init__.py": "",
        "pkg-1.0/trainer/task.py": task,
        "pkg-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
    }
    return tar_archive(files)


def wheel(name: str, source: str, version: str = "0.1", needs: Sequence[str] = ()) -> bytes:
    """Return a wheel with one module, which needs no build tools."""
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return made.getvalue()


def pack_program(name: str, directory: Path) -> Path:
    """Return the program's source distribution, named as by `setup.py sdist`."""
    top = f"{name}-0.1"
    archive = directory / f"{top}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(PROGRAMS / name, top, filter=lambda m: None if "__pycache__" in m.name else m)
    return archive


def upload(service: Service, name: str, content: bytes) -> str:
    """Upload an object to the default bucket; return its URI."""
    service.put("trainshed", name, content)
    return f"gs://trainshed/{name}"


def package_job(*uris: str) -> dict[str, Any]:
    spec = {"executorImageUri": SKLEARN, "packageUris": list(uris), "pythonModule": "trainer.task"}
    return custom_job(worker_pool(pythonPackageSpec=spec), name="package")


class Objects:
    """A bucket in a dictionary. A fingerprint is the content itself."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def open(self, uri: str) -> BinaryIO:
        return io.BytesIO(self._get(uri))

    def fingerprint(self, uri: str) -> str:
        return str(hash(self._get(uri)))

    def _get(self, uri: str) -> bytes:
        if uri not in self.content:
            raise FileNotFoundError(uri)
        return self.content[uri]
