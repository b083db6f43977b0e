"""Root file systems for container images, assembled from files of the test machine."""

import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.commands import execute
from trainshed.core.launch import ImageRoot

PROGRAMS = (
    *("sh", "cat", "id", "ls", "sleep", "env", "hostname", "pwd", "touch", "true", "stat"),
    *("mkdir", "rm", "cp", "bash"),
)
_LIBRARY = re.compile(r"(/\S+) \(0x")
_NOT_NEEDED = re.compile(
    r"/(test|tests|idlelib|lib2to3|ensurepip|tkinter|turtledemo|config-[^/]*)(/|$)"
    r"|/_(test|tkinter)[^/]*\.so$|\.opt-\d\.pyc$|\.exe$|/EXTERNALLY-MANAGED$"
)
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n"
_GROUP = "root:x:0:\nada:x:1000:\ncrew:x:2000:\n"


def with_programs(tar: Path, *, files: Mapping[str, str] | None = None, python: bool = False) -> None:
    """Write a tar archive with `PROGRAMS`, the users root and ada, the given files, and optionally
    a Python."""
    with tarfile.open(tar, "w") as archive:
        for name in ("tmp", "etc", "root", "home", "home/ada", "usr", "usr/bin", "bin"):
            _directory(archive, name, 1000 if name == "home/ada" else 0)
        programs = [path for name in PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))]
        for path in programs:
            archive.add(Path(path).resolve(), f"bin/{Path(path).name}")
        _add_libraries(archive, programs)
        _text(archive, "etc/passwd", _PASSWD)
        _text(archive, "etc/group", _GROUP)
        for name, text in (files or {}).items():
            _text(archive, name, text)
        if python:
            _add_python(archive)


def image_root(directory: Path, *, files: Mapping[str, str] | None = None) -> ImageRoot:
    """Unpack an archive of `with_programs` to a new directory."""
    tar = directory.with_suffix(".tar")
    with_programs(tar, files=files)
    with tarfile.open(tar) as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # Since Python 3.11.4.
        archive.extractall(directory)
    return ImageRoot(str(directory))


def _add_python(archive: tarfile.TarFile) -> None:
    """Add the tests' interpreter at its original path, with pip and without its test suite."""
    executable = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    archive.add(executable, str(executable).lstrip("/"))
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"usr/local/bin/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, str(executable)
        archive.addfile(link)

    def select_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "/site-packages/" in member.name else _select_needed(member)

    archive.add(library, str(library).lstrip("/"), filter=select_member)
    # Debian's Python has no site-packages directory of its own.
    code = "import site; print(site.getsitepackages()[0])"
    packages = execute(str(executable), "-I", "-S", "-c", code, check=True).stdout.strip()
    for path in Path(sysconfig.get_path("purelib")).glob("pip*"):
        archive.add(path, f"{packages}/{path.name}".lstrip("/"), filter=_select_needed)
    modules = [str(path) for path in library.glob("lib-dynload/*.so") if not _NOT_NEEDED.search(str(path))]
    _add_libraries(archive, [str(executable), *modules])


def _select_needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _NOT_NEEDED.search(member.name) else member


def _add_libraries(archive: tarfile.TarFile, programs: Iterable[str]) -> None:
    printed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    needed = {*_LIBRARY.findall(printed.stdout)}
    there = set(archive.getnames())
    for path in sorted(needed):
        if path.lstrip("/") not in there:
            archive.add(Path(path).resolve(), path.lstrip("/"))


def _directory(archive: tarfile.TarFile, name: str, owner: int = 0) -> None:
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = 0o1777 if name == "tmp" else 0o755
    member.uid = member.gid = owner
    archive.addfile(member)


def _text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    archive.addfile(member, io.BytesIO(text.encode()))
