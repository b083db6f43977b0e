"""A worker of few words for tests of reducers: blocking, one lane, one thing after the other. And a reducer
to go with it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainshed_reduction import proof, variables, wire
from trainshed_reduction.wire import DType, Header, Hello, Kind, Reduction, Start

TOKEN = b"the token of this job"
SECONDS = 60.0
PACKAGE = Path(proof.__file__).parent.parent


class Ended(Exception):
    """The reducer ended the conversation, with this text."""


class Worker:
    """Connected, and let in, when it is made. Raises what `proof.connect` raises."""

    def __init__(
        self,
        port: int,
        rank: int,
        world: int,
        *,
        group: str = "group",
        generation: int = 1,
        received: int = 0,
        lane: int = 0,
        token: bytes = TOKEN,
        seconds: float = SECONDS,
    ) -> None:
        self.rank = rank
        self.statuses: list[str] = []
        hello = Hello(proof.group_digest(group), generation, rank, world, lane, received)
        self.connection, self.accept = proof.connect(("127.0.0.1", port), token, hello, seconds)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def frame(self, seconds: float = SECONDS) -> tuple[Header, bytes]:
        """The next one that is no STATUS. Raises Ended, OSError."""
        deadline = time.monotonic() + seconds
        while True:
            header, payload = proof.read_frame(self.connection, deadline, wire.MAX_CHUNK)
            if header.kind is Kind.ERROR:
                raise Ended(payload.decode())
            if header.kind is not Kind.STATUS:
                return header, payload
            self.statuses.append(payload.decode())

    def status(self) -> str:
        header, payload = proof.read_frame(self.connection, time.monotonic() + SECONDS)
        assert header.kind is Kind.STATUS, header
        return payload.decode()

    def start(self) -> Start:
        header, payload = self.frame()
        assert header.kind is Kind.START, header
        return wire.unpack_message(Start, payload)

    def header(
        self,
        data: bytes,
        dtype: DType,
        *,
        operation: int = 0,
        ordinal: int | None = None,
        chunk: int = 0,
        total: int = 0,
        step: int = 0,
        reduction: Reduction = Reduction.SUM,
        kind: Kind = Kind.DATA,
        acknowledged: int = 0,
    ) -> Header:
        """Without `total`, of an operation of one chunk; without `ordinal`, one of a program that has no
        others."""
        count = len(data) // dtype.itemsize
        return Header(
            kind,
            dtype,
            reduction,
            self.rank,
            chunk,
            operation,
            total or count,
            step or count,
            len(data),
            acknowledged,
            operation + 1 if ordinal is None else ordinal,
        )

    def send(self, data: bytes, dtype: DType = DType.FLOAT32, **fields: Any) -> None:
        """A chunk; `fields` as of `header`."""
        self.connection.sendall(wire.pack(self.header(data, dtype, **fields)) + data)

    def send_array(self, array: "np.ndarray[Any, Any]", **fields: Any) -> None:
        self.send(array.tobytes(), DType[array.dtype.name.upper()], **fields)

    def bye(self) -> None:
        self.connection.sendall(proof.frame(Kind.BYE))

    def result(self) -> bytes:
        header, payload = self.frame()
        assert header.kind is Kind.RESULT, header
        return payload

    def end(self) -> str:
        """What the reducer says in the end; "" if it only closes the connection."""
        try:
            while True:
                self.frame()
        except Ended as ended:
            return str(ended)
        except ConnectionError:
            return ""


@dataclass
class RunningReducer:
    process: "subprocess.Popen[str]"
    port: int
    report_file: Path

    def line(self) -> str:
        """The next one that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def reducer(
    directory: Path, *, threads: int = 1, environ: Mapping[str, str] | None = None
) -> Generator[RunningReducer]:
    """A real one on free ports of the loopback."""
    report_file = directory / "report.json"
    fields = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE),
        variables.TOKEN: TOKEN.decode(),
        variables.LISTEN: "127.0.0.1:0",
        variables.THREADS: str(threads),
        variables.REPORT_FILE: str(report_file),
        **(environ or {}),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "trainshed_reduction.reducer"],
        env=fields,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        first = process.stdout.readline()
        listening = re.match(r"listening on 127\.0\.0\.1:(\d+) \((\d+) thread", first)
        assert listening and int(listening[2]) == threads, first
        yield RunningReducer(process, int(listening[1]), report_file)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        if process.stdout:
            process.stdout.close()
