"""Packs a program of this machine, so that a job's replicas can install and run it. This module determines
which files belong to the program, and how to start it. It does not run the program's code and uploads
nothing. The same files produce the same bytes."""

import ast
import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from unicodedata import category

from trainshed.cli.run.source_files import (
    PROJECT_ARCHIVE,
    PackagingError,
    is_executable,
    is_project,
    pack_project,
    project_files,
    read_file,
    read_requirements,
    requirement,
    size_of,
)
from trainshed.core.terminals import NOTEBOOK
from trainshed.replica.protocol import PACKED_PROGRAM

JUPYTERLAB = "jupyterlab==4.3.8"
"""The package that `run --notebook` installs."""
_PACKAGE = PACKED_PROGRAM
_REQUIREMENTS_PACKAGE = "trainshed_requirements"
"""The package that contains only requirements."""
_ENTRIES = ("__main__.py", "task.py", "train.py", "main.py")
"""Names of files that may start a program, the most likely first."""
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_ADVICE = {".ipynb": " Convert the notebook to a file first: jupyter nbconvert --to script."}
"""Advice for files of other types, by suffix."""
_MAX_SIZE = 200 * 2**20
"""Maximum bytes of packed files. Larger data belong in a bucket."""
_MAX_REFERENCED_SIZE = 10 * 2**20
"""Maximum bytes of a file that is packed only because a shell script contains its path."""
_WORD = re.compile(r"[\w.][\w./-]*")
_MODULE = re.compile(r"\s-m\s+([A-Za-z_]\w*)")
"""Matches the top-level name of a module that a shell script runs."""
_MAX_LISTED = 5
"""Maximum number of files that an error lists."""


@dataclass(frozen=True, slots=True)
class Package:
    """A file that a replica installs."""

    filename: str
    content: bytes


@dataclass(frozen=True, slots=True)
class _Start:
    """How to start a program: as a file or as a module. The unused field is ""."""

    file: str = ""
    module: str = ""

    @property
    def starter(self) -> str:
        """The name of the generated module that starts the program. The name is visible in the job's
        description."""
        last = self.file.rpartition("/")[2].rpartition(".")[0] or self.module.rpartition(".")[2]
        word = re.sub(r"\W", "_", last)
        return word if word.isidentifier() and not word.startswith("_") else "main"


@dataclass(frozen=True, slots=True)
class Program:
    """A packed program: the packages that a replica installs, and the module that starts the program."""

    #: Packages to install, in order.
    packages: tuple[Package, ...]
    #: The module to run with `python -m`. One of the packages contains it.
    module: str
    #: The file or module to run, as the user specified it.
    entry: str
    #: The program's name: the name of its file or directory, without a suffix.
    name: str
    #: The packed files, as paths relative to the program's directory; () = all files of a project.
    files: tuple[str, ...] = ()
    #: Other packages to install.
    requirements: tuple[str, ...] = ()


def pack(path: Path, entry: str | None, requirements: Sequence[str]) -> Program:
    """Pack the program at `path`. Blocks on the disk. Raises PackagingError.

    A program is a file with the local modules that it imports, a directory, a project, or a built package.
    `entry`: the module, or the file in a directory, to run; None = determine it.
    """
    if not path.exists():
        raise PackagingError(f"The file or directory {path} does not exist on this machine. Check the path.")
    needed = _parse_requirements(requirements)
    if path.is_dir():
        return _directory(path.resolve(), entry, needed)
    if path.name.endswith(_ARCHIVES):
        if not entry:
            raise PackagingError(
                f"The module of {path.name} to run is missing. Add it, such as --module trainer.task."
            )
        packages = _with_requirements(Package(path.name, read_file(path)), needed)
        name = re.split(r"-\d", path.name)[0]
        return Program(packages, entry, entry, name, (path.name,), tuple(needed))
    if entry:
        raise PackagingError(f"--module needs a directory or a package, but {path} is a file. Omit --module.")
    if path.suffix not in (".py", ".sh"):
        raise PackagingError(
            f"{path} is neither a Python file (.py), a Bash script (.sh), a directory nor a package"
            f" ({', '.join(_ARCHIVES)}).{_ADVICE.get(path.suffix, '')}"
        )
    return _script(path.resolve(), needed)


def notebook(requirements: Sequence[str]) -> Program:
    """Return JupyterLab as a program. Raises PackagingError."""
    path = Path(__file__).with_name("notebook.py")
    start = _Start(path.name)
    needed = [JUPYTERLAB, *_parse_requirements(requirements)]
    wheel = _wheel({path.name: path.read_bytes()}, frozenset(), start, needed)
    return Program(
        (wheel,),
        module=f"{_PACKAGE}.{start.starter}",
        entry="JupyterLab",
        name=NOTEBOOK,
        requirements=tuple(needed),
    )


def local_imports(source: bytes, name: str) -> Iterator[str]:
    """Yield the top-level names of the modules that a program imports. `name`: the file's name, for errors.
    Raises PackagingError for invalid Python code."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as failure:
        where = f", line {failure.lineno}" if isinstance(failure, SyntaxError) else ""
        text = failure.msg if isinstance(failure, SyntaxError) else failure
        raise PackagingError(f"{name}{where}: {text}.") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _parse_requirements(texts: Sequence[str]) -> list[str]:
    wrong: list[str] = []
    needed: list[str] = []
    for text in texts:
        try:
            needed.append(requirement(text))
        except ValueError as fault:
            wrong.append(f"--requirements: {text!r}: {fault}.")
    if wrong:
        raise PackagingError("\n".join(wrong))
    return needed


def _script(path: Path, needed: list[str]) -> Program:
    """Pack a file with the local modules that it imports. For a shell script, also pack the files whose paths
    it contains. If the file is in a package, pack the whole package."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    entry = path.relative_to(root)
    if root != path.parent and path.suffix == ".py":
        package = root / entry.parts[0]
        files = {f"{package.name}/{name}": file for name, file in project_files(package)}
        module = ".".join(entry.with_suffix("").parts)
        return _program(files, _Start(module=module), path.stem, root, needed)
    files = {path.name: path} | _local_files(path)
    return _program(files, _Start(path.name), path.stem, root, needed)


def _local_files(script: Path) -> dict[str, Path]:
    root = script.parent
    files: dict[str, Path] = {}
    seen = {(root, script.stem)} if script.suffix == ".py" else set[tuple[Path, str]]()
    # Files to scan for imports, and for each the directory in which its imported modules are searched.
    waiting = [(script, root)]
    while waiting:
        file, base = waiting.pop()
        source = read_file(file)
        names: Iterable[str] = ()
        if file.suffix == ".py":
            names = local_imports(source, str(file))
        elif file.suffix == ".sh":
            called = _referenced_files(source, root)
            waiting += [(path, path.parent) for name, path in called.items() if name not in files]
            files |= called
            names, base = _MODULE.findall(source.decode(errors="replace")), root
        for name in names:
            if (base, name) in seen:
                continue
            seen.add((base, name))
            module, package = base / f"{name}.py", base / name
            if (package / "__init__.py").is_file() or (not module.is_file() and any(package.glob("*.py"))):
                members = [path for _, path in project_files(package)]
            elif module.is_file():
                members = [module]
            else:
                continue
            files |= {path.relative_to(root).as_posix(): path for path in members}
            waiting += [(path, base) for path in members if path.suffix == ".py"]
    return files


def _referenced_files(source: bytes, directory: Path) -> dict[str, Path]:
    """Return the files of a directory whose paths a shell script contains, by relative path."""
    files: dict[str, Path] = {}
    for word in sorted(set(_WORD.findall(source.decode(errors="replace")))):
        name = PurePosixPath(word).as_posix()
        parts = PurePosixPath(name).parts
        path = directory / name
        if name.startswith("/") or any(part.startswith(".") for part in parts):
            continue
        if path.is_file() and path.resolve() == path and path.stat().st_size <= _MAX_REFERENCED_SIZE:
            files[name] = path
    return files


def _directory(path: Path, entry: str | None, needed: list[str]) -> Program:
    if path in (Path.home().resolve(), Path("/"), Path("/tmp").resolve()):
        raise PackagingError(
            f"{path} cannot be packed, because it also contains files that do not belong to the program. "
            "Put the program into its own directory."
        )
    if is_project(path):
        return _project(path, entry, needed)
    names_file = entry is not None and entry.endswith((".py", ".sh"))
    if (path / "__init__.py").is_file() and not names_file:
        files = {f"{path.name}/{name}": file for name, file in project_files(path)}
        module = entry or _entry_module(path)
        return _program(files, _Start(module=module), path.name, path.parent, needed)
    files = dict(project_files(path))
    if entry and names_file:
        entry = PurePosixPath(entry).as_posix()
        if entry not in files:
            raise PackagingError(
                f"--module: the file {entry} does not exist in {path}. Specify the path of a file relative "
                "to this directory."
            )
        return _program(files, _Start(entry), path.name, path, needed)
    if entry:
        return _program(files, _Start(module=entry), path.name, path, needed)
    entries = [name for name in _ENTRIES if name in files]
    if not entries:
        packages = sorted({name.partition("/")[0] for name in files if name.count("/") == 1})
        inner = [package for package in packages if _entries_of(path / package)]
        if len(inner) == 1:
            module = _entry_module(path / inner[0])
            return _program(files, _Start(module=module), path.name, path, needed)
        scripts = [name for name in files if name.endswith(".py") and "/" not in name]
        if len(scripts) != 1:
            raise PackagingError(
                f"The entry point of {path} is not clear: it has no {', '.join(_ENTRIES[1:-1])} or "
                f"{_ENTRIES[-1]}. Add --module trainer.task, or --module FILE.py."
            )
        entries = scripts
    return _program(files, _Start(entries[0]), path.name, path, needed)


def _project(path: Path, entry: str | None, needed: list[str]) -> Program:
    if not entry:
        packages = [
            child
            for place in (path, path / "src")
            if place.is_dir()
            for child in sorted(place.iterdir())
            if (child / "__init__.py").is_file() and _entries_of(child)
        ]
        if len(packages) != 1:
            raise PackagingError(
                f"The entry point of the project {path} is not clear. Specify the module to run, such as "
                "--module trainer.task."
            )
        entry = _entry_module(packages[0])
    _require_packable(dict(project_files(path)), path)
    made = Package(PROJECT_ARCHIVE, pack_project(path))
    return Program(_with_requirements(made, needed), entry, entry, path.name, requirements=tuple(needed))


def _with_requirements(package: Package, needed: Sequence[str]) -> tuple[Package, ...]:
    """Return a package and, if requirements are not empty, a second package that contains only the
    requirements."""
    if not needed:
        return (package,)
    return package, _build_wheel(_REQUIREMENTS_PACKAGE, {}, needed)


def _entries_of(package: Path) -> list[str]:
    return [name for name in _ENTRIES if (package / name).is_file()]


def _entry_module(package: Path) -> str:
    entries = _entries_of(package)
    if not entries:
        raise PackagingError(
            f"The entry point of {package} is not clear: it has no {', '.join(_ENTRIES[:-1])} or "
            f"{_ENTRIES[-1]}. Add --module {package.name}.task."
        )
    if entries[0] == "__main__.py":
        return package.name
    return f"{package.name}.{entries[0].removesuffix('.py')}"


def _program(files: Mapping[str, Path], start: _Start, name: str, root: Path, needed: list[str]) -> Program:
    """Create a program whose files are copied into the working directory and started there."""
    listed = root / "requirements.txt"
    from_file = read_requirements(listed) if listed.is_file() else []
    needed = [*from_file, *needed]
    _require_packable(files, root)
    contents = {relative: read_file(path) for relative, path in sorted(files.items())}
    executable = frozenset(name for name, path in files.items() if is_executable(path))
    wheel = _wheel(contents, executable, start, needed)
    return Program(
        packages=(wheel,),
        module=f"{_PACKAGE}.{start.starter}",
        entry=start.file or start.module,
        name=name,
        files=tuple(contents),
        requirements=tuple(needed),
    )


def _require_packable(files: Mapping[str, Path], root: Path) -> None:
    """Raise PackagingError if the files are too large in total, or if one cannot be packed. Does not read
    their contents.

    Links must not lead to files outside `root`: an untrusted program could contain a link to a user's keys.
    """
    for name in files:
        if not {category(character) for character in name}.isdisjoint({"Cc", "Cs"}):
            raise PackagingError(
                f"The file name {name!r} in {root} contains control characters or is not UTF-8, so it "
                "cannot be packed. Rename the file, or move it out."
            )
    sizes = {relative: size_of(path) for relative, path in files.items()}
    packed = set(files.values())
    for path in packed:
        if (target := path.resolve()) not in packed:
            raise PackagingError(
                f"{path} is a link to {target}, which is not packed. Replace it with a copy, or move the "
                f"link out of {root}."
            )
    size = sum(sizes.values())
    if size > _MAX_SIZE:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_LISTED]
        raise PackagingError(
            f"{root} has {size >> 20} MiB of files, more than the limit of {_MAX_SIZE >> 20} MiB. Put data "
            f"into a bucket (trainshed buckets cp). The largest files: {', '.join(largest)}."
        )


def _wheel(
    contents: Mapping[str, bytes], executable: frozenset[str], start: _Start, needed: Iterable[str]
) -> Package:
    source = Path(__file__).with_name("starter.py").read_text(encoding="utf-8")
    begin = {"file": start.file, "module": start.module}
    members = {
        "__init__.py": b"",
        "_starter.py": source.encode(),
        "begin.json": json.dumps(begin).encode(),
        f"{start.starter}.py": f"from {_PACKAGE}._starter import start\n\nstart()\n".encode(),
        **{f"files/{name}": content for name, content in contents.items()},
    }
    return _build_wheel(_PACKAGE, members, needed, frozenset(f"files/{name}" for name in executable))


def _build_wheel(
    package: str, files: Mapping[str, bytes], needed: Iterable[str], executable: frozenset[str] = frozenset()
) -> Package:
    """Return a wheel of a package with these files and requirements."""
    about = f"{package}-1.0.dist-info"
    lines = "".join(f"Requires-Dist: {text}\n" for text in needed)
    name = package.replace("_", "-")
    members = {f"{package}/{file}": content for file, content in files.items()} | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}".encode(),
        f"{about}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: trainshed\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = io.StringIO()
    csv.writer(record).writerows((member, "", "") for member in (*members, f"{about}/RECORD"))
    members[f"{about}/RECORD"] = record.getvalue().encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            # A fixed time, so that the same files produce the same package.
            info = zipfile.ZipInfo(member, (1980, 1, 2, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o100755 if member.removeprefix(f"{package}/") in executable else 0o100644
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return Package(f"{package}-1.0-py3-none-any.whl", made.getvalue())
