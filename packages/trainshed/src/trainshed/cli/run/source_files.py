"""Finds the files and requirements of a user's program, and packs the files of a project. The same files
produce the same archive, so a package is not uploaded twice. This module does not run the program's code (no
`setup.py`)."""

import gzip
import io
import os
import re
import stat
import tarfile
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

PROJECT_ARCHIVE = "project.tar.gz"
"""The file name of a packed project. The file name does not contain the project's name, because installers
read that name from the archive's metadata."""

# Modification time of all files, in seconds since 1970: 2 January 1980 UTC. Wheels built from the archive are
# zip files. Zip files contain local times, from 1 January 1980 on, so 2 January is valid in every time zone.
_TIME = 315_619_200

_EXCLUDED_NAMES = frozenset({"__pycache__", "node_modules"})
_EXCLUDED_TOP_NAMES = frozenset({"build", "dist", "venv"})
_EXCLUDED_SUFFIXES = (".pyc", ".pyo", ".egg-info", "~")


class PackagingError(Exception):
    """The directory cannot be packed; the message contains the reason and advice."""


def is_project(directory: Path) -> bool:
    """Return whether a directory is an installable project. A directory that contains only a `pyproject.toml`
    may not be one, because the file can configure other tools."""
    if (directory / "setup.py").is_file():
        return True
    try:
        table = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool({"project", "build-system"} & table.keys())


def pack_project(directory: Path) -> bytes:
    """Return an archive (.tar.gz) of a project, which installers accept as a source distribution.

    Executable bits are kept. Times, owners and other permissions are not. Raises PackagingError.
    """
    made = io.BytesIO()
    # Omit the time and the file name that gzip stores by default, because they differ between runs.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=0) as compressed,
        tarfile.open(mode="w", fileobj=compressed, format=tarfile.PAX_FORMAT) as archive,
    ):
        for relative, path in sorted(project_files(directory)):
            content = read_file(path)
            entry = tarfile.TarInfo(f"project/{relative}")
            entry.size = len(content)
            entry.mode = 0o755 if is_executable(path) else 0o644
            entry.mtime = _TIME
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def project_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield (relative path, file) for the files of a program. Raises PackagingError while iterating.

    Hidden files, byte code, virtual environments and build results (`build`, `dist`, `*.egg-info`) are
    omitted.
    """
    for parent, directories, files in os.walk(directory, onerror=_refuse):
        here = Path(parent)
        top = here == directory
        directories[:] = [name for name in directories if not _is_excluded(here / name, top=top)]
        for name in directories:
            if (here / name).is_symlink():
                raise PackagingError(
                    f"{here / name} is a link to a directory, which cannot be packed. Replace it with the "
                    "directory, or move it out of the tree."
                )
        for path in (here / name for name in files):
            if not _is_excluded(path, top=top):
                yield path.relative_to(directory).as_posix(), path


def size_of(file: Path) -> int:
    """Return the size of a regular file in bytes. Raises PackagingError."""
    try:
        status = file.stat()
    except OSError as error:
        _refuse(error)
    if not stat.S_ISREG(status.st_mode):
        raise PackagingError(f"{file} is not an ordinary file. Move it out of the directory.")
    return status.st_size


def read_file(file: Path) -> bytes:
    """Return the content of a file. Raises PackagingError."""
    try:
        return file.read_bytes()
    except OSError as error:
        _refuse(error)


def is_executable(file: Path) -> bool:
    """Return whether the owner of a file may execute it."""
    return bool(file.stat().st_mode & stat.S_IXUSR)


def _is_excluded(path: Path, *, top: bool) -> bool:
    return (
        path.name.startswith(".")
        or path.name in _EXCLUDED_NAMES
        or path.name.endswith(_EXCLUDED_SUFFIXES)
        or (top and path.name in _EXCLUDED_TOP_NAMES)
        or (path / "pyvenv.cfg").is_file()
    )


def _refuse(error: OSError) -> NoReturn:
    raise PackagingError(
        f"{error.filename} cannot be read: {error.strerror}. Make it readable, or move it out of the tree."
    ) from error


_COMMENT = re.compile(r"(^|\s)#.*")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^]]*\]\s*)?([<>=!~;@(].*)?$", re.DOTALL)
_HASH = re.compile(r"\s--hash=\S+")


def split_requirements(texts: tuple[str, ...]) -> list[str]:
    """Split lists of requirements at commas, except for commas within a requirement: `a>=1,<2,b`.

    A file NAME.txt is replaced by its requirements. Raises PackagingError if the file cannot be read.
    """
    requirements: list[str] = []
    for text in texts:
        begun = False
        for part in filter(None, (part.strip() for part in text.split(","))):
            if part.endswith(".txt"):
                # Never treat the name of a file as a package name. Package indexes contain malicious packages
                # with names such as `requirements.txt`, for users who forget `-r`.
                requirements.extend(read_requirements(Path(part)))
                begun = False
                continue
            if begun and (part[0] in "<>=!~" or requirements[-1].count("[") > requirements[-1].count("]")):
                requirements[-1] += f",{part}"
            else:
                requirements.append(part)
            begun = True
    return requirements


def read_requirements(path: Path) -> list[str]:
    """Return the requirements of a file, and of the files that it includes. Included files must be in its
    directory. Raises PackagingError with the invalid lines."""
    requirements: list[str] = []
    wrong: list[str] = []
    _read(path, requirements, wrong, (), path.parent.resolve())
    if wrong:
        raise PackagingError("\n".join(wrong))
    return requirements


def requirement(text: str) -> str:
    """Convert a requirement to the form of package metadata. Raises ValueError with the reason."""
    text = _HASH.sub("", text).strip()
    if text.startswith("-"):
        raise ValueError(
            "options of pip are not supported in requirements. Set the index and links for pip and uv with "
            "PIP_INDEX_URL, UV_INDEX_URL and PIP_FIND_LINKS in the environment"
        )
    if re.match(r"(git\+|https?:|hg\+|svn\+)", text):
        egg = _EGG.search(text)
        if egg is None:
            raise ValueError(f"the requirement has no name. Write NAME @ {text}")
        return f"{egg[1]} @ {text.partition('#')[0]}"
    if text.endswith((".whl", ".tar.gz", ".zip")) and "@" not in text:
        raise ValueError(
            "the requirement is a file of this machine. Use NAME @ and an address from which a job can "
            "download it"
        )
    if not _REQUIREMENT.match(text):
        raise ValueError("the text is not a requirement. Write a requirement such as pandas==2.2.0")
    return text


def _read(path: Path, requirements: list[str], wrong: list[str], above: tuple[Path, ...], root: Path) -> None:
    # Reject included files outside the directory of the first list. A line such as `-r /home/ana/.ssh/id_rsa`
    # in an untrusted list would upload a private file.
    if not path.resolve().is_relative_to(root):
        wrong.append(f"{path} is outside of {root}. Use --requirements for it instead.")
        return
    try:
        content = path.read_bytes()
        # Also accept UTF-16, because PowerShell writes such files and pip reads them.
        encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
        lines = list(_lines(content.decode(encoding)))
    except (OSError, UnicodeDecodeError) as failure:
        wrong.append(f"{path} cannot be read: {failure}.")
        return
    for number, line in lines:
        text = _COMMENT.sub("", line).strip()
        option, _, value = text.replace("=", " ", 1).partition(" ")
        if option in ("-r", "--requirement") and value:
            included = path.parent / value.strip()
            if included.resolve() not in above:
                _read(included, requirements, wrong, (*above, path.resolve()), root)
        elif text:
            try:
                requirements.append(requirement(text))
            except ValueError as fault:
                wrong.append(f"{path}, line {number}, {text!r}: {fault}.")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line. Join lines that end with a backslash with the next line."""
    whole, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if whole else number
        if line.endswith("\\"):
            whole += line[:-1]
            continue
        yield first, whole + line
        whole = ""
    if whole:
        yield first, whole
