"""Project archives: their contents, and reproducible bytes for equal files."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from trainshed.cli.run.source_files import PackagingError, pack_project, read_requirements


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        return members.getnames()


def plant(root: Path, *files: str) -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")


def test_equal_project_files_give_identical_archives(tmp_path: Path) -> None:
    files = ["setup.py", "trainer/__init__.py", "trainer/task.py"]
    single, other = tmp_path / "one", tmp_path / "other"
    plant(single, *files)
    plant(other, *reversed(files))
    for name in files:
        os.utime(other / name, (1, 1))
        (other / name).chmod(0o600)
    first = pack_project(single)
    assert first == pack_project(other)

    (other / "trainer/task.py").chmod(0o700)
    assert first != pack_project(other)


def test_project_archive_excludes_caches_builds_and_environments(tmp_path: Path) -> None:
    plant(tmp_path, "pyproject.toml", "a/__init__.py", "a/data.csv", "a/build/kept.py")
    plant(tmp_path, ".git/config", ".env", "a/.cache/x", "a/__pycache__/b.cpython-311.pyc")
    plant(tmp_path, "build/lib.py", "dist/old.tar.gz", "a.egg-info/PKG-INFO", "my-env/pyvenv.cfg")
    plant(tmp_path, "my-env/lib/x.py", "a/b.pyc")
    assert names(pack_project(tmp_path)) == [
        "project/a/__init__.py",
        "project/a/build/kept.py",
        "project/a/data.csv",
        "project/pyproject.toml",
    ]
    with pytest.raises(PackagingError, match=r".*missing"):
        pack_project(tmp_path / "missing")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_requirements_file_in_a_windows_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_bytes("pandas==2.2.0\r\nhumanize\r\n".encode(encoding))
    assert read_requirements(path) == ["pandas==2.2.0", "humanize"]
