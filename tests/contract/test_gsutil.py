"""The gsutil of jobs against a bucket process: what commands do, say, and exit with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.buckets_service import MIB, Service
from trainshed import gsutil

COMMAND = Path(gsutil.__path__[0]) / "bin" / "gsutil"


class Shell:
    """A directory with some files, and gsutil in it."""

    def __init__(self, service: Service, directory: Path) -> None:
        self.directory = directory
        self._environ = {"PATH": os.environ["PATH"], "STORAGE_EMULATOR_HOST": service.address()}

    def __call__(self, *arguments: str, given: bytes = b"", status: int = 0) -> str:
        """What it prints; its errors where it is to fail."""
        done = subprocess.run(
            [COMMAND, *arguments],
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
    service = Service(tmp_path_factory.mktemp("service"))
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
    shell("cp", "-r", "data", "gs://bucket-dirs/new")
    assert shell.names("gs://bucket-dirs/new/**") == [f"gs://bucket-dirs/new/{n}" for n in below]
    (shell.directory / "back").mkdir()
    shell("-m", "cp", "-r", "gs://bucket-dirs/data", "back")
    assert (shell.directory / "back/data/deep/b.csv").read_text() == "data/deep/b.csv"
    assert shell.names("gs://bucket-dirs/data/*.csv") == ["gs://bucket-dirs/data/a.csv"]
    assert shell("du", "-s", "gs://bucket-dirs/data").split() == ["39", "gs://bucket-dirs/data"]
    shell("mv", "gs://bucket-dirs/new", "gs://bucket-dirs/moved")
    assert shell.names("gs://bucket-dirs") == ["gs://bucket-dirs/data/", "gs://bucket-dirs/moved/"]
    assert "NotEmptyException" in shell("rb", "gs://bucket-dirs", status=1)
    shell("-m", "rm", "-r", "gs://bucket-dirs")
    assert "gs://bucket-dirs/" not in shell.names("gs://")


def test_a_large_file_and_a_stream(shell: Shell) -> None:
    shell("mb", "gs://bucket-large")
    content = os.urandom(MIB) * 20
    (shell.directory / "large.bin").write_bytes(content)
    shell("cp", "large.bin", "gs://bucket-large/file")
    shell("cp", "gs://bucket-large/file", "again.bin")
    assert (shell.directory / "again.bin").read_bytes() == content
    shell("cp", "-", "gs://bucket-large/stream", given=content)
    assert (
        shell("hash", "-m", "gs://bucket-large/stream").split()[-1]
        == (shell("hash", "-m", "large.bin").split()[-1])
    )
    shell("cp", "-", "gs://bucket-large/small", given=b"0123456789")
    assert shell("cat", "-r", "2-4", "gs://bucket-large/small") == "234"
    assert not list(shell.directory.glob("*.gstmp"))


def test_properties(shell: Shell) -> None:
    shell("mb", "gs://bucket-props")
    shell("-h", "x-goog-meta-k:v", "cp", "-Z", "data/a.csv", "gs://bucket-props/z.csv")
    told = shell("stat", "gs://bucket-props/z.csv")
    for text in ("text/csv", "Content-Encoding:       gzip", "k:"):
        assert text in told
    assert shell("cat", "gs://bucket-props/z.csv") == "data/a.csv"
    shell("cp", "gs://bucket-props/z.csv", "plain.csv")
    assert (shell.directory / "plain.csv").read_text() == "data/a.csv"
    shell("cp", "-n", "data/notes.txt", "gs://bucket-props/z.csv")
    assert shell("cat", "gs://bucket-props/z.csv") == "data/a.csv"


def test_rsync_copies_what_differs_and_removes_what_is_gone(shell: Shell) -> None:
    shell("mb", "gs://bucket-sync")
    shell("rsync", "-r", "data", "gs://bucket-sync/d")
    shell("cp", "data/a.csv", "gs://bucket-sync/d/extra")
    assert "Would" not in shell("rsync", "-r", "-n", "data", "gs://bucket-sync/d")
    shell("rsync", "-r", "-d", "data", "gs://bucket-sync/d")
    assert "gs://bucket-sync/d/extra" not in shell.names("gs://bucket-sync/**")
    (shell.directory / "synced").mkdir()
    shell("-m", "rsync", "-r", "gs://bucket-sync/d", "synced")
    assert (shell.directory / "synced/deep/b.csv").read_text() == "data/deep/b.csv"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cp", "gs://bucket-none/x", "."), "BucketNotFoundException: 404 gs://bucket-none bucket"),
        (("ls", "gs://bucket-none"), "BucketNotFoundException: 404 gs://bucket-none bucket does"),
        (("cat", "nothing*"), "CommandException: No URLs matched: nothing*"),
        (("cp", "data", "elsewhere"), "Did you mean to do cp -r?"),
        (("cp", "one"), "Wrong number of arguments"),
        (("fly",), 'CommandException: Invalid command "fly"'),
        (("cp", "s3://b/o", "."), 'InvalidUrlError: Unrecognized scheme "s3"'),
    ],
)
def test_failures_are_said_as_gsutil_says_them(
    shell: Shell, arguments: tuple[str, ...], said: str
) -> None:
    assert said in shell(*arguments, status=1)


def test_who_copies_into_a_directory_that_is_not_there_is_told_to_make_it(shell: Shell) -> None:
    shell("mb", "gs://bucket-into")
    shell("cp", "-", "gs://bucket-into/d/one", given=b"x")
    said = shell("cp", "-r", "gs://bucket-into/d/*", "absent/", status=1)
    assert "absent/ does not exist: mkdir -p absent/" in said


def test_a_quiet_stat_answers_by_its_exit_status_alone(shell: Shell) -> None:
    """As scripts ask whether an object is there."""
    shell("mb", "gs://bucket-quiet")
    shell("cp", "-", "gs://bucket-quiet/there", given=b"x")
    assert shell("-q", "stat", "gs://bucket-quiet/there") == ""
    assert "Content-Length:" in shell("stat", "gs://bucket-quiet/there")
    shell("-q", "stat", "gs://bucket-quiet/gone", status=1)
