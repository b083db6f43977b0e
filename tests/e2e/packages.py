"""Python packages for jobs, made and uploaded by tests."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

from tests.e2e.running import SKLEARN, Service, submit

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


def upload(service: Service, name: str, content: bytes) -> str:
    """Put an object into the default bucket; returns its URI."""
    service.put("trainshed", name, content)
    return f"gs://trainshed/{name}"


def package_job(*uris: str, module: str = "trainer.task") -> dict[str, Any]:
    spec = {"executorImageUri": SKLEARN, "packageUris": list(uris), "pythonModule": module}
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "pythonPackageSpec": spec,
    }
    return {"displayName": "package", "jobSpec": {"workerPoolSpecs": [pool]}}


def submit_endless_build(service: Service, directory: Path, mark: str) -> str:
    """Submit a job whose package build never ends; returns its id when the build has begun.

    Each begin of the build has a process with the mark open the pipe `directory/begun-MARK`; reading that
    waits for it.
    """
    begun = directory / f"begun-{mark}"
    os.mkfifo(begun)
    setup = (
        "import subprocess, sys\n"
        "endless = 'import sys, time; open(sys.argv[2], \"w\").close(); time.sleep(600)'\n"
        f"subprocess.run([sys.executable, '-c', endless, {mark!r}, {str(begun)!r}])"
    )
    uri = upload(service, f"{mark}/pkg-1.0.tar.gz", source_package("", setup))
    job_id = submit(service, package_job(uri))
    begun.read_text()
    return job_id
