"""Source distributions: what is in them, and that the same files give the same bytes."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from trainshed.cli.sdist import PackagingError, Sdist, build_sdist


def content(sdist: Sdist) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(sdist.content), mode="r:gz") as archive:
        files = ((member, archive.extractfile(member)) for member in archive)
        return {member.name: file.read() for member, file in files if file is not None}


def plant(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")


def test_same_files_same_bytes(tmp_path: Path) -> None:
    names = ["setup.py", "trainer/__init__.py", "trainer/task.py"]
    single, other = tmp_path / "one", tmp_path / "other"
    plant(single, *names)
    plant(other, *reversed(names))
    for name in names:
        os.utime(other / name, (1, 1))
        (other / name).chmod(0o600)
    first = build_sdist(single, name="t", version="1")
    assert first == build_sdist(other, name="t", version="1")

    (other / "trainer/task.py").chmod(0o700)
    assert first != build_sdist(other, name="t", version="1")


def test_what_is_left_out(tmp_path: Path) -> None:
    plant(tmp_path, "pyproject.toml", "a/__init__.py", "a/data.csv", "a/build/kept.py")
    plant(tmp_path, ".git/config", ".env", "a/.cache/x", "a/__pycache__/b.cpython-311.pyc")
    plant(tmp_path, "build/lib.py", "dist/old.tar.gz", "a.egg-info/PKG-INFO", "my-env/pyvenv.cfg")
    plant(tmp_path, "my-env/lib/x.py", "a/b.pyc")
    assert sorted(content(build_sdist(tmp_path, name="A.b-c", version="0.1"))) == [
        "a_b_c-0.1/PKG-INFO",
        "a_b_c-0.1/a/__init__.py",
        "a_b_c-0.1/a/build/kept.py",
        "a_b_c-0.1/a/data.csv",
        "a_b_c-0.1/pyproject.toml",
    ]


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("../etc", "1", "cannot be the name"),
        ("", "1", "cannot be the name"),
        ("a", "1/2", "cannot be the version"),
        ("a", "1", "There is no Python file to pack"),
    ],
)
def test_refusals(tmp_path: Path, name: str, version: str, message: str) -> None:
    plant(tmp_path, "readme.txt")
    with pytest.raises(PackagingError, match=message):
        build_sdist(tmp_path, name=name, version=version)


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match=r"Cannot read .*missing"):
        build_sdist(tmp_path / "missing", name="a", version="1")

    plant(tmp_path, "a.py", "target/b.py")
    (tmp_path / "data").symlink_to(tmp_path / "target")
    with pytest.raises(PackagingError, match="data is a link to a directory"):
        build_sdist(tmp_path, name="a", version="1")

    (tmp_path / "data").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackagingError, match="pipe is not an ordinary file"):
        build_sdist(tmp_path, name="a", version="1")
