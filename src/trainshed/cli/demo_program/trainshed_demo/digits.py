"""The model: softmax regression in plain NumPy, which tells handwritten digits apart."""

from typing import Any, NamedTuple, cast

import numpy as np

UNTRAINED = np.zeros((65, 10))
"""A weight of each pixel, and of a constant, for each digit."""


class Digits(NamedTuple):
    """Images, 64 pixels from 0 to 1 and the constant 1 in a row each, and the digits on them."""

    images: Any
    labels: Any

    def share(self, rank: int, size: int) -> "Digits":
        """What one of `size` replicas learns from."""
        return Digits(self.images[rank::size], self.labels[rank::size])


def load_digits() -> tuple[Digits, Digits]:
    """The digits that come with scikit-learn: 1,437 to learn from, and every fifth, 360, held out."""
    from sklearn import datasets  # pyright: ignore[reportMissingTypeStubs] - it ships none

    dataset = cast(Any, datasets.load_digits())
    images, labels = np.c_[dataset.data / 16, np.ones(len(dataset.data))], dataset.target
    held_out = np.arange(len(labels)) % 5 == 0
    return Digits(images[~held_out], labels[~held_out]), Digits(images[held_out], labels[held_out])


def train(weights: Any, digits: Digits, epoch: int) -> Any:
    """The weights after one epoch of gradient descent, in batches that depend on the epoch alone."""
    weights, order = weights.copy(), np.random.default_rng(epoch).permutation(len(digits.labels))
    for rows in np.array_split(order, len(order) // 16):
        error = _guess(weights, digits.images[rows]) - np.eye(10)[digits.labels[rows]]
        weights -= digits.images[rows].T @ error / len(rows)
    return weights


def judge(weights: Any, digits: Digits) -> tuple[float, float]:
    """The loss (cross-entropy in nats per image) and the accuracy (share of images told rightly)."""
    guesses, rows = _guess(weights, digits.images), np.arange(len(digits.labels))
    loss = -np.log(guesses[rows, digits.labels]).mean()
    return float(loss), float((guesses.argmax(axis=1) == digits.labels).mean())


def _guess(weights: Any, images: Any) -> Any:
    """The probability of each digit for each image."""
    odds = np.exp(images @ weights)
    return odds / odds.sum(axis=1, keepdims=True)
