"""The service's records of its directories."""

import asyncio
from pathlib import Path

import pytest

from trainshed_cluster.remote.content.library import Library
from trainshed_cluster.remote.content.manifest import BUILT


def test_concurrent_launches_can_add_directories_to_the_content_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch runs in its own thread."""
    library, exists, theirs = Library([tmp_path]), Path.exists, list[str]()

    def learn(name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / BUILT).touch()
        asyncio.run(library.manifest([str(tmp_path / name)]))

    def exists_while_another_is_identified(path: Path) -> bool:
        if theirs:
            learn(theirs.pop())
        return exists(path)

    learn("known")
    monkeypatch.setattr(Path, "exists", exists_while_another_is_identified)
    theirs.append("theirs")
    learn("own")


def test_package_installed_into_an_interpreter_changes_its_digest(tmp_path: Path) -> None:
    """The modification time of the interpreter's directory does not change. A node whose fetch fails requests
    the directory again."""
    (tmp_path / "cache").mkdir()
    python = tmp_path / "python"
    (python / "bin").mkdir(parents=True)
    library = Library([tmp_path / "cache"], lambda: [python])
    digests: list[str] = []
    for installed in ("python3", "pip"):
        (python / "bin" / installed).write_text(installed)
        (unit,) = asyncio.run(library.manifest([str(python / "bin/python3")])).units
        digests.append(unit.digest)
        library._unit_to_send(unit.path, None)  # pyright: ignore[reportPrivateUsage] - without a node
    assert digests[0] != digests[1]
