"""The demo job: a small network learns to tell handwritten digits apart, on several hosts at once.

Run as `python -m trainshed_demo.task`, on every replica with the same arguments. Read on in this
order: `cluster` (who am I), `training` (what do I do), `allreduce` and `frames` (how the replicas
talk), `checkpoints` (what is kept), `model` (the network itself).

The primary and the workers train; the evaluator judges the checkpoints. The job is a success when
the network is accurate on images that it has not learned from.
"""

import argparse
import functools
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from trainshed_demo.allreduce import GatherError
from trainshed_demo.checkpoints import Checkpoints, open_folder, output_uris
from trainshed_demo.cluster import Cluster, ClusterError, Role, read_cluster
from trainshed_demo.model import Network, load_digits
from trainshed_demo.training import Evaluator, Primary, Say, Schedule, Settings, work


class Terminated(BaseException):
    """The service asks this replica to end. Not an `Exception`, so that no retry swallows it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays this replica's part, and returns the exit status."""
    options = _parse(arguments)
    try:
        cluster = read_cluster(os.environ)
    except ClusterError as error:
        return _fail(str(error))

    say = functools.partial(_say, cluster.label)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        return _play(cluster, options, say)
    except GatherError as error:
        return _fail(f"{cluster.label}: {error}")
    except Terminated:
        if cluster.role is Role.EVALUATOR:
            say("shut down by the service, as an evaluator is at the end of the job")
            return 0
        say("asked to end before the work was done")
        return _die_of(signal.SIGTERM)


def _play(cluster: Cluster, options: argparse.Namespace, say: Say) -> int:
    settings = Settings(
        epochs=options.epochs,
        batch=options.batch_size,
        learning_rate=options.learning_rate,
        hidden=options.hidden_units,
        seed=options.seed,
    )
    checkpoint_uri, model_uri = output_uris(options.job_dir, os.environ)

    if cluster.role is Role.PRIMARY:
        checkpoints = Checkpoints(open_folder(checkpoint_uri))
        say(f"checkpoints go to {checkpoint_uri}, the model to {model_uri}")
        schedule = Schedule(
            options.checkpoint_epochs,
            options.join_seconds,
            options.epoch_seconds,
            resume=not options.planted_bug,
        )
        primary = Primary(settings, schedule, checkpoints, say)
        return _lead(primary, cluster, model_uri, options.target_accuracy, say)
    if cluster.role is Role.WORKER:
        examples, _ = load_digits()
        work(cluster, settings, options.join_seconds, examples, say)
        return 0
    if cluster.role is Role.EVALUATOR:
        checkpoints = Checkpoints(open_folder(checkpoint_uri))
        _, held_out = load_digits()
        evaluator = Evaluator(checkpoints, Network(settings.hidden), held_out, say)
        _watch(evaluator, options.poll_seconds)
    say("this program has no work for a parameter server")
    return 0


def _lead(primary: Primary, cluster: Cluster, model_uri: str, target: float, say: Say) -> int:
    examples, held_out = load_digits()
    try:
        primary.train(cluster, examples)
    except Terminated:
        primary.save()
        raise
    accuracy = primary.publish(open_folder(model_uri), held_out, cluster.size)
    result = f"final accuracy {accuracy:.3f} on {len(held_out)} held-out images"
    if accuracy < target:
        return _fail(
            f"{result}, less than the {target:.2f} asked for: it has not learned enough."
            " Give it more --epochs, or another --learning-rate."
        )
    say(f"{result}; the model is in {model_uri}")
    return 0


def _watch(evaluator: Evaluator, poll_seconds: float) -> NoReturn:
    try:
        evaluator.watch(poll_seconds)
    except Terminated:
        # The primary has succeeded a moment ago, and its last checkpoint may not be judged yet.
        evaluator.look()
        raise


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    settings, schedule = Settings(), Schedule()
    parser = argparse.ArgumentParser(
        prog="trainshed_demo.task",
        description="Distributed training of a small network on handwritten digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        # A hyperparameter must not be taken for another one that begins with its name.
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--job-dir", help="where to keep checkpoints and the model: gs://bucket/path or a path")
    add("--epochs", type=int, default=settings.epochs, help="passes over the examples")
    add("--batch-size", type=int, default=settings.batch, help="examples per step, in all")
    add("--learning-rate", type=float, default=settings.learning_rate, help="of each step")
    add("--hidden-units", type=int, default=settings.hidden, help="size of the hidden layer")
    add("--seed", type=int, default=settings.seed, help="of everything that is drawn")
    add(
        "--checkpoint-epochs",
        type=int,
        default=schedule.checkpoint_epochs,
        help="epochs from one checkpoint to the next",
    )
    add(
        "--epoch-seconds",
        type=float,
        default=schedule.epoch_seconds,
        help="the least time an epoch takes, so that one can watch",
    )
    add(
        "--join-seconds",
        type=float,
        default=schedule.join_seconds,
        help="how long to wait for the other replicas",
    )
    add("--poll-seconds", type=float, default=0.5, help="how often the evaluator looks")
    add(
        "--planted-bug",
        action="store_true",
        help="begin anew after a restart, whatever checkpoint there is: a bug for a drill to find",
    )
    add("--target-accuracy", type=float, default=0.9, help="with less, the job is a failure")
    return parser.parse_args(arguments)


def _say(label: str, text: str) -> None:
    # Flushed line by line: a log is read while the program runs.
    print(f"{label}: {text}", flush=True)


def _fail(text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return 1


def _on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    # Once is enough: what is done on the way out is not to be interrupted again.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _die_of(number: signal.Signals) -> int:
    """Ends by the signal itself, so that the service sees a program that was stopped, not failed."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    # Still here: the first process of a container is not ended by its own signals.
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
