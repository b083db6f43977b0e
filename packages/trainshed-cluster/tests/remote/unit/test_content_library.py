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
