"""Settings of a worker or a reducer, from its environment."""

import os
from typing import Mapping, NamedTuple, Optional, Tuple

from trainshed_reduction import variables
from trainshed_reduction.variables import (
    ABSENT_LIMIT,
    ATTEMPT,
    CA,
    CA_FILE,
    CERT,
    CERT_FILE,
    CHUNK,
    CREDIT,
    KEY,
    KEY_FILE,
    LOST_AFTER,
    LOST_FILE,
    MODE,
    NODE_FIRST,
    REDUCER_GBPS,
    REDUCERS,
    REPORT_FILE,
    SMALLEST,
    SMALLEST_BYTES,
    START_LIMIT,
    TOKEN,
    TOKEN_FILE,
    WAIT_LIMIT,
    WORKER_GBPS,
)


class Unusable(ValueError):
    """A variable says what cannot be meant; the text names all of them."""


class Settings(NamedTuple):
    """What a worker is told."""

    #: (host, port) of each.
    reducers: Tuple[Tuple[str, int], ...]
    token: bytes
    attempt: int = 0
    #: Bandwidth of a worker in Gbit/s; 0 = not known.
    worker_gbps: float = 0.0
    #: Bandwidth of a reducer in Gbit/s; 0 = not known.
    reducer_gbps: float = 0.0
    mode: str = "auto"
    #: Bytes of the smallest all-reduce that is for the reducers.
    smallest: int = SMALLEST_BYTES
    #: Bytes of a chunk, at most.
    chunk: int = 256 << 10
    #: Bytes that may be under way; 0 = chosen by the number of reducers.
    credit: int = 0
    #: Seconds to wait for reducers and ranks when a group is made.
    start_limit: float = 60.0
    #: Seconds to wait for any answer later.
    wait_limit: float = 300.0
    #: Seconds without a reducer before it is given up.
    lost_after: float = 30.0
    #: Seconds without a rank that all reducers miss.
    absent_limit: float = 15.0
    #: Names the reducers that will not come back; "" = nobody says.
    lost_file: str = ""
    #: Where this worker reports to the service; "" = nowhere.
    report_file: str = ""
    #: Whom to believe over TLS, as a file, which wins; "" = `ca` says.
    ca_file: str = ""
    #: The same as PEM text; "" = no TLS.
    ca: str = ""
    #: What this worker's own reducer shows, as files, which win; "" = `cert` and `key` say.
    cert_file: str = ""
    key_file: str = ""
    #: The same as PEM text.
    cert: str = ""
    key: str = ""

    @property
    def is_secured(self) -> bool:
        """Whether reducers are spoken to over TLS."""
        return bool(self.ca_file or self.ca)


def from_environ(environ: "Mapping[str, str]" = os.environ) -> Optional[Settings]:
    """None where there are no reducers, or where the mode is off. Raises Unusable, OSError (the token's
    file)."""
    if not environ.get(REDUCERS) or environ.get(MODE) == "off":
        return None
    faults: "list[str]" = []

    def text(name: str) -> str:
        """What a variable says, "" where that cannot be meant."""
        said = environ.get(name, "")
        fault = variables.fault(name, said)
        if fault:
            faults.append(fault)
        return "" if fault else said

    def number(name: str, default: float) -> float:
        return float(text(name) or default)

    places = (variables.place(each) for each in text(REDUCERS).split(","))
    reducers = tuple(place for place in places if place is not None)
    mode = text(MODE) or "auto"
    text(NODE_FIRST)
    token = token_of(environ)
    if not token:
        faults.append("neither {} nor {} is set".format(TOKEN, TOKEN_FILE))
    defaults = Settings((), b"")
    settings = Settings(
        reducers=reducers,
        token=token,
        attempt=int(number(ATTEMPT, 0)),
        worker_gbps=number(WORKER_GBPS, 0),
        reducer_gbps=number(REDUCER_GBPS, 0),
        mode=mode,
        smallest=int(number(SMALLEST, defaults.smallest)),
        chunk=int(number(CHUNK, defaults.chunk)),
        credit=int(number(CREDIT, 0)),
        start_limit=number(START_LIMIT, defaults.start_limit),
        wait_limit=number(WAIT_LIMIT, defaults.wait_limit),
        lost_after=number(LOST_AFTER, defaults.lost_after),
        absent_limit=number(ABSENT_LIMIT, defaults.absent_limit),
        lost_file=environ.get(LOST_FILE, ""),
        report_file=environ.get(REPORT_FILE, ""),
        ca_file=environ.get(CA_FILE, ""),
        ca=environ.get(CA, ""),
        cert_file=environ.get(CERT_FILE, ""),
        key_file=environ.get(KEY_FILE, ""),
        cert=environ.get(CERT, ""),
        key=environ.get(KEY, ""),
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
