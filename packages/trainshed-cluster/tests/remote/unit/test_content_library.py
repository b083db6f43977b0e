"""What the service knows of its directories."""

import asyncio
from pathlib import Path

import pytest

from trainshed_cluster.remote.content.library import Library
from trainshed_cluster.remote.content.manifest import BUILT


def test_launches_learn_of_units_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a thread of its own."""
    library, exists, theirs = Library([tmp_path]), Path.exists, list[str]()

    def learn(name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / BUILT).touch()
        asyncio.run(library.manifest([str(tmp_path / name)]))

    def exists_and_another_is_learnt(path: Path) -> bool:
        if theirs:
            learn(theirs.pop())
        return exists(path)

    learn("known")
    monkeypatch.setattr(Path, "exists", exists_and_another_is_learnt)
    theirs.append("theirs")
    learn("own")


def test_what_is_installed_into_an_interpreter_is_seen(tmp_path: Path) -> None:
    """Its directory stays as old as it was; a node that fetches it in vain asks again."""
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
