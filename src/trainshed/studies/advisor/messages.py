"""What the service and the advisor's process say to each other: frames of a kind, a length and JSON."""

import enum
import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from trainshed.core.study.spec import StudySpec
from trainshed.studies.port import Curve, EngineName, Seen

HEAD = struct.Struct(">cI")
"""Kind and length of what follows."""


class Kind(enum.Enum):
    """Calls, and answers to them. FAILED and MISSING carry a text."""

    SUGGEST = b"s"
    SHOULD_STOP = b"c"
    PROPOSALS = b"p"
    VERDICTS = b"v"
    FAILED = b"f"
    MISSING = b"m"


@dataclass(frozen=True, slots=True)
class SuggestCall:
    engine: EngineName
    spec: StudySpec
    trials: tuple[Seen, ...]
    count: int
    seed: int


@dataclass(frozen=True, slots=True)
class StopCall:
    spec: StudySpec
    curves: tuple[Curve, ...]
    numbers: tuple[int, ...]


_encoder = msgspec.json.Encoder()


def frame(kind: Kind, content: Any) -> bytes:
    """A whole message."""
    body = _encoder.encode(content)
    return HEAD.pack(kind.value, len(body)) + body
