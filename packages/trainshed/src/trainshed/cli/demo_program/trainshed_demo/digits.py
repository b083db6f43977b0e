"""The model: softmax regression in NumPy, which classifies handwritten digits."""

from typing import Any, NamedTuple, cast

import numpy as np

UNTRAINED = np.zeros((65, 10))
"""The initial weights: of each pixel, and of a constant, for each digit. Shape (65, 10)."""


class Digits(NamedTuple):
    """Images (a row of 64 pixels from 0 to 1, and the constant 1), and the digits on them."""

    images: Any
    labels: Any

    def share(self, rank: int, size: int) -> "Digits":
        """Return the images from which the replica `rank` of `size` learns."""
        return Digits(self.images[rank::size], self.labels[rank::size])


def load_digits() -> tuple[Digits, Digits]:
    """Return the digits that come with scikit-learn: 1,437 to learn from, and every fifth (360) held out."""
    from sklearn import datasets  # pyright: ignore[reportMissingTypeStubs] - it ships none

    dataset = cast(Any, datasets.load_digits())
    images, labels = np.c_[dataset.data / 16, np.ones(len(dataset.data))], dataset.target
    held_out = np.arange(len(labels)) % 5 == 0
    return Digits(images[~held_out], labels[~held_out]), Digits(images[held_out], labels[held_out])


def train(weights: Any, digits: Digits, epoch: int) -> Any:
    """Return the weights after one epoch of gradient descent. The batches depend only on the epoch."""
    weights, order = weights.copy(), np.random.default_rng(epoch).permutation(len(digits.labels))
    for rows in np.array_split(order, len(order) // 16):
        error = _guess(weights, digits.images[rows]) - np.eye(10)[digits.labels[rows]]
        weights -= digits.images[rows].T @ error / len(rows)
    return weights


def judge(weights: Any, digits: Digits) -> tuple[float, float]:
    """Return the loss (cross-entropy in nats per image) and the accuracy (share of correct guesses)."""
    guesses, rows = _guess(weights, digits.images), np.arange(len(digits.labels))
    loss = -np.log(guesses[rows, digits.labels]).mean()
    return float(loss), float((guesses.argmax(axis=1) == digits.labels).mean())


def _guess(weights: Any, images: Any) -> Any:
    """Return the probability of each digit for each image."""
    odds = np.exp(images @ weights)
    return odds / odds.sum(axis=1, keepdims=True)
