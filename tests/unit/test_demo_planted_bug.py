"""The resume bug of `trainshed demo --drill --planted-bug`: the program forgets its checkpoints."""

from pathlib import Path

import pytest
from trainshed_demo.checkpoints import Checkpoints, DiskFolder
from trainshed_demo.cluster import ALONE
from trainshed_demo.model import load_digits
from trainshed_demo.task import main
from trainshed_demo.training import Primary, Schedule, Settings

SHORT = Settings(epochs=3, hidden=16)


def steps(folder: Path, *, resume: bool) -> list[str]:
    """The epochs that a run in the folder tells."""
    lines: list[str] = []
    schedule = Schedule(checkpoint_epochs=1, epoch_seconds=0, resume=resume)
    primary = Primary(SHORT, schedule, Checkpoints(DiskFolder(folder)), lines.append)
    primary.train(ALONE, load_digits()[0])
    return [line.split()[1] for line in lines if line.startswith("epoch")]


def test_a_program_with_the_bug_saves_checkpoints_and_takes_none(tmp_path: Path) -> None:
    assert steps(tmp_path, resume=False) == ["1/3", "2/3", "3/3"]
    assert steps(tmp_path, resume=False) == ["1/3", "2/3", "3/3"]
    assert steps(tmp_path, resume=True) == [], "the checkpoints were there all the time"


def test_the_bug_is_an_option_of_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*more: str) -> str:
        asked = ("--epochs", "1", "--epoch-seconds", "0", "--target-accuracy", "0", *more)
        assert main(["--job-dir", str(tmp_path), *asked]) == 0
        return capsys.readouterr().out

    assert "resuming" not in said()
    assert "resuming" in said()
    assert "resuming" not in said("--planted-bug")
