"""Tests of limits for untrusted archives. Each rejection contains its limit (spec/program)."""

import gc
import gzip
import io
import lzma
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trainshed.runtimes import archives
from trainshed.runtimes.archives import ArchiveRejected, is_buildable
from trainshed.runtimes.confinement import MAX_METADATA


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def _zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


_NESTED = b"a = " + b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(("name", "pack"), [("p.zip", _zip), ("p.tar.gz", tar)], ids=["zip", "tar"])
@pytest.mark.parametrize("metadata", ["pyproject.toml", "PKG-INFO", "setup.py"])
def test_oversized_metadata_file_is_rejected(
    tmp_path: Path, name: str, pack: Callable[[Path, dict[str, bytes]], Path], metadata: str
) -> None:
    path = pack(tmp_path / name, {f"p-1/{metadata}": bytes(MAX_METADATA + 1)})
    with pytest.raises(ArchiveRejected, match=r"p-1/.* of more than 4 MiB, which is the limit"):
        is_buildable(path)


def test_zip_with_a_false_metadata_size_is_rejected(tmp_path: Path) -> None:
    content = _zip(tmp_path / "p.zip", {"p-1/pyproject.toml": bytes(1 << 24)}).read_bytes()
    # The sizes of the content are in two places.
    (tmp_path / "p.zip").write_bytes(content.replace(struct.pack("<I", 1 << 24), bytes([1, 0, 0, 0])))
    assert not is_buildable(tmp_path / "p.zip")


@pytest.mark.parametrize(("name", "pack"), [("p.zip", _zip), ("p.tar.gz", tar)], ids=["zip", "tar"])
def test_deeply_nested_toml_is_rejected(
    tmp_path: Path, name: str, pack: Callable[[Path, dict[str, bytes]], Path]
) -> None:
    path = pack(tmp_path / name, {"p-1/pyproject.toml": _NESTED})
    # Objects of other tests must not be finalized at the recursion limit.
    gc.collect()
    with pytest.raises(ArchiveRejected, match="nested too deeply"):
        is_buildable(path)


def test_archive_above_the_unpacked_size_limit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "p.tar.gz"
    # The declared size is enough; no further data is read.
    path.write_bytes(gzip.compress(header("p-1/a", 3 << 30) + bytes(1 << 20)))
    with pytest.raises(ArchiveRejected, match="unpacks to more than 2 GiB, which is the limit"):
        is_buildable(path, 2 << 30)
    wheel = _zip(tmp_path / "p.whl", {"a": bytes(3 << 20), "b": bytes(3 << 20)})
    with pytest.raises(ArchiveRejected, match="unpacks to more than 4 MiB"):
        is_buildable(wheel, 4 << 20)
    assert is_buildable(wheel)


def test_archive_file_above_the_size_limit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "p.tar"
    with path.open("wb") as file:
        file.truncate(2 << 20)
    with pytest.raises(ArchiveRejected, match="is larger than 1 MiB"):
        is_buildable(path, 1 << 20)


def test_archive_with_too_many_members_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/e2e/test_hostile_builds.py tests the real limit."""
    few = 5_000
    monkeypatch.setattr(archives, "MAX_MEMBERS", few)
    tar = tmp_path / "p.tar.gz"
    tar.write_bytes(gzip.compress(header("p-1/a") * (few + 1), 1))
    with pytest.raises(ArchiveRejected, match=f"contains more than {few} files and directories"):
        is_buildable(tar)
    zipped = tmp_path / "p.zip"
    zipped.write_bytes(zip_of_many(few + 1))
    with pytest.raises(ArchiveRejected, match=f"contains more than {few} files and directories"):
        is_buildable(zipped)


def zip_of_many(many: int, declared: int | None = None) -> bytes:
    """Return a zip file that lists one empty file many times. `declared`: the number in its end record; None
    = the true number."""
    declared = many if declared is None else declared
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a", b"")
    content = made.getvalue()
    begin, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entries = content[begin:end] * many
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, declared, declared, len(entries), begin)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, begin + len(entries), 1)
    last = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    return content[:begin] + entries + record + locator + last


def _refusal_with(memory: int, archive: Path) -> str:
    """Return the error of a new process with limited memory, which cannot reuse memory of other tests."""
    code = (
        "import sys; from trainshed.runtimes import archives; archives.load();"
        "archives.MAX_MEMORY = int(sys.argv[1]); archives.are_buildable(sys.argv[2:])"
    )
    command = [sys.executable, "-c", code, str(memory), str(archive)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_archive_with_undeclared_members_is_rejected_by_the_memory_limit(tmp_path: Path) -> None:
    (tmp_path / "p.zip").write_bytes(zip_of_many(110_000, declared=1))
    refusal = _refusal_with(32 << 20, tmp_path / "p.zip")
    assert "of memory, which is the limit" in refusal


def test_archive_with_endless_tar_headers_is_rejected_by_the_memory_limit(tmp_path: Path) -> None:
    """A tar reader must read an extended header completely."""
    size = 64 << 20
    with lzma.open(tmp_path / "p.tar.xz", "wb", preset=0) as packed:
        packed.write(header("p-1/x", size, tarfile.XHDTYPE))
        for _ in range(size >> 24):
            packed.write(bytes(1 << 24))
    assert "of memory, which is the limit" in _refusal_with(32 << 20, tmp_path / "p.tar.xz")


def test_archives_that_take_too_long_to_read_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_SECONDS", 0.2)
    with gzip.open(tmp_path / "p.tar.gz", "wb", compresslevel=1) as packed:
        packed.write(header("p-1/a", 1 << 26) + bytes(1 << 26))
    with pytest.raises(ArchiveRejected, match=r"more than 0.2 seconds of processor time, which is the limit"):
        archives.are_buildable([str(tmp_path / "p.tar.gz")] * 200)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an archive",
        b"PK\5\6" + bytes(18),
        gzip.compress(b"not a tar"),
        gzip.compress(bytes(2048))[:20],
    ],
    ids=["empty", "text", "empty-zip", "compressed-text", "half-a-tar"],
)
def test_invalid_archive_raises_no_error_before_the_installer_runs(tmp_path: Path, content: bytes) -> None:
    for name in ("p.tar.gz", "p.zip", "p.whl"):
        path = tmp_path / name
        path.write_bytes(content)
        is_buildable(path)


def test_metadata_of_wheels_is_read_and_ignored_for_source_or_damaged_archives(tmp_path: Path) -> None:
    """Files in deeper directories and unreadable files are ignored."""
    wheel = _zip(tmp_path / "a.whl", {"b.dist-info/METADATA": b"Name: b", "x/METADATA": b"no"})
    source = _zip(tmp_path / "a.zip", {"b.dist-info/METADATA": b"Name: b"})
    broken = tmp_path / "b.whl"
    broken.write_bytes(b"PK")
    paths = map(str, (wheel, source, broken))
    assert archives.metadata_of_wheels(paths) == ["Name: b", ""]
    _zip(wheel, {"b.dist-info/METADATA": bytes(MAX_METADATA + 1)})
    with pytest.raises(ArchiveRejected, match="of more than 4 MiB, which is the limit"):
        archives.metadata_of_wheels([str(wheel)])
