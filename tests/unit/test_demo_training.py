"""The demo program learns, and goes on from where it was."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from trainshed_demo.allreduce import Leader
from trainshed_demo.checkpoints import Checkpoints, DiskFolder, pack
from trainshed_demo.cluster import ALONE
from trainshed_demo.model import Examples, Network, State, load_digits
from trainshed_demo.task import main
from trainshed_demo.training import Primary, Schedule, Settings, train_epoch

AT_ONCE = Schedule(checkpoint_epochs=2, epoch_seconds=0)
SMALL = Settings(epochs=6, hidden=16)


@pytest.fixture(scope="module")
def digits() -> tuple[Examples, Examples]:
    return load_digits()


def trained(folder: Path, settings: Settings, examples: Examples) -> tuple[State, list[str]]:
    lines: list[str] = []
    primary = Primary(settings, AT_ONCE, Checkpoints(DiskFolder(folder)), lines.append)
    primary.train(ALONE, examples)
    return primary.state, lines


def test_the_digits_are_split_once_and_for_all(digits: tuple[Examples, Examples]) -> None:
    learned, held_out = digits
    assert (len(learned), len(held_out)) == (1437, 360)
    assert learned.images.shape == (1437, 64)
    assert learned.images.dtype == np.float32
    assert (learned.images.min(), learned.images.max()) == (0, 1)
    assert set(held_out.labels) == set(range(10))


def test_resuming_takes_the_same_steps(tmp_path: Path, digits: tuple[Examples, Examples]) -> None:
    """A job that was stopped ends with the very parameters of one that was not."""
    whole, lines = trained(tmp_path / "whole", SMALL, digits[0])
    assert "resuming" not in " ".join(lines)

    trained(tmp_path / "halves", Settings(epochs=4, hidden=16), digits[0])
    resumed, lines = trained(tmp_path / "halves", SMALL, digits[0])
    assert lines[0] == "resuming from the checkpoint after epoch 4"
    assert [line.split()[1] for line in lines if line.startswith("epoch")] == ["5/6", "6/6"]
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    np.testing.assert_array_equal(resumed.velocity, whole.velocity)


def test_a_finished_job_is_not_trained_again(
    tmp_path: Path, digits: tuple[Examples, Examples]
) -> None:
    done, _ = trained(tmp_path, SMALL, digits[0])
    again, lines = trained(tmp_path, SMALL, digits[0])
    assert lines == ["resuming from the checkpoint after epoch 6"]
    np.testing.assert_array_equal(again.parameters, done.parameters)


def test_a_state_is_never_changed(digits: tuple[Examples, Examples]) -> None:
    """What a lost worker interrupts is begun again from the state before it."""
    state = Network(SMALL.hidden).initial_state(SMALL.seed)
    one, progress = train_epoch(SMALL, digits[0], Leader(), state)
    other, again = train_epoch(SMALL, digits[0], Leader(), state)
    assert progress == again
    np.testing.assert_array_equal(one.parameters, other.parameters)
    np.testing.assert_array_equal(one.velocity, other.velocity)


def test_checkpoints_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path / "not yet there")
    checkpoints = Checkpoints(folder)
    size = Network(4).size
    assert checkpoints.epochs() == []
    assert checkpoints.latest(size) is None

    good = State(5, np.arange(size, dtype=np.float32), np.ones(size, np.float32))
    assert checkpoints.save(good) == "epoch-0005.npz"
    checkpoints.save(State(6, np.zeros(3, np.float32), np.zeros(3, np.float32)))
    folder.write("epoch-0007.npz", b"cut off")
    folder.write("epoch-0008.npz", b"")
    folder.write("epoch-0009.npz", pack(other=np.zeros(size)))
    folder.write("epoch-9.txt", b"")
    assert checkpoints.epochs() == [5, 6, 7, 8, 9]
    latest = checkpoints.latest(size)
    assert latest is not None
    assert latest.epoch == 5
    np.testing.assert_array_equal(latest.parameters, good.parameters)
    np.testing.assert_array_equal(latest.velocity, good.velocity)


def test_the_whole_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CLUSTER_SPEC", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    arguments = ["--job-dir", str(tmp_path), "--epochs", "12", "--epoch-seconds", "0"]
    assert main(arguments) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].startswith("primary: epoch 1/12 loss ")
    assert lines[1].endswith(" (1 replica, 0.0 MB exchanged)")
    assert "held-out images; the model is in" in lines[-1]

    metrics = json.loads((tmp_path / "model" / "metrics.json").read_bytes())
    assert metrics["accuracy"] > 0.95
    assert metrics["epochs"] == 12
    with np.load(io.BytesIO((tmp_path / "model" / "model.npz").read_bytes())) as model:
        assert model["hidden_weights"].shape == (64, 64)
        assert model["output_bias"].shape == (10,)


def test_not_having_learned_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CLUSTER_SPEC", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(["--job-dir", str(tmp_path), "--epochs", "1", "--learning-rate", "0"]) == 1
    assert "it has not learned enough" in capfd.readouterr().err


def test_a_broken_cluster_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER_SPEC", "?")
    assert main([]) == 1
    assert "CLUSTER_SPEC cannot be read" in capfd.readouterr().err
