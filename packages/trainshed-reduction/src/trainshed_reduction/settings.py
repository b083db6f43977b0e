"""The settings of a worker or a reducer. They come from its environment variables."""

import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from trainshed_reduction import variables
from trainshed_reduction.variables import NODE_FIRST, REDUCERS, SMALLEST_BYTES, TOKEN, TOKEN_FILE


class Unusable(ValueError):
    """Environment variables have invalid values. The message contains all errors."""


class Settings(NamedTuple):
    """The settings of a worker."""

    #: (host, port) of each reducer.
    reducers: Tuple[Tuple[str, int], ...]
    token: bytes
    attempt: int = 0
    #: Bandwidth of a worker's link in Gbit/s; 0 = unknown.
    worker_gbps: float = 0.0
    #: Bandwidth of a reducer's link in Gbit/s; 0 = unknown.
    reducer_gbps: float = 0.0
    #: Minimum bytes of an all-reduce that reducers execute.
    min_bytes: int = SMALLEST_BYTES
    #: Maximum bytes of a chunk.
    chunk_bytes: int = 256 << 10
    #: Maximum bytes in flight (sent, but without a result); 0 = computed from the bandwidth and the number of
    #: connections to reducers (`client.running_group`).
    credit_bytes: int = 0
    #: Seconds to wait for all reducers and ranks when a group is formed.
    start_seconds: float = 60.0
    #: Seconds to wait for each result of a formed group.
    wait_seconds: float = 300.0
    #: Seconds after which a group fails if one of its ranks has no connection.
    absent_seconds: float = 15.0

    @property
    def speed(self) -> float:
        """Bandwidth of a reducer divided by the bandwidth of a worker; 0 = unknown."""
        return self.reducer_gbps / self.worker_gbps if self.worker_gbps else 0.0


_FIELDS = {field: "TRAINSHED_REDUCTION_" + field.upper() for field in Settings._field_defaults}
"""Name of the environment variable, for each field that has a default."""


def from_environ(environ: "Mapping[str, str]" = os.environ) -> Optional[Settings]:
    """Return the settings of a worker; None if the job has no reducers, or if the user has turned them off.
    Raises Unusable if variables are invalid, and OSError if the token's file is unreadable."""
    if not environ.get(REDUCERS) or environ.get(variables.MODE) == "off":
        return None
    names = (REDUCERS, NODE_FIRST, variables.MODE, *_FIELDS.values())
    faults = [variables.find_error(name, environ.get(name, "")) for name in names]
    token = token_of(environ)
    if not token:
        faults.append(f"neither {TOKEN} nor {TOKEN_FILE} is set")
    if any(faults):
        raise Unusable("; ".join(filter(None, faults)))
    places = (variables.parse_address(text) for text in environ[REDUCERS].split(","))
    reducers = tuple(place for place in places if place is not None)
    fields: Dict[str, Any] = {}
    for field, default in Settings._field_defaults.items():
        value = environ.get(_FIELDS[field])
        if value:
            fields[field] = type(default)(float(value))
    return Settings(reducers, token, **fields)


def token_of(environ: "Mapping[str, str]") -> bytes:
    """Return the job's token; b"" = no token is set. Raises OSError if the token's file is unreadable."""
    if environ.get(TOKEN_FILE):
        with open(environ[TOKEN_FILE], "rb") as file:
            return file.read(4096).strip()
    return environ.get(TOKEN, "").encode()
