"""The model: a network with one hidden layer that tells handwritten digits apart, in plain NumPy.

Owns the mathematics. Knows nothing of hosts, buckets or clocks; the same seed gives the same
numbers.

All parameters of the network lie in **one** flat float32 vector, and so does their gradient: to
exchange a gradient with another host is then to send one block of memory.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float32]
Matrix: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]

PIXELS = 64
CLASSES = 10


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Images and what they show.

    Attributes:
        images: One row per image, `PIXELS` values from 0 to 1.
        labels: The digit on each image, 0 to 9.
    """

    images: Matrix
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> "Examples":
        """The examples at these rows, in this order."""
        return Examples(self.images[rows], self.labels[rows])


class Layers(NamedTuple):
    """Views into the flat vector, so that writing to one of them writes to the vector."""

    hidden_weights: Matrix
    hidden_bias: Vector
    output_weights: Matrix
    output_bias: Vector


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything that training continues from.

    Attributes:
        epoch: How many epochs are done.
        parameters: The network's parameters, flat.
        velocity: The running mean of the updates, of the same shape.
    """

    epoch: int
    parameters: Vector
    velocity: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over a set of examples. Sums, not means: adding those of two sets gives those of both.

    Attributes:
        gradient: Of the loss, flat.
        loss: Cross-entropy in nats.
        correct: How many examples were told rightly.
        count: How many examples there were.
    """

    gradient: Vector
    loss: float
    correct: float
    count: float

    def to_vector(self) -> Vector:
        """One vector to send: the gradient, then the three numbers."""
        return np.append(self.gradient, np.array([self.loss, self.correct, self.count], np.float32))

    @classmethod
    def from_vector(cls, vector: Vector) -> "Sums":
        """The inverse of `to_vector`."""
        loss, correct, count = (float(number) for number in vector[-3:])
        return cls(vector[:-3], loss, correct, count)


@dataclass(frozen=True, slots=True)
class Network:
    """`PIXELS` inputs, one hidden layer of rectified units, one softmax over `CLASSES`.

    Attributes:
        hidden: The number of hidden units.
    """

    hidden: int

    @property
    def size(self) -> int:
        """The number of parameters."""
        return (PIXELS + 1) * self.hidden + (self.hidden + 1) * CLASSES

    def initial_state(self, seed: int) -> State:
        """A state before the first epoch, with weights drawn for rectified units."""
        draw = np.random.default_rng(seed)
        parameters = np.zeros(self.size, np.float32)
        layers = self.layers(parameters)
        layers.hidden_weights[:] = draw.normal(0, (2 / PIXELS) ** 0.5, (PIXELS, self.hidden))
        layers.output_weights[:] = draw.normal(0, (2 / self.hidden) ** 0.5, (self.hidden, CLASSES))
        return State(0, parameters, np.zeros_like(parameters))

    def layers(self, flat: Vector) -> Layers:
        """The layers of a flat vector, as views."""
        shapes = (PIXELS, self.hidden), (self.hidden,), (self.hidden, CLASSES), (CLASSES,)
        ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
        parts = np.split(flat, ends)
        return Layers(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    def sums(self, parameters: Vector, examples: Examples) -> Sums:
        """Gradient, loss and hits, summed over the examples (of which there may be none)."""
        layers = self.layers(parameters)
        rows = np.arange(len(examples))

        active = np.maximum(examples.images @ layers.hidden_weights + layers.hidden_bias, 0)
        log_probabilities = _log_softmax(active @ layers.output_weights + layers.output_bias)

        # The gradient of softmax and cross-entropy together: predicted minus true probability.
        output_error = np.exp(log_probabilities)
        output_error[rows, examples.labels] -= 1
        hidden_error = (output_error @ layers.output_weights.T) * (active > 0)

        gradient = np.empty(self.size, np.float32)
        by_layer = self.layers(gradient)
        by_layer.hidden_weights[:] = examples.images.T @ hidden_error
        by_layer.hidden_bias[:] = hidden_error.sum(axis=0)
        by_layer.output_weights[:] = active.T @ output_error
        by_layer.output_bias[:] = output_error.sum(axis=0)

        return Sums(
            gradient=gradient,
            loss=-float(log_probabilities[rows, examples.labels].sum()),
            correct=float((log_probabilities.argmax(axis=1) == examples.labels).sum()),
            count=float(len(examples)),
        )

    def accuracy(self, parameters: Vector, examples: Examples) -> float:
        """The share of the examples that the network tells rightly."""
        layers = self.layers(parameters)
        active = np.maximum(examples.images @ layers.hidden_weights + layers.hidden_bias, 0)
        answers = (active @ layers.output_weights + layers.output_bias).argmax(axis=1)
        return float((answers == examples.labels).mean())


def _log_softmax(scores: Matrix) -> Matrix:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def load_digits() -> tuple[Examples, Examples]:
    """The digits that come with scikit-learn: 1,437 examples to learn from, 360 held out.

    Every fifth image is held out, so that both parts have every writer's hand in them.
    """
    # Here and not above: it takes longer than all other imports together, and the mathematics
    # does not need it.
    from sklearn import datasets  # pyright: ignore[reportMissingTypeStubs] - it ships none

    digits = cast(Any, datasets.load_digits())
    images = np.asarray(digits.data, np.float32) / np.float32(16)
    everything = Examples(images, np.asarray(digits.target, np.int64))
    rows = np.arange(len(everything))
    return everything.take(rows[rows % 5 != 0]), everything.take(rows[rows % 5 == 0])
