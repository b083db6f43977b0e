"""How far a program is, read from what the public's programs print."""

import pytest

from trainshed.core.progress import progress_of


@pytest.mark.parametrize(
    ("line", "done", "text"),
    [
        (" 45%|████▌     | 450/1000 [00:12<00:15, 36.1it/s]", 0.45, "450 of 1000"),
        ("Epoch 3/10", 0.3, "epoch 3 of 10"),
        ("Epoch [7/20], Step [100/600], Loss: 0.3", 0.35, "epoch 7 of 20"),
        ("INFO step 120 of 1000 loss=2.1", 0.12, "step 120 of 1000"),
        ("Epoch 4:  50%|█████     | 5/10 [00:00<00:00, 9.9it/s, v_num=0]", 0.5, "5 of 10"),
        ("old\r 10%|█ | 1/10\r 20%|██ | 2/10", 0.2, "2 of 10"),
        ("iteration: 9/9", 1.0, "iteration 9 of 9"),
    ],
)
def test_lines_that_tell(line: str, done: float, text: str) -> None:
    found = progress_of([line])
    assert found is not None
    assert (found.done / found.total, found.text) == (pytest.approx(done), text)


@pytest.mark.parametrize(
    "line",
    ["loss 0.1/0.2", "2026/11/22 step", "epoch 3", "Epoch 11/10", "step 1/0", "100%|", ""],
)
def test_lines_that_tell_nothing(line: str) -> None:
    assert progress_of([line]) is None


def test_epochs_count_before_the_steps_within_them() -> None:
    lines = ["Epoch 2/5", " 10%|█ | 1/10", " 90%|█████████ | 9/10"]
    found = progress_of(lines)
    assert found is not None
    assert found.text == "epoch 2 of 5"


def test_a_line_of_any_length_costs_little() -> None:
    assert progress_of(["epoch " * 1_000_000]) is None
