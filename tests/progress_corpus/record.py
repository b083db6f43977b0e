"""Records what programs print, as it would come to stand in a job's log: `python -m
tests.progress_corpus.record --python PYTHON [NAME...]`, PYTHON being one that has the libraries.

Each recording is a text file: lines `SECONDS TEXT` since the program's start, as the shim writes them down,
of both streams; before them `# COMMAND`, and after them `# end SECONDS`. A run takes most of a minute and
stands for one of many: bars are written down every 0.5 s, where the shim does so every 10 s, and of the
time that large libraries take to be imported a second is left (such programs say `imported`).
"""

import argparse
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, cast

from trainshed.replica.observe import segments

HERE: Final = Path(__file__).parent
RECORDINGS: Final = HERE / "recordings"
_SHOWN_EVERY: Final = 0.5
RESTARTED: Final = "# restarted"
"""What stands in place of a line where the program was started again."""
_IMPORTED: Final = "imported"
_AGAIN: Final = 75
"""The exit status of a program that wants to be started again, as the service would start it."""

PROGRAMS: Final = {
    **{
        f"tqdm_{kind}": ("bars.py", kind)
        for kind in (
            *("single", "warm_up", "epochs", "nested", "validation", "slower", "preparation"),
            "restart",
        )
    },
    "tqdm_unnamed": ("bars.py", "unnamed", "--epochs", "9"),
    **{
        f"plain_{kind}": ("plain.py", kind)
        for kind in (
            *("epoch_ends", "epoch_begins", "few_epochs", "steps", "slow_first"),
            *("validates_now_and_then", "restart", "from_scratch"),
        )
    },
    "plain_examples": ("plain.py", "examples", "--epochs", "9"),
    "plain_counted": ("plain.py", "counted", "--epochs=14"),
    **{
        f"keras_{kind}": ("learn_keras.py", kind)
        for kind in ("bars", "lines", "no_validation", "slow_first")
    },
    "lightning_bars": ("learn_lightning.py", "bars", "--max_epochs", "6"),
    "lightning_no_validation": ("learn_lightning.py", "no_validation", "--max_epochs=7"),
    "transformers_bars": ("learn_transformers.py", "bars"),
    "transformers_lines": ("learn_transformers.py", "lines", "--num_train_epochs", "5"),
    "transformers_evaluates": ("learn_transformers.py", "evaluates"),
    **{f"format_{kind}": ("formats.py", kind) for kind in ("pairs", "padded", "folds")},
    "format_brackets": ("formats.py", "brackets", "--epochs", "4"),
    "format_settings": ("formats.py", "settings", "SOLVER.MAX_ITER", "400"),
    "boosting_xgboost": ("boosting.py", "--num_round", "60"),
}
HELD_OUT: Final = {
    **{
        f"held_out_{kind}": ("held_out.py", kind)
        for kind in ("warm_validated", "steps", "nested", "faster", "resumed")
    },
    "held_out_numbered": ("held_out.py", "numbered", "--epochs", "11"),
    "held_out_keras": ("held_out_keras.py", "10", "1"),
    "held_out_keras_lines": ("held_out_keras.py", "12", "2"),
    "held_out_lightning": ("held_out_lightning.py", "--max_epochs", "8"),
    "held_out_transformers": ("held_out_transformers.py",),
}
"""Recorded after the estimates were settled; nothing was chosen by them."""


class _Lines:
    """What a log is to `segments.Stream`: keeps the lines, with their times."""

    mask = None

    def __init__(self, began: float) -> None:
        self._began = began
        self._lock = threading.Lock()
        self.found: list[tuple[float, str]] = []

    def write(self, stream: str, texts: list[str]) -> None:
        with self._lock:
            if texts[0] == _IMPORTED:
                self._began = time.monotonic() - 1
                self.found = []
                texts = texts[1:]
            at = time.monotonic() - self._began
            self.found += [(at, text) for text in texts]

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def write_part(self, stream: str, text: str) -> None:
        self.write(stream, [text])


def _heed(pipe: IO[bytes], log: _Lines, name: str) -> None:
    stream = segments.Stream(cast(segments.Segments, log), name)
    while data := os.read(pipe.fileno(), 1 << 16):
        stream.feed(data)
    stream.close()


def record(python: str, command: Sequence[str], name: str) -> None:
    """Run a program to its end, and again where it asks for that."""
    log = _Lines(time.monotonic())
    with tempfile.TemporaryDirectory() as directory:
        program, *rest = command
        stateful = (
            ["--state", f"{directory}/state"] if name.endswith(("restart", "scratch")) else []
        )
        argv = [python, "-u", str(HERE / "programs" / program), *rest, *stateful]
        # Warnings name places of the machine that this was recorded on.
        environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
        while True:
            with subprocess.Popen(
                argv, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
            ) as process:
                readers = [
                    threading.Thread(target=_heed, args=(pipe, log, letter))
                    for pipe, letter in ((process.stdout, "o"), (process.stderr, "e"))
                ]
                for reader in readers:
                    reader.start()
                for reader in readers:
                    reader.join()
            if process.returncode != _AGAIN:
                break
            log.found.append((log.now(), RESTARTED))
    if process.returncode:
        raise SystemExit(f"{name}: {log.found[-5:]}")
    lines = [f"# {' '.join(command)}", *(f"{at:.3f} {text}" for at, text in log.found)]
    lines.append(f"# end {log.now():.3f}")
    (RECORDINGS / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*PROGRAMS, *HELD_OUT])
    options = parser.parse_args()
    segments.PROGRESS_SECONDS = _SHOWN_EVERY
    programs = PROGRAMS | HELD_OUT
    runs = [
        threading.Thread(target=record, args=(options.python, programs[name], name))
        for name in options.names
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()


if __name__ == "__main__":
    main()
