"""One trial of the demo's tuning job: a scikit-learn network learns digits with the hyperparameters that it
is given.

Run as `python -m trainshed_demo.tuning --learning-rate 0.01 --hidden-units 32 ...`. After each epoch it
reports its accuracy on images that it has not learned from. It uses cloudml-hypertune, as any program that is
tuned can.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from trainshed_demo.digits import load_digits

METRIC = "accuracy"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the network, and report its accuracy after each epoch."""
    # Imported here, because they come with the runtime and are slow to import.
    import hypertune  # pyright: ignore[reportMissingImports] - only runtimes have it
    import sklearn.neural_network as networks  # pyright: ignore[reportMissingTypeStubs] - has none

    options = _parse(arguments)
    examples, held_out = load_digits()
    network: Any = networks.MLPClassifier(
        hidden_layer_sizes=(options.hidden_units,),
        activation=options.activation,
        learning_rate_init=options.learning_rate,
        alpha=options.alpha,
        batch_size=options.batch_size,
        random_state=options.seed,
    )
    reports = cast(Any, hypertune).HyperTune()
    trial = os.environ.get("CLOUD_ML_TRIAL_ID", "-")
    for epoch in range(1, options.epochs + 1):
        network.partial_fit(examples.images, examples.labels, classes=np.arange(10))
        accuracy = float(network.score(held_out.images, held_out.labels))
        reports.report_hyperparameter_tuning_metric(METRIC, accuracy, global_step=epoch)
        print(
            f"trial {trial}: epoch {epoch}/{options.epochs} loss {network.loss_:.3f}"
            f" accuracy {accuracy:.3f} on {len(held_out.labels)} held-out images",
            flush=True,
        )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="trainshed_demo.tuning",
        description="One trial: a small network learns handwritten digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        # Otherwise a hyperparameter could be taken for another one whose name begins with it.
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--learning-rate", type=float, default=0.001, help="of each step")
    add("--hidden-units", type=int, default=32, help="size of the hidden layer")
    add("--activation", default="relu", choices=("relu", "tanh", "logistic"), help="of that layer")
    add("--alpha", type=float, default=0.0001, help="weight of the L2 penalty")
    add("--batch-size", type=int, default=64, help="examples per step")
    add("--epochs", type=int, default=12, help="passes over the examples")
    add("--seed", type=int, default=0, help="of everything that is drawn")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
