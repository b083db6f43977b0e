"""Programs that print lines as people write them: `plain.py KIND`. A step is a pause."""

import argparse
import random
import sys
import time
from pathlib import Path

chance = random.Random(11)


def step(seconds, spread=0.2):
    time.sleep(seconds * chance.lognormvariate(0, spread))


def say(text):
    print(text, flush=True)


def epoch_ends(options):
    time.sleep(1.5)
    for epoch in range(1, 21):
        step(2)
        say(f"epoch {epoch}/20 loss {1 / epoch:.4f} accuracy {1 - 1 / epoch:.3f}")


def epoch_begins(options):
    for epoch in range(1, 13):
        say(f"Epoch {epoch} of 12")
        for _ in range(10):
            step(0.3)
        say(f"  loss: {1 / epoch:.4f}")


def few_epochs(options):
    """Three epochs, whose steps are counted anew in each."""
    for epoch in range(1, 4):
        for done in range(1, 101):
            step(0.13)
            if done % 10 == 0:
                say(f"Epoch [{epoch}/3], Step [{done}/100], Loss: {1 / (epoch * 100 + done):.4f}")


def steps(options):
    for done in range(1, 401):
        step(0.1, 0.5)
        if done % 20 == 0:
            say(f"INFO step {done} of 400 loss={1 / done:.4f} lr=1e-4")


def examples(options):
    """As PyTorch's first example prints it: epochs without their number, and a share of each."""
    for epoch in range(1, options.epochs + 1):
        for batch in range(0, 94, 10):
            step(0.4)
            say(
                f"Train Epoch: {epoch} [{batch * 640}/60000 ({100 * batch / 94:.0f}%)]"
                f"\tLoss: {1 / (batch + 1):.6f}"
            )
        step(0.6)
        say(
            f"\nTest set: Average loss: {1 / epoch:.4f}, "
            f"Accuracy: {9000 + epoch}/10000 ({90 + epoch // 3}%)\n"
        )


def counted(options):
    for epoch in range(options.epochs):
        step(2.8)
        say(f"epoch={epoch} train_loss={1 / (epoch + 1):.4f} val_loss={1.1 / (epoch + 1):.4f}")


def slow_first(options):
    """The first epoch compiles and fills caches."""
    for epoch in range(1, 16):
        step(6 if epoch == 1 else 2.2)
        say(f"[{epoch}/15] Epoch {epoch}/15 done, loss={1 / epoch:.4f}")


def validates_now_and_then(options):
    for epoch in range(1, 17):
        step(1.8)
        say(f"Epoch {epoch}/16: train loss {1 / epoch:.4f}")
        if epoch % 4 == 0:
            step(2.5)
            say(f"validation after epoch {epoch}: {1.1 / epoch:.4f}")


def restart(options):
    """Dies in the middle, and begins again with the epoch of its checkpoint."""
    checkpoint = Path(options.state)
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    step(2)
    for epoch in range(done + 1, 17):
        if epoch == 7 and not done:
            sys.exit(75)
        step(2)
        say(f"Epoch {epoch}/16 loss {1 / epoch:.4f}")
        if epoch % 2 == 0:
            checkpoint.write_text(str(epoch))


def from_scratch(options):
    """Dies early, and has nothing to go on from."""
    mark = Path(options.state)
    for done in range(1, 301):
        step(0.1)
        if done % 10 == 0:
            say(f"iteration {done}/300")
        if done == 90 and not mark.exists():
            mark.write_text("died")
            sys.exit(75)


KINDS = {
    each.__name__: each
    for each in (
        epoch_ends,
        epoch_begins,
        few_epochs,
        steps,
        examples,
        counted,
        slow_first,
        validates_now_and_then,
        restart,
        from_scratch,
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--state", default="")
    options = parser.parse_args()
    KINDS[options.kind](options)
