"""Tests of a job's packages: download, names by content, and inspection (spec/program,
facts/packaging#packages)."""

import asyncio
import hashlib
import io
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest

from tests.unit.test_runtimes_archives import tar
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import CONTAINER, RuntimeChoice
from trainshed.runtimes import layers
from trainshed.runtimes.archives import is_buildable
from trainshed.runtimes.packages import Packages
from trainshed.runtimes.port import BuildFailed, PackageFailed
from trainshed.runtimes.prefix import Prefix, move_scripts
from trainshed.runtimes.service import ContainerRuntimes
from trainshed.runtimes.stop import Stop


class Bucket:
    """Objects in memory. `opened`: the list of read objects."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.opened: list[str] = []

    def write(self, uri: str, content: bytes) -> None:
        generation, _ = self.objects.get(uri, (0, b""))
        self.objects[uri] = (generation + 1, content)

    def open(self, uri: str) -> BinaryIO:
        self.opened.append(uri)
        return io.BytesIO(self._get(uri)[1])

    def fingerprint(self, uri: str) -> str:
        return str(self._get(uri)[0])

    def _get(self, uri: str) -> tuple[int, bytes]:
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return self.objects[uri]


def unpinned_packages(*uris: str) -> tuple[JobPackage, ...]:
    return tuple(map(JobPackage, uris))


_URI = "gs://b/aiplatform-2026-11-20-03:24:25.811/trainer-0.1.tar.gz?x=1"


def test_stopping_the_service_ends_a_running_package_download(tmp_path: Path) -> None:
    closing = Stop()

    class Endless(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            closing.request()
            return b"more"

    bucket = Bucket()
    bucket.write(_URI, b"")
    bucket.open = Mock(return_value=Endless())
    with pytest.raises(BuildFailed, match="is stopping"):
        Packages(tmp_path, bucket, closing).fetch(unpinned_packages(_URI))
    assert not list(tmp_path.iterdir())


def test_packages_are_downloaded_in_order_and_once(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.write(_URI, b"one")
    bucket.write("gs://b/two.whl", b"two")
    packages = Packages(tmp_path, bucket)
    wanted = unpinned_packages(_URI, "gs://b/two.whl")
    assert packages.known(wanted) is None
    fetched = packages.fetch(wanted)
    assert [package.uri for package in fetched] == [_URI, "gs://b/two.whl"]
    assert [package.path.read_bytes() for package in fetched] == [b"one", b"two"]
    assert packages.known(wanted) == fetched
    assert packages.fetch(wanted) == fetched
    assert bucket.opened == [_URI, "gs://b/two.whl"]
    # Another service with the same cache uses the same packages.
    assert Packages(tmp_path, bucket).known(wanted) == fetched


def test_unwritable_cache_is_a_service_failure(tmp_path: Path) -> None:
    """spec/failures#service-failures: The cause contains the cache's path."""
    bucket = Bucket()
    bucket.write(_URI, b"one")
    (tmp_path / "cache").write_text("no directory")
    with pytest.raises(BuildFailed, match=f"{tmp_path}/cache.*TRAINSHED_CACHE"):
        Packages(tmp_path / "cache", bucket).fetch(unpinned_packages(_URI))


def test_package_changed_in_the_bucket_is_downloaded_again(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.write(_URI, b"one")
    packages = Packages(tmp_path, bucket)
    (first,) = packages.fetch(unpinned_packages(_URI))
    bucket.write(_URI, b"two")
    assert packages.known(unpinned_packages(_URI)) is None
    (second,) = packages.fetch(unpinned_packages(_URI))
    assert second.digest != first.digest
    bucket.write(_URI, b"two")
    (third,) = packages.fetch(unpinned_packages(_URI))
    assert third == second


def test_package_content_with_a_wrong_digest_is_rejected(tmp_path: Path) -> None:
    """The digest is checked at the installation. Wrong content is rejected even if an environment with this
    content exists."""
    bucket = Bucket()
    bucket.write(_URI, b"mine")
    mine, theirs = (hashlib.sha256(content).hexdigest() for content in (b"mine", b"theirs"))
    packages = Packages(tmp_path, bucket)
    pinned, by_its_path = JobPackage(_URI, mine), JobPackage(_URI, mine[:32])
    (fetched,) = packages.fetch((pinned,))
    assert packages.known((pinned,)) == packages.known((by_its_path,)) == (fetched,)
    bucket.write(_URI, b"theirs")
    for package in (pinned, by_its_path):
        with pytest.raises(PackageFailed) as refused:
            packages.fetch((package,))
        for word in (_URI, package.digest, theirs, "restore the former content"):
            assert word in str(refused.value)
        assert packages.known((package,)) is None
    # Another user's job uses the same package.
    assert packages.known((JobPackage(_URI, theirs),))
    bucket.write(_URI, b"mine")
    assert packages.fetch((pinned,)) == (fetched,)


def test_error_of_a_missing_package_contains_the_uri_of_the_package(tmp_path: Path) -> None:
    packages = Packages(tmp_path, Bucket())
    assert packages.known(unpinned_packages(_URI)) is None
    with pytest.raises(PackageFailed, match=r"gs://b/aiplatform.*does not exist"):
        packages.fetch(unpinned_packages(_URI))


def test_missing_package_fails_a_job_before_the_image_pull(tmp_path: Path) -> None:
    """spec/failures#rules."""
    images, choice = Mock(), RuntimeChoice(CONTAINER, "", "", image="localhost/trainer:1")
    contained = ContainerRuntimes(images, Packages(tmp_path, Bucket()))
    assert contained.ready(choice, unpinned_packages(_URI)) is None
    with pytest.raises(PackageFailed, match="does not exist"):
        asyncio.run(contained.prepare(choice, unpinned_packages(_URI), None))
    images.prepare.assert_not_called()


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("gs://b/t+cu1-0.1-py3-none-any.whl", "t+cu1-0.1-py3-none-any.whl"),
        ("gs://b/we ird?n=a&me", "we_ird_n_a_me"),
        ("gs://b/a:b/t-0.1.tar.gz", "package.tar.gz"),
        ("gs://b/aiplatform-2026-11-20-03:24:25.811-t-0.1.tar.gz", "package.tar.gz"),
        ("gs://b/t-0.1.zip", "package.zip"),
        ("gs://b/t-0.1.tgz", "package.tgz"),
        ("gs://b/t-0.1.tar", "package.tar"),
    ],
)
def test_downloaded_file_keeps_a_valid_package_name(tmp_path: Path, uri: str, name: str) -> None:
    """A source distribution's content does not contain its name (spec/clients#recipes: prefix
    `aiplatform-MOMENT-`)."""
    bucket = Bucket()
    bucket.write(uri, b"content")
    (package,) = Packages(tmp_path, bucket).fetch(unpinned_packages(uri))
    assert package.path.name == name


def test_package_metadata_and_scripts_behind_links_are_not_read(tmp_path: Path) -> None:
    """spec/runtimes#builds: the service would read the link targets with its own rights (confused deputy). A
    truncated setup script is accepted."""
    prefix = Prefix(tmp_path / "layer", "3.11")
    info, script = prefix.site / "t-0.1.dist-info", prefix.site / "bin/t"
    info.mkdir(parents=True)
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n'''exec' python")
    (info / "direct_url.json").touch()
    for place in (tmp_path / "secret", prefix.site / "own.py"):
        place.write_text("gsutil")
    (prefix.site / "linked").symlink_to(tmp_path)
    move_scripts(prefix)
    assert [path.name for path in prefix.scripts.iterdir()] == ["t"]
    outside = (f"{tmp_path}/secret", "../../../../secret", "linked/secret", 300 * "n")
    for names, expected in ((outside, False), (("own.py",), True)):
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
        assert layers._mentions_gsutil(prefix) == expected  # pyright: ignore[reportPrivateUsage] - of a build


def _sdist(path: Path, files: dict[str, str]) -> Path:
    return tar(path, {f"trainer-0.1/{name}": text.encode() for name, text in files.items()})


_INFO = "Metadata-Version: 2.1\nName: my-trainer\nVersion: 0.1\n"


@pytest.mark.parametrize(
    ("pyproject", "expected"),
    [
        ("", True),
        ("[project]\nname = 'x'\n", True),
        ("[build-system]\nrequires = ['setuptools>=61.0', 'wheel']\n", True),
        ("[build-system]\nrequires = ['setuptools>=77']\n", False),
        ("[build-system]\nrequires = ['setuptools<60']\n", False),
        ("[build-system]\nrequires = ['setuptools', 'numpy']\n", False),
        ("[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n", False),
        ("[build-system\n", False),
    ],
)
def test_only_plain_setuptools_packages_are_built_without_a_build_environment(
    tmp_path: Path, pyproject: str, expected: bool
) -> None:
    files = {"PKG-INFO": _INFO, "setup.py": "", "trainer.egg-info/PKG-INFO": "Name: other\n"}
    if pyproject:
        files["pyproject.toml"] = pyproject
    assert is_buildable(_sdist(tmp_path / "t-0.1.tar.gz", files)) is expected
