"""A program's files on their way into a replica: what is copied into its working directory, and what is installed as a package.

As the public command has it (facts §5.5): the directory of the script or module, extra directories, and what `setup.py`,
`requirements.txt` and the options say is needed. A module of a project is not copied: it is installed, as a job's package is.
"""

import ast
import configparser
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from trainshed.runtimes.port import PackageSource
from trainshed.serve.local_run import requirements
from trainshed.serve.local_run.wish import NotRun, Wish, is_project

BUCKET = "trainshed-local-run"
"""The bucket that packages of a local run seem to lie in. There is none of that name: nothing is uploaded."""

_REQUIREMENTS = "local_run_requirements-1.0-py3-none-any.whl"
_INFO = "local_run_requirements-1.0.dist-info"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A package by the URI that its job names it by."""

    uri: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Pack:
    """`parcels`: installed in their order. `trees`: what is copied, as paths in the program's directory; () = nothing."""

    parcels: tuple[Parcel, ...]
    trees: tuple[str, ...]


def pack(wish: Wish) -> Pack:
    """Look at the program and put it together. Blocks on the disk alone, runs nothing. Raises NotRun."""
    if not wish.entry:
        return Pack((), ())
    project = is_project(wish.directory)
    parcels = [_project(wish.directory)] if project else []
    parcels += [_parcel(path.name, path.read_bytes()) for path in wish.extra_packages]
    needed = _needed(wish, project=project)
    if needed:
        parcels.append(_parcel(_REQUIREMENTS, requirements_wheel(needed)))
    return Pack(tuple(parcels), _trees(wish, project=project))


def is_installed(wish: Wish) -> bool:
    """Whether the program is a module of a package that gets installed, as in a job with a Python package."""
    return bool(wish.module) and is_project(wish.directory)


def requirements_wheel(needed: Sequence[str]) -> bytes:
    """A package that holds nothing and needs these: the same ones make the same bytes."""
    lines = "".join(f"Requires-Dist: {text}\n" for text in needed)
    files = {
        f"{_INFO}/METADATA": f"Metadata-Version: 2.1\nName: local-run-requirements\nVersion: 1.0\n{lines}",
        f"{_INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: trainshed\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{_INFO}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{_INFO}/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return made.getvalue()


class Parcels:
    """`runtimes.port.PackageSource` over parcels, and over the real buckets for all else."""

    def __init__(self, parcels: Iterable[Parcel], others: Callable[[], PackageSource]) -> None:
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


def _parcel(name: str, content: bytes) -> Parcel:
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Parcel(f"gs://{BUCKET}/{digest}/{name}", content)


def _needed(wish: Wish, *, project: bool) -> list[str]:
    """What is to be installed besides packages: of the requirements file, unless the directory is a project, and of the option."""
    found: list[str] = []
    file = wish.directory / "requirements.txt"
    if file.is_file() and not project:
        found += requirements.read_file(file)
    for text in wish.requirements:
        try:
            found.append(requirements.one(text))
        except ValueError as fault:
            raise NotRun(f"--requirements: {text!r}: {fault}.") from None
    return found


def _trees(wish: Wish, *, project: bool) -> tuple[str, ...]:
    if wish.module and project:
        return wish.extra_dirs
    parent = str(PurePosixPath(wish.entry).parent)
    return tuple(dict.fromkeys((parent, *wish.extra_dirs)))


def _project(directory: Path) -> Parcel:
    from trainshed.cli.packaging import PackagingError, build_sdist

    name, version = _title(directory)
    try:
        made = build_sdist(directory, name=name, version=version)
    except PackagingError as failure:
        raise NotRun(f"{directory} cannot be packed: {failure}") from failure
    return _parcel(made.filename, made.content)


def _title(directory: Path) -> tuple[str, str]:
    """Name and version that a project gives itself, as far as it can be told without running anything of it."""
    found: dict[str, str] = {}
    try:
        if (file := directory / "pyproject.toml").is_file():
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            project: dict[str, Any] = (
                table.get("project") or table.get("tool", {}).get("poetry") or {}
            )
            found |= {key: text for key, text in project.items() if isinstance(text, str)}
        if (file := directory / "setup.cfg").is_file():
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_string(file.read_text(encoding="utf-8"))
            found = (dict(parser["metadata"]) if "metadata" in parser else {}) | found
        if (file := directory / "setup.py").is_file():
            found = _keywords(file.read_text(encoding="utf-8")) | found
    except (OSError, ValueError, SyntaxError, configparser.Error) as failure:
        raise NotRun(f"The project in {directory} cannot be read: {failure}.") from failure
    if not found.get("name"):
        raise NotRun(
            f"The name of the project in {directory} cannot be told without running it. Build it (python3 -m build --sdist), "
            "move what was built and the program into a directory without setup.py, and give it by --extra-packages."
        )
    version = found.get("version", "")
    return found["name"], version if version[:1].isdigit() else "0"


def _keywords(source: str) -> dict[str, str]:
    """The texts that `setup(...)` is called with."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[keyword.arg] = value.value
    return found
