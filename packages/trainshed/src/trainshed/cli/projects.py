"""Recognises and packs Python projects: directories that define how they are installed. Runs no code of
them."""

import ast
import configparser
import tomllib
from pathlib import Path
from typing import Any

from trainshed.cli.sdist import PackagingError, Sdist, build_sdist


def is_project(directory: Path) -> bool:
    """Whether a directory defines how it is installed. A `pyproject.toml` may be there for other tools
    only."""
    if (directory / "setup.py").is_file():
        return True
    try:
        table = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool({"project", "build-system"} & table.keys())


def build_project(directory: Path) -> Sdist:
    """Make a source distribution of a project, with the project's own name. Raises PackagingError."""
    name, version = project_title(directory)
    try:
        return build_sdist(directory, name=name, version=version)
    except PackagingError as failure:
        raise PackagingError(f"{directory} cannot be packed: {failure}") from failure


def project_title(directory: Path) -> tuple[str, str]:
    """Return a project's own name and version, read without running its code; "0" if the version is not
    known. Raises PackagingError if the name is not known."""
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
        raise PackagingError(f"The project in {directory} cannot be read: {failure}.") from failure
    if not metadata.get("name"):
        raise PackagingError(
            f"The name of the project in {directory} cannot be told without running it. Build it (python3 "
            "-m build --sdist) and run what was built (trainshed run dist/NAME.tar.gz --module NAME.MODULE)."
        )
    version = metadata.get("version", "")
    return metadata["name"], version if version[:1].isdigit() else "0"


def _keywords(source: str) -> dict[str, str]:
    """Return the keyword arguments of the calls of `setup(...)` whose values are text literals."""
    texts: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    texts[keyword.arg] = value.value
    return texts
