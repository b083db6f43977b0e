"""A job's packages: fetched, named by content, looked into (SPEC §3, facts §5.3)."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import pytest

from trainshed.runtimes.packages import Package, Packages, plain_build_name, requirement
from trainshed.runtimes.port import BuildFailed, PackageFailed


class Bucket:
    """Objects in memory. `opened` lists what was read; `fingerprints=False` is a store that knows none."""

    def __init__(self, *, fingerprints: bool = True) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.opened: list[str] = []
        self._fingerprints = fingerprints

    def write(self, uri: str, content: bytes) -> None:
        generation, _ = self.objects.get(uri, (0, b""))
        self.objects[uri] = (generation + 1, content)

    def open(self, uri: str) -> BinaryIO:
        self.opened.append(uri)
        return io.BytesIO(self._get(uri)[1])

    def fingerprint(self, uri: str) -> str:
        return str(self._get(uri)[0]) if self._fingerprints else ""

    def _get(self, uri: str) -> tuple[int, bytes]:
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return self.objects[uri]


_URI = "gs://b/aiplatform-2026-11-20-03:24:25.811/trainer-0.1.tar.gz?x=1"


def test_packages_are_fetched_in_order_and_once(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.write(_URI, b"one")
    bucket.write("gs://b/two.whl", b"two")
    packages = Packages(tmp_path, bucket)
    uris = (_URI, "gs://b/two.whl")
    assert packages.known(uris) is None
    fetched = packages.fetch(uris)
    assert [package.uri for package in fetched] == list(uris)
    assert [package.path.read_bytes() for package in fetched] == [b"one", b"two"]
    assert packages.known(uris) == fetched
    assert packages.fetch(uris) == fetched
    assert bucket.opened == list(uris)
    # Another service on the same cache knows them too.
    assert Packages(tmp_path, bucket).known(uris) == fetched


def test_a_cache_that_cannot_be_written_is_the_services_failure(tmp_path: Path) -> None:
    """SPEC §2.1: the service itself failed, whosever package it was; the cause names the cache."""
    bucket = Bucket()
    bucket.write(_URI, b"one")
    (tmp_path / "cache").write_text("no directory")
    with pytest.raises(BuildFailed, match=f"{tmp_path}/cache.*TRAINSHED_CACHE"):
        Packages(tmp_path / "cache", bucket).fetch((_URI,))


def test_a_new_content_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.write(_URI, b"one")
    packages = Packages(tmp_path, bucket)
    (first,) = packages.fetch((_URI,))
    bucket.write(_URI, b"two")
    assert packages.known((_URI,)) is None
    (second,) = packages.fetch((_URI,))
    assert second.digest != first.digest
    bucket.write(_URI, b"two")
    (third,) = packages.fetch((_URI,))
    assert third == second


def test_without_fingerprints_nothing_is_known_but_everything_works(tmp_path: Path) -> None:
    bucket = Bucket(fingerprints=False)
    bucket.write(_URI, b"one")
    packages = Packages(tmp_path, bucket)
    assert packages.fetch((_URI,)) == packages.fetch((_URI,))
    assert packages.known((_URI,)) is None


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    packages = Packages(tmp_path, Bucket())
    assert packages.known((_URI,)) is None
    with pytest.raises(PackageFailed, match=r"gs://b/aiplatform.*does not exist"):
        packages.fetch((_URI,))


def test_an_interrupted_read_leaves_nothing(tmp_path: Path) -> None:
    class Broken(Bucket):
        def open(self, uri: str) -> BinaryIO:
            raise FileNotFoundError(uri)

    bucket = Broken()
    bucket.write(_URI, b"one")
    with pytest.raises(PackageFailed):
        Packages(tmp_path, bucket).fetch((_URI,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("gs://b/a:b/t-0.1.tar.gz", "t-0.1.tar.gz"),
        ("gs://b/t+cu1-0.1-py3-none-any.whl", "t+cu1-0.1-py3-none-any.whl"),
        ("gs://b/we ird?n=a&me.tar.gz", "we_ird_n_a_me.tar.gz"),
    ],
)
def test_file_names_keep_what_installers_read(tmp_path: Path, uri: str, name: str) -> None:
    bucket = Bucket()
    bucket.write(uri, b"content")
    (package,) = Packages(tmp_path, bucket).fetch((uri,))
    assert package.path.name == name


def _sdist(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"trainer-0.1/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


_INFO = "Metadata-Version: 2.1\nName: my-trainer\nVersion: 0.1\n"


@pytest.mark.parametrize(
    ("pyproject", "expected"),
    [
        ("", "my-trainer"),
        ("[project]\nname = 'x'\n", "my-trainer"),
        ("[build-system]\nrequires = ['setuptools>=61.0', 'wheel']\n", "my-trainer"),
        ("[build-system]\nrequires = ['setuptools>=77']\n", ""),
        ("[build-system]\nrequires = ['setuptools<60']\n", ""),
        ("[build-system]\nrequires = ['setuptools', 'numpy']\n", ""),
        ("[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n", ""),
        ("[build-system\n", ""),
    ],
)
def test_only_plain_setuptools_builds_need_no_environment(
    tmp_path: Path, pyproject: str, expected: str
) -> None:
    files = {"PKG-INFO": _INFO, "setup.py": "", "trainer.egg-info/PKG-INFO": "Name: other\n"}
    if pyproject:
        files["pyproject.toml"] = pyproject
    assert plain_build_name(_sdist(tmp_path / "t-0.1.tar.gz", files)) == expected


def test_zip_sdists_are_read_and_others_are_not(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("trainer-0.1/PKG-INFO", _INFO)
    assert plain_build_name(tmp_path / "t.zip") == "my-trainer"
    (tmp_path / "t.tar.gz").write_bytes(b"not an archive")
    assert plain_build_name(tmp_path / "t.tar.gz") == ""
    assert plain_build_name(_sdist(tmp_path / "n.tar.gz", {"setup.py": ""})) == ""
    by_hand = _sdist(tmp_path / "my-trainer-0.1.tar.gz", {"setup.py": ""})
    assert plain_build_name(by_hand) == "my-trainer"


def test_a_source_distribution_is_named_by_its_metadata_and_not_by_its_file(tmp_path: Path) -> None:
    """CLIENTS §2: from_local_script puts `aiplatform-MOMENT-` in front of the file's name."""
    files = {"PKG-INFO": _INFO, "setup.py": ""}
    moved = _sdist(tmp_path / "aiplatform-2026-11-20-03_24-my_trainer-0.1.tar.gz", files)
    assert requirement(Package("gs://b/x", "d", moved)) == f"my-trainer @ {moved.as_uri()}"
    by_hand = _sdist(tmp_path / "my-trainer-0.1.tar.gz", {"setup.py": ""})
    assert requirement(Package("gs://b/x", "d", by_hand)) == str(by_hand)
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"not an archive")
    assert requirement(Package("gs://b/x", "d", wheel)) == str(wheel)
