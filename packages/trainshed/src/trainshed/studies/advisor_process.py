"""The advisor's process: reads calls from standard input, answers on standard output, ends with its parent.

Calls and answers are frames of a kind, a length and JSON, which the service writes and reads by the same
definitions. Whatever a library prints goes to standard error: answers use a descriptor of their own.
"""

import enum
import os
import signal
import struct
import sys
from typing import Any, BinaryIO, assert_never

import msgspec
from msgspec import Struct

from trainshed.core.study.spec import Algorithm as AlgorithmName
from trainshed.core.study.spec import StudySpec
from trainshed.replica.system import kernel
from trainshed.studies.port import Algorithm, Curve, Seen

# Finds the algorithm that serves a study. Loads numpy only when asked.
#
# The service itself imports only `port` and what is free of numpy from this package: suggestions are computed
# in a process of their own.


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


HEAD = struct.Struct(">cI")
"""A frame's kind, and the length in bytes of its content."""


class Kind(enum.Enum):
    """Calls, and answers to them. FAILED carries a text."""

    SUGGEST = b"s"
    SHOULD_STOP = b"c"
    EXPECT = b"e"
    PROPOSALS = b"p"
    VERDICTS = b"v"
    OUTLOOK = b"o"
    FAILED = b"f"


class SuggestCall(Struct, frozen=True):
    """Asks the algorithm that a study names for points."""

    spec: StudySpec
    trials: tuple[Seen, ...]
    #: How many points.
    count: int
    seed: int


class StopCall(Struct, frozen=True):
    """Asks which trials, by number, the rule of `spec` stops early."""

    spec: StudySpec
    curves: tuple[Curve, ...]
    numbers: tuple[int, ...]


class ExpectCall(Struct, frozen=True):
    """Asks what the model of a study expects over some of its parameters."""

    spec: StudySpec
    trials: tuple[Seen, ...]
    parameters: tuple[str, ...]


_encoder = msgspec.json.Encoder()


def frame(kind: Kind, content: Any) -> bytes:
    """Return a whole message."""
    body = _encoder.encode(content)
    return HEAD.pack(kind.value, len(body)) + body


_suggest_calls = msgspec.json.Decoder(SuggestCall)
_stop_calls = msgspec.json.Decoder(StopCall)
_expect_calls = msgspec.json.Decoder(ExpectCall)


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
        kind, length = HEAD.unpack(head)
        body = _read(calls, length)
        if body is None:
            return
        answers.write(_answer(Kind(kind), body))
        answers.flush()


def _answer(kind: Kind, body: bytes) -> bytes:
    try:
        if kind is Kind.SUGGEST:
            call = _suggest_calls.decode(body)
            algorithm = algorithm_for(call.spec.algorithm)
            proposals = algorithm.suggest(call.spec, call.trials, call.count, call.seed)
            return frame(Kind.PROPOSALS, proposals)
        if kind is Kind.EXPECT:
            from trainshed.studies.gp.bandit import outlook

            asked_for = _expect_calls.decode(body)
            return frame(
                Kind.OUTLOOK, outlook(asked_for.spec, asked_for.trials, asked_for.parameters)
            )
        from trainshed.studies.stopping import decide_all

        stop_call = _stop_calls.decode(body)
        return frame(Kind.VERDICTS, decide_all(stop_call.spec, stop_call.curves, stop_call.numbers))
    except Exception as failure:
        # Whatever an algorithm raises is reported to the service, and the process goes on.
        import traceback

        traceback.print_exc()
        return frame(Kind.FAILED, f"{type(failure).__name__}: {failure}")


def _read(stream: BinaryIO, size: int) -> bytes | None:
    """Read exactly `size` bytes; None at the end of the stream."""
    data = stream.read(size)
    return data if len(data) == size else None


if __name__ == "__main__":
    main()
