"""Directory trees that are sent to nodes: complete transfers, and rejected ones (docs/adr/0063)."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from trainshed_cluster.remote.content import trees
from trainshed_cluster.remote.content.trees import TransferError, Unpacking


def _pack(root: Path) -> bytes:
    out = io.BytesIO()
    trees.pack(root, out)
    return out.getvalue()


def _unpack(data: bytes, root: Path) -> str:
    return Unpacking(root).unpack(io.BytesIO(data))


def _tree(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "bin" / "tool").chmod(0o755)
    (root / "bin" / "same").hardlink_to(root / "bin" / "tool")
    (root / "lib").mkdir()
    (root / "lib" / ("long" * 60)).write_bytes(b"x" * 300_000)
    (root / "lib" / "\udcff").write_text("a name that is no text")
    (root / "out").symlink_to("/etc/passwd")
    (root / "within").symlink_to("bin/tool")
    os.mkfifo(root / "pipe")
    os.utime(root / "bin" / "tool", (1_000_000_000, 1_000_000_000))
    (root / "lib").chmod(0o555)
    return root


def test_unpacked_directory_tree_equals_the_packed_directory_tree(tmp_path: Path) -> None:
    source, target = _tree(tmp_path / "source"), tmp_path / "target"
    if os.geteuid() == 0:
        os.chown(source / "bin" / "tool", 1234, 2345)
        (source / "bin" / "tool").chmod(0o4755)
    digest = _unpack(_pack(source), target)
    assert digest == trees.identify(source).digest
    for path, was in trees.walk(source):
        now = (target / path).lstat()
        assert (now.st_mode, now.st_uid, now.st_gid) == (was.st_mode, was.st_uid, was.st_gid), path
        if stat.S_ISREG(was.st_mode):
            assert (target / path).read_bytes() == (source / path).read_bytes()
            assert int(now.st_mtime) == int(was.st_mtime)
    assert (target / "bin" / "same").samefile(target / "bin" / "tool")
    assert (target / "out").readlink() == Path("/etc/passwd"), "a link to the outside was followed"
    assert {path for path, _ in trees.walk(target)} == {path for path, _ in trees.walk(source)}


@pytest.mark.parametrize("change", ["content", "mode", "target", "name"])
def test_any_change_in_a_directory_tree_changes_its_digest(tmp_path: Path, change: str) -> None:
    root = _tree(tmp_path / "source")
    before = trees.identify(root).digest
    match change:
        case "content":
            (root / "bin" / "tool").write_text("#!/bin/no\n")
        case "mode":
            (root / "bin" / "tool").chmod(0o700)
        case "target":
            (root / "out").unlink()
            (root / "out").symlink_to("/etc/shadow")
        case _:
            (root / "pipe").rename(root / "tube")
    assert trees.identify(root).digest != before


def test_digest_of_a_directory_tree_ignores_bytecode_and_marker_files(tmp_path: Path) -> None:
    root = _tree(tmp_path / "source")
    before = trees.identify(root).digest
    (root / "bin" / "__pycache__").mkdir()
    (root / "bin" / "__pycache__" / "tool.pyc").touch()
    (root / ".built").touch()
    (root / "lib").chmod(0o755)
    assert trees.identify(root).digest == before


def _of(*members: tuple[str, bytes, str]) -> bytes:
    """Return a tar with these (name, type, link target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    return out.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("/abs", tarfile.REGTYPE, "")],
        [("../out", tarfile.REGTYPE, "")],
        [("d", tarfile.DIRTYPE, ""), ("d/../../out", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "../out"), ("link", tarfile.REGTYPE, "")],
        [("hard", tarfile.LNKTYPE, "../victim")],
        [("link", tarfile.SYMTYPE, "../victim"), ("hard", tarfile.LNKTYPE, "link")],
        [("d", tarfile.DIRTYPE, ""), ("d", tarfile.SYMTYPE, ".."), ("d/out", tarfile.REGTYPE, "")],
        [("device", tarfile.CHRTYPE, "")],
        [("none/file", tarfile.REGTYPE, "")],
    ],
    ids=lambda members: " ".join(name for name, _, _ in members),
)
def test_path_traversal_in_a_tar_is_rejected(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    (tmp_path / "victim").write_text("as it was")
    with pytest.raises((TransferError, OSError)):
        _unpack(_of(*members), tmp_path / "target")
    assert {path.name for path in tmp_path.iterdir()} <= {"victim", "target"}
    assert (tmp_path / "victim").read_text() == "as it was"
    assert (tmp_path / "victim").stat().st_nlink == 1


def test_truncated_stream_of_a_directory_tree_is_rejected(tmp_path: Path) -> None:
    data = _pack(_tree(tmp_path / "source"))
    end = data.index(b"+" + trees.identify(tmp_path / "source").digest.encode())
    for number, length in enumerate((0, 3, 512, len(data) // 2, end - 512, end - 1, end + 10)):
        with pytest.raises(TransferError, match="ended early"):
            _unpack(data[:length], tmp_path / f"torn{number}")
    with pytest.raises(TransferError, match="the disk is gone"):
        _unpack(trees.failure_tar("the disk is gone"), tmp_path / "failed")
    with pytest.raises(TransferError, match="ended early"):
        _unpack(b"HTTP/1.1 400 Bad Request\r\n\r\n", tmp_path / "other")
