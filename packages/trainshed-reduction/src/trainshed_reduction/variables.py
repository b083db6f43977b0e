"""The environment variables that configure workers and reducers, and the values that each may have.

Pure, without imports that do anything: the service checks a job's variables with this before the job runs
(spec/submit#refusals).
"""

from typing import Dict, Optional, Tuple

REDUCERS = "TRAINSHED_REDUCERS"
"""HOST:PORT of every reducer, separated by commas, in the order of worker pool 2. Absent: there are none."""
TOKEN = "TRAINSHED_REDUCTION_TOKEN"
TOKEN_FILE = "TRAINSHED_REDUCTION_TOKEN_FILE"
ATTEMPT = "TRAINSHED_REDUCTION_ATTEMPT"
"""Number of the job's attempt; a later attempt's workers take the place of an earlier one's."""
WORKER_GBPS = "TRAINSHED_REDUCTION_WORKER_GBPS"
REDUCER_GBPS = "TRAINSHED_REDUCTION_REDUCER_GBPS"
"""Gbit/s of one replica of that kind in each direction, from the machine table; both are set or neither."""
MODE = "TRAINSHED_REDUCTION"
"""auto (default: by reducers), off (native all-reduce)."""
MIN_BYTES = "TRAINSHED_REDUCTION_MIN_BYTES"
"""Operations of fewer bytes go to the native backend."""
REPLICA = "TRAINSHED_REDUCTION_REPLICA"
"""Name of the replica: ranks that a program starts itself (mp.spawn) share its link, as torchrun's do."""
NODE_FIRST = "TRAINSHED_REDUCTION_NODE_FIRST"
"""0: every rank sends all of its tensors itself, though it shares its link with its node's other ranks."""
NATIVE = "TRAINSHED_REDUCTION_NATIVE"
"""A directory where the C library is looked for first, before the package's own."""
CHUNK_BYTES = "TRAINSHED_REDUCTION_CHUNK_BYTES"
CREDIT_BYTES = "TRAINSHED_REDUCTION_CREDIT_BYTES"
START_SECONDS = "TRAINSHED_REDUCTION_START_SECONDS"
WAIT_SECONDS = "TRAINSHED_REDUCTION_WAIT_SECONDS"
ABSENT_SECONDS = "TRAINSHED_REDUCTION_ABSENT_SECONDS"
REPORT_FILE = "TRAINSHED_REDUCTION_REPORT_FILE"
"""Where notes go for the service to see (`process.Reports`)."""
LISTEN = "TRAINSHED_REDUCER_LISTEN"
"""Reducers: HOST:PORT to listen on."""
THREADS = "TRAINSHED_REDUCER_THREADS"
"""Reducers: number of threads; default: one for each processor that the process may use."""

START = "TRAINSHED_REDUC"
"""The prefix of these names, and of no others."""
MODES = ("auto", "off")
SMALLEST_BYTES = 2 << 20
"""The default of `MIN_BYTES`."""
MOST_THREADS = 256
"""Maximum threads of a reducer."""

_LEAST: Dict[str, float] = {
    ATTEMPT: 0,
    WORKER_GBPS: 0,
    REDUCER_GBPS: 0,
    MIN_BYTES: 0,
    CHUNK_BYTES: 4096,
    CREDIT_BYTES: 0,
    START_SECONDS: 0,
    WAIT_SECONDS: 0.001,
    ABSENT_SECONDS: 0,
}
_BELOW = 2.0**40
_WORDS = {MODE: MODES, NODE_FIRST: ("0", "1")}


def fault(name: str, value: str) -> Optional[str]:
    """Return the fault of a variable's value, or None. An empty value counts as not set."""
    if not value:
        return None
    wanted = None
    if name in _LEAST:
        if number(name, value) is None:
            wanted = f"no number of at least {_LEAST[name]:g} and below {_BELOW:g}"
    elif name in _WORDS:
        if value not in _WORDS[name]:
            wanted = "none of {}".format(", ".join(_WORDS[name]))
    elif name == THREADS:
        if not value.isdecimal() or not 0 < int(value) <= MOST_THREADS:
            wanted = f"no whole number from 1 to {MOST_THREADS}"
    elif name == LISTEN:
        if place(value) is None:
            wanted = "not HOST:PORT"
    elif name == REDUCERS and not all(_is_reached_at(text) for text in value.split(",")):
        wanted = "no list of HOST:PORT"
    return f"{name}={value!r} is {wanted}" if wanted else None


def number(name: str, text: str) -> Optional[float]:
    """Return the value of a numeric variable, or None if it is invalid or out of range."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if _LEAST[name] <= value < _BELOW else None


def place(text: str) -> Optional[Tuple[str, int]]:
    """Parse HOST:PORT, and remove brackets from the host. Return None for other texts. Port 0: any free
    port."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def _is_reached_at(text: str) -> bool:
    address = place(text)
    return address is not None and address[1] > 0
