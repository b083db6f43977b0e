"""The environment variables that configure workers and reducers, and checks of their values. The service also
uses this module, to check the variables of a job before the job runs (spec/submit#refusals)."""

from typing import Dict, Optional, Tuple

REDUCERS = "TRAINSHED_REDUCERS"
"""Addresses of all reducers: HOST:PORT, separated by commas, in the order of the replicas in worker pool 2.
If the variable is not set, the job has no reducers."""
TOKEN = "TRAINSHED_REDUCTION_TOKEN"
TOKEN_FILE = "TRAINSHED_REDUCTION_TOKEN_FILE"
ATTEMPT = "TRAINSHED_REDUCTION_ATTEMPT"
"""Number of the job's attempt. The workers of a later attempt replace the workers of earlier attempts."""
WORKER_GBPS = "TRAINSHED_REDUCTION_WORKER_GBPS"
REDUCER_GBPS = "TRAINSHED_REDUCTION_REDUCER_GBPS"
"""Bandwidth of a reducer in each direction in Gbit/s, from the table of machine types. `WORKER_GBPS` is the
bandwidth of a worker. The service sets both variables or neither."""
MODE = "TRAINSHED_REDUCTION"
""""auto" (default): use the reducers. "off": use the native all-reduce."""
MIN_BYTES = "TRAINSHED_REDUCTION_MIN_BYTES"
"""Minimum bytes of an operation that reducers execute. The native backend executes smaller operations."""
REPLICA = "TRAINSHED_REDUCTION_REPLICA"
"""Name of the replica. All ranks in a replica share one link, even if a launcher such as torchrun did not
start them (mp.spawn)."""
NODE_FIRST = "TRAINSHED_REDUCTION_NODE_FIRST"
""""0" disables local sums within a node, so that every rank sends its whole tensors to the reducers. Default:
"1"."""
NATIVE = "TRAINSHED_REDUCTION_NATIVE"
"""Directory in which to search for the C library before the package's own directory."""
CHUNK_BYTES = "TRAINSHED_REDUCTION_CHUNK_BYTES"
CREDIT_BYTES = "TRAINSHED_REDUCTION_CREDIT_BYTES"
START_SECONDS = "TRAINSHED_REDUCTION_START_SECONDS"
WAIT_SECONDS = "TRAINSHED_REDUCTION_WAIT_SECONDS"
ABSENT_SECONDS = "TRAINSHED_REDUCTION_ABSENT_SECONDS"
REPORT_FILE = "TRAINSHED_REDUCTION_REPORT_FILE"
"""File in which the process reports notes (messages for the job's timeline) to the service
(`process.Reports`)."""
LISTEN = "TRAINSHED_REDUCER_LISTEN"
"""HOST:PORT at which a reducer listens."""
THREADS = "TRAINSHED_REDUCER_THREADS"
"""Number of threads of a reducer. Default: the number of processors that the process may use."""

START = "TRAINSHED_REDUC"
"""Prefix of the names of all variables in this module. No other environment variable has this prefix."""
MODES = ("auto", "off")
SMALLEST_BYTES = 2 << 20
"""Default of `MIN_BYTES`."""
MAX_THREADS = 256
"""Maximum number of threads of a reducer."""

_MINIMUMS: Dict[str, float] = {
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
_NUMBER_LIMIT = 2.0**40
_WORDS = {MODE: MODES, NODE_FIRST: ("0", "1")}


def find_error(name: str, value: str) -> Optional[str]:
    """Return the error in the value of a variable, or None if the value is valid. An empty value counts as
    not set."""
    if not value:
        return None
    wanted = None
    if name in _MINIMUMS:
        if parse_number(name, value) is None:
            wanted = f"not a number of at least {_MINIMUMS[name]:g} and below {_NUMBER_LIMIT:g}"
    elif name in _WORDS:
        if value not in _WORDS[name]:
            wanted = "not one of {}".format(", ".join(_WORDS[name]))
    elif name == THREADS:
        if not value.isdecimal() or not 0 < int(value) <= MAX_THREADS:
            wanted = f"not a whole number from 1 to {MAX_THREADS}"
    elif name == LISTEN:
        if parse_address(value) is None:
            wanted = "not HOST:PORT"
    elif name == REDUCERS and not all(_is_address(text) for text in value.split(",")):
        wanted = "not a list of HOST:PORT"
    return f"{name}={value!r} is {wanted}" if wanted else None


def parse_number(name: str, text: str) -> Optional[float]:
    """Return the value of a numeric variable. None = the text is no number, or the number is out of range."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if _MINIMUMS[name] <= value < _NUMBER_LIMIT else None


def parse_address(text: str) -> Optional[Tuple[str, int]]:
    """Parse HOST:PORT, and remove brackets around the host. Return None if the text has another form. The
    port 0 stands for any free port."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def _is_address(text: str) -> bool:
    address = parse_address(text)
    return address is not None and address[1] > 0
