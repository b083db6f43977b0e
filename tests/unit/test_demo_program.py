"""What the demo program learns, and how its replicas put it together."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from trainshed_demo.digits import UNTRAINED, Digits, judge, load_digits, train
from trainshed_demo.folder import Folder
from trainshed_demo.task import Learned

from tests.contract.demo.disk_storage import Client


@pytest.fixture(scope="module")
def digits() -> tuple[Digits, Digits]:
    return load_digits()


def test_the_digits_are_split_once_and_for_all(digits: tuple[Digits, Digits]) -> None:
    learned, held_out = digits
    assert (len(learned.labels), len(held_out.labels)) == (1437, 360)
    assert learned.images.shape == (1437, 65)
    assert (learned.images.min(), learned.images.max()) == (0, 1)
    assert set(held_out.labels) == set(range(10))


def test_shares_are_all_of_it_and_do_not_overlap(digits: tuple[Digits, Digits]) -> None:
    numbered = Digits(np.arange(1437), digits[0].labels)
    rows = [int(row) for rank in range(3) for row in numbered.share(rank, 3).images]
    assert sorted(rows) == list(range(1437))


def test_it_learns_and_an_epoch_is_always_the_same(digits: tuple[Digits, Digits]) -> None:
    weights = UNTRAINED
    for epoch in range(12):
        weights = train(weights, digits[0], epoch)
    assert not UNTRAINED.any(), "what it was given is not changed"
    loss, accuracy = judge(weights, digits[1])
    assert accuracy > 0.95
    assert loss < 0.2
    np.testing.assert_array_equal(
        train(weights, digits[0], 12), train(weights.copy(), digits[0], 12)
    )


def test_all_replicas_go_on_from_the_average() -> None:
    learned = Learned(3, 4, np.zeros(2))
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(learned.add, rank, 4, np.full(2, 3.0**rank)) for rank in (2, 0, 1)]
        for answer in answers:
            epoch, weights = answer.result(10)
            assert epoch == 5
            np.testing.assert_array_equal(weights, np.full(2, 13 / 3))


def test_a_part_that_comes_twice_counts_once_and_one_that_comes_late_not_at_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A worker that is started again does the epoch anew in which it was lost."""
    learned = Learned(2, 0, np.zeros(1))
    with ThreadPoolExecutor(3) as pool:
        lost = pool.submit(learned.add, 1, 0, np.ones(1))
        again = pool.submit(learned.add, 1, 0, np.ones(1))
        assert not lost.done()
        assert learned.add(0, 0, np.full(1, 3.0)) == (1, np.full(1, 2.0))
        assert lost.result(10) == again.result(10) == (1, np.full(1, 2.0))
    assert learned.add(1, 0, np.ones(1)) == (1, np.full(1, 2.0))
    assert learned.join(1) == (1, np.full(1, 2.0))
    assert capsys.readouterr().out == "worker 1 joined\n"


def test_a_folder_of_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETS", str(tmp_path))
    monkeypatch.setattr("google.cloud.storage.Client", Client)
    folder = Folder("gs://b/some/run/")
    assert folder.names() == []
    weights = np.arange(6.0).reshape(2, 3)
    assert folder.save("epoch-0010.npz", 10, weights) == "epoch-0010.npz"
    folder.save("epoch-0005.npz", 5, weights)
    assert folder.names() == ["epoch-0005.npz", "epoch-0010.npz"]
    assert (tmp_path / "b/some/run/epoch-0010.npz").is_file()
    epoch, loaded = folder.load("epoch-0010.npz")
    assert epoch == 10
    np.testing.assert_array_equal(loaded, weights)
