"""What a worker or a reducer is told by its environment."""

import os
from typing import Mapping, NamedTuple, Optional, Tuple

REDUCERS = "TRAINSHED_REDUCERS"
"""HOST:PORT of every reducer's first process, by commas, in the order of worker pool 2. Absent: there are none."""
TOKEN = "TRAINSHED_REDUCTION_TOKEN"
TOKEN_FILE = "TRAINSHED_REDUCTION_TOKEN_FILE"
ATTEMPT = "TRAINSHED_REDUCTION_ATTEMPT"
"""Of the job; a later attempt's workers take the place of an earlier one's."""
WORKER_GBPS = "TRAINSHED_REDUCTION_WORKER_GBPS"
REDUCER_GBPS = "TRAINSHED_REDUCTION_REDUCER_GBPS"
"""Bandwidth of one replica of that kind each way, from the machine table; both or none."""
MODE = "TRAINSHED_REDUCTION"
"""auto (default), pure (workers never reduce), hybrid, off (native all-reduce)."""
SMALLEST = "TRAINSHED_REDUCTION_MIN_BYTES"
"""Operations of fewer bytes go to the native backend."""
NODE_FIRST = "TRAINSHED_REDUCTION_NODE_FIRST"
"""0: every rank sends all of its tensors itself, though it shares its link with the node's others."""
CHUNK = "TRAINSHED_REDUCTION_CHUNK_BYTES"
CREDIT = "TRAINSHED_REDUCTION_CREDIT_BYTES"
START_LIMIT = "TRAINSHED_REDUCTION_START_SECONDS"
WAIT_LIMIT = "TRAINSHED_REDUCTION_WAIT_SECONDS"
ABSENT_LIMIT = "TRAINSHED_REDUCTION_ABSENT_SECONDS"
LOST_AFTER = "TRAINSHED_REDUCTION_LOST_SECONDS"
LOST_FILE = "TRAINSHED_REDUCTION_LOST_FILE"
"""A file in which the service names reducers (HOST:PORT, one a line) that it has given up."""
REPORT_FILE = "TRAINSHED_REDUCTION_REPORT_FILE"
"""Where notes and metrics go for the service to see (`reports`)."""
LISTEN = "TRAINSHED_REDUCER_LISTEN"
"""Reducers: HOST:PORT of the first process; the others of the same host take free ports."""
PROCESSES = "TRAINSHED_REDUCER_PROCESSES"
"""Reducers: how many processes; default: one for each processor that this one may use."""
CA = "TRAINSHED_REDUCTION_CA"
CA_FILE = "TRAINSHED_REDUCTION_CA_FILE"
"""Workers: speak TLS to reducers, and whom to believe; the PEM text itself, or a file, which wins."""
CERT = "TRAINSHED_REDUCTION_CERT"
CERT_FILE = "TRAINSHED_REDUCTION_CERT_FILE"
KEY = "TRAINSHED_REDUCTION_KEY"
KEY_FILE = "TRAINSHED_REDUCTION_KEY_FILE"
"""Reducers: speak TLS, as whom; likewise. Without a key of its own a certificate's text or file has it too."""


class Unusable(ValueError):
    """A variable says what cannot be meant; the text names all of them."""


class Settings(NamedTuple):
    """A worker's. `reducers`: (host, port). Bandwidths in Gbit/s, 0 = not known. `smallest`, `chunk`, `credit`: bytes;
    `credit` 0 = chosen by the number of reducers. `start_limit`: seconds to wait for reducers and ranks when a group
    is made; `wait_limit`: for any answer later; `lost_after`: without a reducer before it is given up; `absent_limit`: without a
    rank that all reducers miss."""

    reducers: Tuple[Tuple[str, int], ...]
    token: bytes
    attempt: int = 0
    worker_gbps: float = 0.0
    reducer_gbps: float = 0.0
    mode: str = "auto"
    smallest: int = 2 << 20
    chunk: int = 256 << 10
    credit: int = 0
    start_limit: float = 60.0
    wait_limit: float = 300.0
    lost_after: float = 30.0
    absent_limit: float = 15.0
    lost_file: str = ""
    report_file: str = ""
    ca_file: str = ""
    ca: str = ""

    @property
    def is_secured(self) -> bool:
        """Whether reducers are spoken to over TLS."""
        return bool(self.ca_file or self.ca)


def from_environ(environ: "Mapping[str, str]" = os.environ) -> Optional[Settings]:
    """None where there are no reducers, or where the mode is off. Raises Unusable, OSError (the token's file)."""
    if not environ.get(REDUCERS) or environ.get(MODE) == "off":
        return None
    faults: "list[str]" = []

    def number(name: str, default: float, least: float = 0.0) -> float:
        text = environ.get(name, "")
        try:
            value = float(text or default)
            if not least <= value < 2**40:
                raise ValueError
        except ValueError:
            faults.append("{}={!r} is no number of at least {:g}".format(name, text, least))
            return default
        return value

    reducers: "list[Tuple[str, int]]" = []
    for place in environ[REDUCERS].split(","):
        host, _, port = place.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            faults.append("{} has {!r}, which is not HOST:PORT".format(REDUCERS, place))
        else:
            reducers.append((host.strip("[]"), int(port)))
    mode = environ.get(MODE) or "auto"
    if mode not in ("auto", "pure", "hybrid"):
        faults.append("{}={!r} is none of auto, pure, hybrid, off".format(MODE, mode))
    token = token_of(environ)
    if not token:
        faults.append("neither {} nor {} is set".format(TOKEN, TOKEN_FILE))
    defaults = Settings((), b"")
    settings = Settings(
        reducers=tuple(reducers),
        token=token,
        attempt=int(number(ATTEMPT, 0)),
        worker_gbps=number(WORKER_GBPS, 0),
        reducer_gbps=number(REDUCER_GBPS, 0),
        mode=mode,
        smallest=int(number(SMALLEST, defaults.smallest)),
        chunk=int(number(CHUNK, defaults.chunk, 4096)),
        credit=int(number(CREDIT, 0)),
        start_limit=number(START_LIMIT, defaults.start_limit),
        wait_limit=number(WAIT_LIMIT, defaults.wait_limit, 0.001),
        lost_after=number(LOST_AFTER, defaults.lost_after),
        absent_limit=number(ABSENT_LIMIT, defaults.absent_limit),
        lost_file=environ.get(LOST_FILE, ""),
        report_file=environ.get(REPORT_FILE, ""),
        ca_file=environ.get(CA_FILE, ""),
        ca=environ.get(CA, ""),
    )
    if faults:
        raise Unusable("; ".join(faults))
    return settings


def token_of(environ: "Mapping[str, str]") -> bytes:
    """The job's token, b"" if there is none. Raises OSError."""
    if environ.get(TOKEN_FILE):
        with open(environ[TOKEN_FILE], "rb") as file:
            return file.read(4096).strip()
    return environ.get(TOKEN, "").encode()
