"""What each role does: the primary and the workers train, the evaluator judges.

Owns the order of things. Mathematics, sockets and files are in the modules beside it.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from trainshed_demo.allreduce import Group, Leader, Meeting, join
from trainshed_demo.checkpoints import Checkpoints, Folder, pack
from trainshed_demo.cluster import Cluster
from trainshed_demo.frames import Kind, PeerLostError
from trainshed_demo.model import Examples, Network, State, Sums, Vector

Say = Callable[[str], None]

MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same on every replica that trains.

    Attributes:
        epochs: How often to go through the examples.
        batch: Examples per step, over all replicas together.
        learning_rate: Of gradient descent with momentum.
        hidden: Hidden units of the network.
        seed: Of the first weights and of the order of the examples.
    """

    epochs: int = 30
    batch: int = 96
    learning_rate: float = 0.1
    hidden: int = 64
    seed: int = 1

    def to_vector(self) -> Vector:
        """As numbers, for replicas to compare."""
        numbers = [self.epochs, self.batch, self.learning_rate, self.hidden, self.seed]
        return np.array(numbers, np.float32)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the primary does when.

    Attributes:
        checkpoint_epochs: Save a checkpoint after so many epochs, and after the last one.
        join_seconds: How long to wait for the other replicas.
        epoch_seconds: The least time that an epoch takes. The network is so small that all of
            the training would be over before one had looked.
        resume: Whether to go on from the last checkpoint. Not to is a bug, planted to see that a
            drill finds it.
    """

    checkpoint_epochs: int = 5
    join_seconds: float = 600.0
    epoch_seconds: float = 0.12
    resume: bool = True


class Progress(NamedTuple):
    """How well the network did during an epoch, on the examples that it learned from."""

    loss: float
    """Cross-entropy in nats, per example."""
    accuracy: float
    """The share of the examples told rightly."""

    def __str__(self) -> str:
        return f"loss {self.loss:.3f} accuracy {self.accuracy:.3f}"


def batches(count: int, settings: Settings, epoch: int) -> Iterator[np.ndarray]:
    """The rows of each step of an epoch.

    The order depends on the seed and the epoch alone, so every replica knows it without being
    told, and a job that goes on from a checkpoint takes the very steps of one that never stopped.
    """
    order = np.random.default_rng([settings.seed, epoch]).permutation(count)
    for start in range(0, count, settings.batch):
        yield order[start : start + settings.batch]


def train_epoch(
    settings: Settings, examples: Examples, group: Group, state: State
) -> tuple[State, Progress]:
    """One epoch of data-parallel gradient descent; all replicas call it at the same time.

    Of every batch each replica takes its own share: its rank, and then every `size`-th example.
    The gradients of the shares are summed over the replicas, so that the step is the one that a
    single process would take with the whole batch, and the parameters stay the same everywhere.

    Returns:
        The state after the epoch, and how well the replicas together did in it.

    Raises:
        PeerLostError: The group broke; the state given is still whole.
    """
    network = Network(settings.hidden)
    parameters, velocity = state.parameters.copy(), state.velocity.copy()
    loss = correct = count = 0.0
    for batch in batches(len(examples), settings, state.epoch):
        share = examples.take(batch[group.rank :: group.size])
        mine = network.sums(parameters, share)
        total = Sums.from_vector(group.sum(mine.to_vector()))
        velocity *= MOMENTUM
        velocity -= settings.learning_rate / total.count * total.gradient
        parameters += velocity
        loss, correct, count = loss + total.loss, correct + total.correct, count + total.count
    return State(state.epoch + 1, parameters, velocity), Progress(loss / count, correct / count)


class Primary:
    """Rank 0: gathers the workers, trains with them, saves checkpoints and, in the end, the model.

    Attributes:
        state: The last whole state. It outlives a lost worker, and may be saved at any time.
    """

    def __init__(
        self, settings: Settings, schedule: Schedule, checkpoints: Checkpoints, say: Say
    ) -> None:
        self._settings = settings
        self._schedule = schedule
        self._checkpoints = checkpoints
        self._say = say
        self._network = Network(settings.hidden)
        self.state = self._network.initial_state(settings.seed)

    def train(self, cluster: Cluster, examples: Examples) -> None:
        """Trains until all epochs are done, starting from the last checkpoint if there is one.

        Raises:
            GatherError: The replicas did not find each other.
        """
        saved = self._checkpoints.latest(self._network.size) if self._schedule.resume else None
        if saved is not None:
            self.state = saved
            self._say(f"resuming from the checkpoint after epoch {self.state.epoch}")
        settings = self._settings.to_vector()
        with Meeting(cluster.primary, cluster.size, settings) as meeting:
            while self.state.epoch < self._settings.epochs:
                group = meeting.gather(self._schedule.join_seconds, self._say)
                try:
                    self._train_with(group, examples)
                except PeerLostError as error:
                    self._say(f"{error}; waiting for it, to go on after epoch {self.state.epoch}")
                finally:
                    group.close()

    def save(self) -> None:
        """Saves a checkpoint of the last whole state."""
        self._say(f"saved {self._checkpoints.save(self.state)}")

    def publish(self, folder: Folder, held_out: Examples, replicas: int) -> float:
        """Writes the model and its metrics, and returns its accuracy on the held-out examples."""
        accuracy = self._network.accuracy(self.state.parameters, held_out)
        layers = self._network.layers(self.state.parameters)
        folder.write("model.npz", pack(**layers._asdict()))
        metrics = {"accuracy": accuracy, "epochs": self.state.epoch, "replicas": replicas}
        folder.write("metrics.json", json.dumps(metrics, indent=2).encode())
        return accuracy

    def _train_with(self, group: Leader, examples: Examples) -> None:
        start = np.concatenate([self.state.parameters, self.state.velocity])
        group.tell(Kind.START, self.state.epoch, start)
        while self.state.epoch < self._settings.epochs:
            began, moved = time.monotonic(), group.bytes_moved
            self.state, progress = train_epoch(self._settings, examples, group, self.state)
            self._say(
                f"epoch {self.state.epoch}/{self._settings.epochs} {progress}"
                f" ({_count(group.size, 'replica')},"
                f" {(group.bytes_moved - moved) / 1e6:.1f} MB exchanged)"
            )
            last = self.state.epoch == self._settings.epochs
            if last or self.state.epoch % self._schedule.checkpoint_epochs == 0:
                self.save()
            if not last:
                time.sleep(max(0.0, began + self._schedule.epoch_seconds - time.monotonic()))
        group.tell(Kind.DONE)


def work(
    cluster: Cluster, settings: Settings, join_seconds: float, examples: Examples, say: Say
) -> None:
    """A worker: trains along until the primary says that it is done.

    It keeps nothing of its own. When the primary is replaced by another, it joins that one and
    goes on from what it is told.

    Raises:
        GatherError: The primary could not be reached.
    """
    assert cluster.primary is not None and cluster.rank is not None, "a worker has both"
    while True:
        group = join(
            cluster.primary, cluster.rank, cluster.size, settings.to_vector(), join_seconds
        )
        say(f"joined the primary at {cluster.primary}")
        try:
            start = group.channel.expect(Kind.START)
            parameters, velocity = np.split(start.body, 2)
            state = State(start.number, parameters, velocity)
            while state.epoch < settings.epochs:
                state, progress = train_epoch(settings, examples, group, state)
                say(f"epoch {state.epoch}/{settings.epochs} {progress}")
            group.channel.expect(Kind.DONE)
            say(f"done, {group.bytes_moved / 1e6:.1f} MB exchanged")
            return
        except PeerLostError as error:
            say(f"{error}; joining again")
        finally:
            group.channel.close()


class Evaluator:
    """Judges every checkpoint on images that the network has not learned from."""

    def __init__(
        self, checkpoints: Checkpoints, network: Network, held_out: Examples, say: Say
    ) -> None:
        self._checkpoints = checkpoints
        self._network = network
        self._held_out = held_out
        self._say = say
        self._judged: set[int] = set()

    def watch(self, poll_seconds: float) -> NoReturn:
        """Judges what appears, for ever: it is the service that ends an evaluator.

        A bucket tells nobody about new objects, so this looks again and again.
        """
        self._say("waiting for checkpoints")
        while True:
            self.look()
            time.sleep(poll_seconds)

    def look(self) -> None:
        """Judges the checkpoints that are new since the last look."""
        for epoch in self._checkpoints.epochs():
            if epoch in self._judged:
                continue
            state = self._checkpoints.load(epoch, self._network.size)
            if state is None:
                self._say(f"the checkpoint after epoch {epoch} is damaged or of another network")
            else:
                accuracy = self._network.accuracy(state.parameters, self._held_out)
                self._say(
                    f"after epoch {epoch}: accuracy {accuracy:.3f}"
                    f" on {len(self._held_out)} held-out images"
                )
            self._judged.add(epoch)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
