"""Tests that root file systems are unpacked completely, and only inside their directory
(spec/program#isolation)."""

import contextlib
import io
import tarfile
from pathlib import Path
from typing import IO

import pytest

from trainshed.runtimes.images import unpacking
from trainshed.runtimes.images.commands import ToolFailed
from trainshed.runtimes.images.unpacking import DiskFull, UnpackingFailed

Members = list[tuple[tarfile.TarInfo, bytes]]


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def archive(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for info, content in members:
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def unpack_archive(root: Path, data: bytes) -> None:
    root.mkdir()
    unpacking.unpack(root, lambda into: into.write(data))


def test_files_links_and_modes_are_unpacked(tmp_path: Path) -> None:
    """spec/program: A container sees its image's files."""
    data = archive(
        [
            (member("bin", tarfile.DIRTYPE, mode=0o555), b""),
            (member("bin/sh", mode=0o755), b"shell"),
            (member("bin/again", tarfile.LNKTYPE, link="bin/sh"), b""),
            (member("sh", tarfile.SYMTYPE, link="/bin/sh"), b""),
            (member("tmp", tarfile.DIRTYPE, mode=0o1777), b""),
            (member("usr/share/dev/x"), b"no device"),
        ]
    )
    root = tmp_path / "root"
    unpack_archive(root, data)
    assert (root / "bin/sh").stat().st_mode & 0o7777 == 0o755
    assert (root / "bin/again").samefile(root / "bin/sh")
    assert str((root / "sh").readlink()) == "/bin/sh"
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (root / "bin").stat().st_mode & 0o7777 == 0o555
    assert (root / "usr/share/dev/x").read_bytes() == b"no device"


@pytest.mark.parametrize(
    "members",
    [
        [(member("../outside"), b"x")],
        [(member("/outside"), b"x")],
        [(member("way", tarfile.SYMTYPE, link=".."), b""), (member("way/outside"), b"x")],
        [(member("way", tarfile.SYMTYPE, link="../outside"), b""), (member("way"), b"x")],
        [(member("way", tarfile.LNKTYPE, link="../victim"), b""), (member("way"), b"x")],
    ],
    ids=["up", "absolute", "directory link", "file link", "hard link"],
)
def test_archive_members_outside_the_image_are_rejected(tmp_path: Path, members: Members) -> None:
    """spec/program#isolation: An image cannot reach the service's files (path traversal)."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with contextlib.suppress(UnpackingFailed):
        unpack_archive(tmp_path / "root", archive(members))
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "victim"]


def test_devices_of_an_image_are_not_unpacked(tmp_path: Path) -> None:
    """spec/machines#gpus: A replica only has its assigned devices."""
    null = member("null", tarfile.CHRTYPE)
    null.devmajor, null.devminor = 1, 3
    data = archive([(null, b""), (member("dev/null", tarfile.REGTYPE), b"x"), (member("etc/x"), b"y")])
    root = tmp_path / "root"
    unpack_archive(root, data)
    unpacking.remove_devices(root)
    assert not (root / "null").exists()
    assert not (root / "dev/null").exists()
    assert (root / "etc/x").read_bytes() == b"y"
    (root / "etc/x").chmod(0)
    unpacking.remove_devices(root)
    assert (root / "etc/x").stat().st_mode & 0o777 == 0o400, "other nodes are sent it"


@pytest.mark.parametrize("data", [b"no archive at all", archive([(member("x"), b"x" * 9000)])[:4096]])
def test_incomplete_archive_leaves_no_image(tmp_path: Path, data: bytes) -> None:
    """spec/runtimes#images: A built image is complete or missing."""
    with pytest.raises(UnpackingFailed, match="tar"):
        unpack_archive(tmp_path / "root", data)


def test_error_of_image_unpacking_is_the_first_failure(tmp_path: Path) -> None:
    """spec/operations#errors: the error is the first failure, either of the tool or of the unpacking."""

    def fail(into: IO[bytes]) -> None:
        raise ToolFailed("it has no such image")

    data = archive([(member("x"), bytes(1 << 22))])
    with pytest.raises(ToolFailed):
        unpacking.unpack(tmp_path, fail)
    with pytest.raises(UnpackingFailed, match="No such file"):
        unpacking.unpack(tmp_path / "nowhere", lambda into: into.write(data))


def test_image_larger_than_the_disk_is_rejected(tmp_path: Path) -> None:
    """spec/operations#errors: the image is rejected before it fills the disk."""
    with pytest.raises(DiskFull, match=r"the image needs 1,000,000.0 GB unpacked, but only .* are free"):
        unpacking.check_room(tmp_path, 10**15)
