"""The gsutil of jobs, which is the real one, against a bucket process: what commands do, say, and exit
with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.buckets_service import MIB, Service
from tests.contract.runtimes.conftest import Objects
from tests.e2e.running import CACHE
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.families import GSUTIL
from trainshed.runtimes.service import LocalRuntimes


def command() -> str:
    """The directory of the command, built at the first use of the tests' cache."""
    runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
    try:
        choice = runtimes.catalog.named(GSUTIL.family)
        assert isinstance(choice, RuntimeChoice)
        return asyncio.run(runtimes.prepare(choice, ())).path[0]
    finally:
        runtimes.close()


class Shell:
    """A directory with some files, and gsutil in it."""

    def __init__(self, service: Service, directory: Path) -> None:
        self.directory = directory
        self._command = f"{command()}/gsutil"
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            # As in a job: callers need no token.
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{service.port}",
            "GOOGLE_CLOUD_PROJECT": "p",
        }

    def __call__(self, *arguments: str, given: bytes = b"", status: int = 0) -> str:
        """What it prints; its errors where it is to fail."""
        done = subprocess.run(
            [self._command, *arguments],
            cwd=self.directory,
            env=self._environ,
            input=given,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr.decode()
        return (done.stderr if status else done.stdout).decode()

    def names(self, url: str) -> list[str]:
        return self("ls", url).split()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    service = Service(tmp_path_factory.mktemp("service"), anonymous=True)
    directory = tmp_path_factory.mktemp("work")
    for name in ("data/a.csv", "data/deep/b.csv", "data/notes.txt"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    try:
        yield Shell(service, directory)
    finally:
        service.stop()


def test_directories_go_there_and_back(shell: Shell) -> None:
    shell("mb", "-l", "us-central1", "gs://bucket-dirs")
    shell("-m", "cp", "-r", "data", "gs://bucket-dirs")
    below = ["a.csv", "deep/b.csv", "notes.txt"]
    assert shell.names("gs://bucket-dirs/**") == [f"gs://bucket-dirs/data/{n}" for n in below]
    (shell.directory / "back").mkdir()
    shell("-m", "rsync", "-r", "gs://bucket-dirs/data", "back")
    assert (shell.directory / "back/deep/b.csv").read_text() == "data/deep/b.csv"
    shell("mv", "gs://bucket-dirs/data", "gs://bucket-dirs/moved")
    assert shell.names("gs://bucket-dirs") == ["gs://bucket-dirs/moved/"]
    assert shell("du", "-s", "gs://bucket-dirs/moved").split() == ["39", "gs://bucket-dirs/moved"]
    assert "NotEmptyException" in shell("rb", "gs://bucket-dirs", status=1)
    shell("-m", "rm", "-r", "gs://bucket-dirs")
    assert "gs://bucket-dirs/" not in shell.names("gs://")


def test_a_large_file_and_a_stream_in_parts(shell: Shell) -> None:
    shell("mb", "gs://bucket-large")
    content = os.urandom(MIB) * 20
    (shell.directory / "large.bin").write_bytes(content)
    shell("cp", "large.bin", "gs://bucket-large/file")
    shell("cp", "-", "gs://bucket-large/stream", given=content)
    for name in ("file", "stream"):
        shell("cp", f"gs://bucket-large/{name}", "again.bin")
        assert (shell.directory / "again.bin").read_bytes() == content


def test_properties(shell: Shell) -> None:
    shell("mb", "gs://bucket-props")
    shell("-h", "x-goog-meta-k:v", "cp", "-Z", "data/a.csv", "gs://bucket-props/z.csv")
    told = shell("stat", "gs://bucket-props/z.csv")
    for text in ("text/csv", "Content-Encoding:       gzip", "k:"):
        assert text in told
    shell("cp", "gs://bucket-props/z.csv", "plain.csv")
    assert (shell.directory / "plain.csv").read_text() == "data/a.csv"


def test_failures_are_said(shell: Shell) -> None:
    """What `core.failure.advice` knows is said in these words."""
    missing = "BucketNotFoundException: 404 gs://bucket-none bucket does not exist"
    assert missing in shell("cp", "gs://bucket-none/x", ".", status=1)
    shell("-q", "stat", "gs://bucket-none/gone", status=1)
