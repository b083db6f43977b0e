"""The advisor's process: reads calls from standard input, answers on standard output, ends with its parent.

Calls and answers are frames of a head and JSON, which the service writes and reads by the same definitions.
Whatever a library prints goes to standard error: answers use a descriptor of their own. Numpy is loaded by
the first call that needs it: the service imports this module, too.
"""

import os
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, assert_never

import msgspec
from msgspec import Struct

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.core.study.spec import StudySpec
from trainshed.replica.system import kernel
from trainshed.studies.port import Algorithm, Curve, Proposals, Seen, StoppingVerdict

if TYPE_CHECKING:
    from trainshed.wire.trainshed_v1.jobs import Outlook


def algorithm_for(name: AlgorithmName) -> Algorithm:
    """Return the algorithm that a study asks for."""
    match name:
        case AlgorithmName.RANDOM_SEARCH:
            from trainshed.studies.random_search import RandomSearch

            return RandomSearch()
        case AlgorithmName.GRID_SEARCH:
            from trainshed.studies.random_search import GridSearch

            return GridSearch()
        case AlgorithmName.DEFAULT:
            from trainshed.studies.gp.bandit import GaussianProcessBandit

            return GaussianProcessBandit()
        case _:
            assert_never(name)


HEAD = struct.Struct(">?I")
"""Of a frame: whether it says why a call failed, and the length in bytes of its content."""


class SuggestCall(Struct, frozen=True, tag=True):
    """Asks the algorithm that a study names for points."""

    spec: StudySpec
    trials: tuple[Seen, ...]
    #: How many points.
    count: int
    seed: int

    def answer(self) -> Proposals:
        algorithm = algorithm_for(self.spec.algorithm)
        return algorithm.suggest(self.spec, self.trials, self.count, self.seed)


class StopCall(Struct, frozen=True, tag=True):
    """Asks which trials, by number, the rule of `spec` stops early."""

    spec: StudySpec
    curves: tuple[Curve, ...]
    numbers: tuple[int, ...]

    def answer(self) -> tuple[StoppingVerdict, ...]:
        from trainshed.studies.stopping import decide_all

        return decide_all(self.spec, self.curves, self.numbers)


class ExpectCall(Struct, frozen=True, tag=True):
    """Asks what the model of a study expects over some of its parameters."""

    spec: StudySpec
    trials: tuple[Seen, ...]
    parameters: tuple[str, ...]

    def answer(self) -> "Outlook":
        from trainshed.studies.gp.bandit import outlook

        return outlook(self.spec, self.trials, self.parameters)


Call = SuggestCall | StopCall | ExpectCall
_calls: msgspec.json.Decoder[Call] = msgspec.json.Decoder(Call)


def frame(content: Any, *, failed: bool = False) -> bytes:
    """Return a whole message."""
    body = msgspec.json.encode(content)
    return HEAD.pack(failed, len(body)) + body


def main() -> None:
    """Serve until the parent, whose id is the one argument, closes its end or dies."""
    # This process may compute for minutes without reading, and must end with its parent nevertheless.
    kernel.help_parent(int(sys.argv[1]))
    # The parent handles Ctrl-C at the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls = sys.stdin.buffer
    while (head := _read(calls, HEAD.size)) is not None:
        body = _read(calls, HEAD.unpack(head)[1])
        if body is None:
            return
        answers.write(_answer(body))
        answers.flush()


def _answer(body: bytes) -> bytes:
    try:
        return frame(_calls.decode(body).answer())
    except Exception as failure:
        # Whatever an algorithm raises is reported to the service, and the process goes on.
        import traceback

        traceback.print_exc()
        return frame(f"{type(failure).__name__}: {failure}", failed=True)


def _read(stream: BinaryIO, size: int) -> bytes | None:
    """Read exactly `size` bytes; None at the end of the stream."""
    data = stream.read(size)
    return data if len(data) == size else None


if __name__ == "__main__":
    main()
