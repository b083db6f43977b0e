"""The files of a local run's program: what is copied into its working directory, and what is installed.

As the public command has it (facts/packaging#autopackaging): the directory of the script or module, extra
directories, and what `setup.py`, `requirements.txt` and the options say is needed. A module of a project is
not copied: it is installed, as a job's package is.
"""

import ast
import configparser
import hashlib
import io
import os
import re
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from trainshed.replica.supervisor import program
from trainshed.runtimes.port import PackageSource
from trainshed.serve.local_run.request import LocalRunRequest, NotRun, is_project

BUCKET = "trainshed-local-run"
"""The bucket that packages of a local run seem to lie in. There is none of that name: nothing is uploaded."""

APP = "/usr/app"
"""Where the program's directory is in a container image, as the public command has it
(facts/packaging#autopackaging)."""
_REQUIREMENTS = "local_run_requirements-1.0-py3-none-any.whl"
_INFO = "local_run_requirements-1.0.dist-info"
_LEFT_OUT = frozenset({"__pycache__", "node_modules", ".git", ".hg", ".svn"})
_COMMENT = re.compile(r"(^|\s)#.*")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^]]*\]\s*)?([<>=!~;@(].*)?$", re.DOTALL)
_HASH = re.compile(r"\s--hash=\S+")


@dataclass(frozen=True, slots=True)
class LocalPackage:
    """A package by the URI that its job names it by."""

    uri: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """What of a program is installed and what is copied."""

    #: Installed in this order.
    parcels: tuple[LocalPackage, ...]
    #: Copied, as paths in the program's directory; () = nothing.
    trees: tuple[str, ...]


def pack(request: LocalRunRequest) -> ProgramFiles:
    """Look at the program and put it together. Blocks on the disk alone, runs nothing. Raises NotRun."""
    if not request.entry:
        return ProgramFiles((), ())
    project = is_project(request.directory)
    parcels = [_project(request.directory)] if project else []
    parcels += [_parcel(path.name, path.read_bytes()) for path in request.extra_packages]
    needed = _needed(request, project=project)
    if needed:
        parcels.append(_parcel(_REQUIREMENTS, requirements_wheel(needed)))
    return ProgramFiles(tuple(parcels), _trees(request, project=project))


def is_installed(request: LocalRunRequest) -> bool:
    """Whether the program is a module of a package that gets installed, as in a job with a Python package."""
    return bool(request.module) and is_project(request.directory)


def requirements_wheel(needed: Sequence[str]) -> bytes:
    """A package that holds nothing and needs these: the same ones make the same bytes."""
    lines = "".join(f"Requires-Dist: {text}\n" for text in needed)
    files = {
        f"{_INFO}/METADATA": (
            f"Metadata-Version: 2.1\nName: local-run-requirements\nVersion: 1.0\n{lines}"
        ),
        f"{_INFO}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: trainshed\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    files[f"{_INFO}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{_INFO}/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return made.getvalue()


class LocalPackages:
    """A `runtimes.port.PackageSource` over local packages, and over the real buckets for all else."""

    def __init__(
        self, parcels: Iterable[LocalPackage], others: Callable[[], PackageSource]
    ) -> None:
        self._parcels = {parcel.uri: parcel for parcel in parcels}
        self._others = others

    def open(self, uri: str) -> BinaryIO:
        """As the protocol says."""
        if parcel := self._parcels.get(uri):
            return io.BytesIO(parcel.content)
        return self._others().open(uri)

    def fingerprint(self, uri: str) -> str:
        """As the protocol says: a parcel's URI names its content."""
        return "content" if uri in self._parcels else self._others().fingerprint(uri)


def _parcel(name: str, content: bytes) -> LocalPackage:
    digest = hashlib.sha256(content).hexdigest()[:16]
    return LocalPackage(f"gs://{BUCKET}/{digest}/{name}", content)


def _needed(request: LocalRunRequest, *, project: bool) -> list[str]:
    """What is to be installed besides packages: of the requirements file, unless the directory is a project,
    and of the option."""
    requirements: list[str] = []
    file = request.directory / "requirements.txt"
    if file.is_file() and not project:
        requirements += read_requirements(file)
    for text in request.requirements:
        try:
            requirements.append(requirement(text))
        except ValueError as fault:
            raise NotRun(f"--requirements: {text!r}: {fault}.") from None
    return requirements


def _trees(request: LocalRunRequest, *, project: bool) -> tuple[str, ...]:
    if request.module and project:
        return request.extra_dirs
    parent = str(PurePosixPath(request.entry).parent)
    return tuple(dict.fromkeys((parent, *request.extra_dirs)))


def _project(directory: Path) -> LocalPackage:
    from trainshed.cli.sdist import PackagingError, build_sdist

    name, version = _title(directory)
    try:
        made = build_sdist(directory, name=name, version=version)
    except PackagingError as failure:
        raise NotRun(f"{directory} cannot be packed: {failure}") from failure
    return _parcel(made.filename, made.content)


def _title(directory: Path) -> tuple[str, str]:
    """Name and version that a project gives itself, as far as it can be told without running anything of
    it."""
    metadata: dict[str, str] = {}
    try:
        if (file := directory / "pyproject.toml").is_file():
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            project: dict[str, Any] = (
                table.get("project") or table.get("tool", {}).get("poetry") or {}
            )
            metadata |= {key: text for key, text in project.items() if isinstance(text, str)}
        if (file := directory / "setup.cfg").is_file():
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(file.read_text(encoding="utf-8"))
            metadata = (dict(parser["metadata"]) if "metadata" in parser else {}) | metadata
        if (file := directory / "setup.py").is_file():
            metadata = _keywords(file.read_text(encoding="utf-8")) | metadata
    except (OSError, ValueError, SyntaxError, configparser.Error) as failure:
        raise NotRun(f"The project in {directory} cannot be read: {failure}.") from failure
    if not metadata.get("name"):
        raise NotRun(
            f"The name of the project in {directory} cannot be told without running it. Build it (python3 "
            "-m build --sdist), move what was built and the program into a directory without setup.py, "
            "and give it by --extra-packages."
        )
    version = metadata.get("version", "")
    return metadata["name"], version if version[:1].isdigit() else "0"


def _keywords(source: str) -> dict[str, str]:
    """The texts that `setup(...)` is called with."""
    texts: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    texts[keyword.arg] = value.value
    return texts


def read_requirements(path: Path) -> list[str]:
    """Every requirement of a file and of those that it includes. Raises NotRun, naming the lines that cannot
    be kept."""
    requirements: list[str] = []
    wrong: list[str] = []
    _read(path, requirements, wrong, ())
    if wrong:
        raise NotRun("\n".join(wrong))
    return requirements


def requirement(text: str) -> str:
    """A requirement as metadata has it. Raises ValueError saying what is wrong."""
    text = _HASH.sub("", text).strip()
    if text.startswith("-"):
        raise ValueError(
            "options are not read here; the index and the like are set for pip and uv by PIP_INDEX_URL, "
            "UV_INDEX_URL and PIP_FIND_LINKS in the environment"
        )
    if re.match(r"(git\+|https?:|hg\+|svn\+)", text):
        egg = _EGG.search(text)
        if egg is None:
            raise ValueError(f"it has no name; write NAME @ {text}")
        return f"{egg[1]} @ {text.partition('#')[0]}"
    if text.endswith((".whl", ".tar.gz", ".zip")) and "@" not in text:
        raise ValueError("a file of this machine is given by --extra-packages")
    if not _NAMED.match(text):
        raise ValueError("it is no requirement such as pandas==2.2.0")
    return text


def _read(path: Path, requirements: list[str], wrong: list[str], above: tuple[Path, ...]) -> None:
    try:
        lines = list(_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as failure:
        wrong.append(f"{path} cannot be read: {failure}.")
        return
    for number, line in lines:
        text = _COMMENT.sub("", line).strip()
        option, _, value = text.replace("=", " ", 1).partition(" ")
        if option in ("-r", "--requirement") and value:
            included = path.parent / value.strip()
            if included.resolve() not in above:
                _read(included, requirements, wrong, (*above, path.resolve()))
        elif text:
            try:
                requirements.append(requirement(text))
            except ValueError as fault:
                wrong.append(f"{path}, line {number}, {text!r}: {fault}.")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of lines, with those that go on put together."""
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


def copy_program(files: Path, directory: Path, trees: Iterable[str], away: Sequence[Path]) -> None:
    """Copy `trees` of the program's `directory` into the working directory of a slot's `files`. `away`:
    directories that stay out. Raises OSError."""
    work = files / program.WORK
    work.mkdir(mode=0o700, parents=True)
    _copy(directory, trees, work, away)


def copy_into_image(
    files: Path, directory: Path, trees: Iterable[str], away: Sequence[Path], *, owner: int
) -> None:
    """The same for a program of a container image: as if the image had them. `owner`: the machine's user that
    is root there, 0 = it is whoever we are."""
    upper = files / program.LAYER / "upper"
    place = upper
    for name in APP.strip("/").split("/"):
        place /= name
        place.mkdir(parents=True)
        place.chmod(0o755)
        if owner:
            os.chown(place, owner, owner)
    _copy(directory, trees, place, away)
    _give(place, owner)


def write_packages(parcels: Iterable[LocalPackage], packages: Path) -> None:
    """Put packages where an image's own installer finds them. Raises OSError."""
    packages.mkdir(mode=0o755)
    for parcel in parcels:
        place = packages / parcel.uri.removeprefix(f"gs://{BUCKET}/")
        place.parent.mkdir(mode=0o755)
        place.write_bytes(parcel.content)
        place.chmod(0o644)


def _copy(directory: Path, trees: Iterable[str], target: Path, away: Sequence[Path]) -> None:
    """Copy parts of a program's directory into a working directory. `away`: directories that stay out. Raises
    OSError."""
    places = {path.resolve() for path in away}

    def unwanted(parent: str, names: list[str]) -> set[str]:
        here = Path(parent)
        return {
            name
            for name in names
            if name in _LEFT_OUT
            or name.endswith(".pyc")
            or (here / name / "pyvenv.cfg").is_file()
            or (here / name).resolve() in places
        }

    for tree in trees:
        shutil.copytree(
            directory / tree, target / tree, symlinks=True, ignore=unwanted, dirs_exist_ok=True
        )


def _give(directory: Path, user: int) -> None:
    """Have a tree belong to another user, who may not be the one that the program ends up as: all may read
    it, and write to its top. Raises OSError."""
    directory.chmod(0o777)
    for parent, names, files in os.walk(directory):
        for path in (Path(parent), *(Path(parent, name) for name in (*names, *files))):
            if not path.is_symlink():
                mode = path.stat().st_mode & 0o7777
                path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))
            if user:
                os.chown(path, user, user, follow_symlinks=False)
