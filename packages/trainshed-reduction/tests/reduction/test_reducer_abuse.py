"""Tests of attacks on a reducer, its memory and other groups (spec/reduction#security,
spec/reduction#flow-control)."""

import contextlib
import random
import resource
import signal
import socket
import struct
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from tests.reduction.reducers import TOKEN, Reducer, reducer
from tests.reduction.workers import SECONDS, Worker
from trainshed_reduction import proof, wire
from trainshed_reduction.wire import DType, Header, Hello, Kind

_MIB = 1 << 20
WINDOW = 16 * _MIB
"""As in members.c."""


class Bystanders:
    """An uninvolved group, which an attack must not affect."""

    def __init__(self, running: Reducer) -> None:
        self._workers = [Worker(running.port, rank, 2, group="bystanders") for rank in range(2)]
        self._operation = 0
        for worker in self._workers:
            worker.start()

    def check(self) -> None:
        for worker in self._workers:
            worker.send_array(np.arange(5, dtype=np.int64), operation=self._operation)
        want = (2 * np.arange(5, dtype=np.int64)).tobytes()
        assert [worker.result() for worker in self._workers] == [want, want]
        self._operation += 1


@contextlib.contextmanager
def _attacked_reducer(tmp_path: Path, growth: int) -> Generator[Reducer]:
    """Run a reducer. Afterwards, check that it serves bystanders and that its memory has grown by at most
    `growth` bytes."""
    with reducer(tmp_path) as running:
        bystanders = Bystanders(running)
        bystanders.check()
        before = running.resident_bytes()
        yield running
        bystanders.check()
        assert running.resident_bytes() - before < growth
        assert running.end() == 0


def _stranger(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def _end(connection: socket.socket) -> bytes:
    """Return all further bytes from the reducer."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(4096):
            answer += data
    return answer


def test_connection_without_the_token_is_rejected(tmp_path: Path) -> None:
    """spec/reduction#security: The error contains no other information, not even that the group exists in
    another generation."""
    with _attacked_reducer(tmp_path, 8 * _MIB) as running:
        for token in (b"a guess", TOKEN[:-1], TOKEN + b"!"):
            with pytest.raises(proof.WorkerRejected, match=f"^{proof.WRONG_TOKEN}$"):
                Worker(running.port, 0, 2, token=token)
        with pytest.raises(proof.WorkerRejected, match=f"^{proof.WRONG_TOKEN}$"):
            # The group exists, with another generation.
            Worker(running.port, 0, 2, group="bystanders", generation=9, token=b"a guess")


def test_replayed_first_message_of_a_worker_is_rejected(tmp_path: Path) -> None:
    """spec/reduction#security: A HELLO answers a challenge that is used only once."""
    with _attacked_reducer(tmp_path, 8 * _MIB) as running:
        connection = _stranger(running.port)
        _, challenge = proof.read_frame(connection, time.monotonic() + SECONDS)
        hello = Hello(proof.group_digest("group"), 1, 0, 1)
        frame = proof.frame(Kind.HELLO, proof.sign(TOKEN, hello, challenge))
        connection.sendall(frame)
        header, _ = proof.read_frame(connection, time.monotonic() + SECONDS)
        assert header.kind is Kind.ACCEPT
        other = _stranger(running.port)
        other.sendall(frame)
        assert proof.WRONG_TOKEN.encode() in _end(other)
        connection.sendall(frame)
        assert b"a worker must not send HELLO at this point" in _end(connection)


def _header_with(**fields: int) -> bytes:
    """Return the valid header of a chunk, with changed fields."""
    plain = Header(Kind.DATA, DType.FLOAT32, 0, 0, 0, 0, 16, 16, 64)
    return wire.pack(plain._replace(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["stranger", "running"])
def test_frame_with_an_invalid_length_is_rejected_before_memory_is_allocated(
    tmp_path: Path, state: str
) -> None:
    """spec/reduction#security: The reducer checks lengths before it allocates memory."""
    headers = [
        _header_with(nbytes=2**32 - 1),
        _header_with(nbytes=wire.MAX_CHUNK + 4, total=_MIB + 1, step=_MIB + 1),
        _header_with(total=2**62, step=2**31, nbytes=2**31),
        _header_with(step=0),
        _header_with(chunk=7),
        _header_with(dtype=9),
        _header_with(reduction=2),
        _header_with(rank=1),
        _header_with(kind=Kind.RESULT),
        _header_with(kind=Kind.HELLO, nbytes=wire.MAX_TEXT + 1),
        _header_with(kind=Kind.ERROR, nbytes=wire.MAX_TEXT + 1),
        b"GET / HTTP/1.1\r\n\r\n".ljust(wire.HEADER.size),
    ]
    with _attacked_reducer(tmp_path, 8 * _MIB) as running:
        for number, header in enumerate(headers):
            if state == "stranger":
                connection = _stranger(running.port)
            else:
                worker = Worker(running.port, 0, 1, group=f"group {number}")
                worker.start()
                connection = worker.connection
            connection.sendall(header)
            answer = _end(connection)
            assert answer[-wire.MAX_TEXT :].strip(b"\0"), header
            last = answer[answer.rindex(b"TSR2") :]
            assert wire.unpack(last[: wire.HEADER.size]).kind is Kind.ERROR


def _noise(source: random.Random) -> bytes:
    """Return random bytes that may start like valid frames."""
    kind = source.choice([*Kind, 0, 12, 255])
    count = source.choice([0, 1, 3, 64])
    header = bytearray(
        wire.HEADER.pack(
            b"TSR2",
            kind,
            source.choice([0, 1, 2, 4, 7, 255]),
            source.choice([0, 0, 1, 2]),
            source.choice([0, 0, 0, 1, 65535]),
            source.choice([0, 0, 1, 2**32 - 1]),
            source.choice([0, 1, 2**64 - 1]),
            source.choice([count, count, 0, 2**64 - 1]),
            source.choice([count, count, 0, 2**32 - 1]),
            source.choice([4 * count, 4 * count, count, 0, 2**32 - 1]),
            source.choice([0, 0, 1, 2**64 - 1]),
            source.choice([0, 1, 2**64 - 1]),
        )
    )
    if source.random() < 0.3:
        header[source.randrange(len(header))] = source.randrange(256)
    data = bytes(header) + source.randbytes(source.choice([0, 4 * count, 4 * count + 3]))
    return data[: source.randrange(len(data))] if source.random() < 0.2 else data


def test_random_bytes_do_not_affect_other_groups(tmp_path: Path) -> None:
    """spec/reduction#security: Fuzzed frames in every state of a connection neither crash a reducer nor make
    it grow."""
    source = random.Random(7)
    with reducer(tmp_path) as running:
        bystanders = Bystanders(running)
        before = 0
        for number in range(1200):
            match number % 4:
                case 0:
                    connection = _stranger(running.port)
                case 1:
                    connection = Worker(running.port, 0, 2, group=f"gathering {number}").connection
                case kind:
                    worker = Worker(running.port, 0, 1, group=f"running {number}")
                    worker.start()
                    if kind == 3:  # A valid chunk, then random bytes.
                        worker.send(bytes(64))
                    connection = worker.connection
            with contextlib.suppress(ConnectionError):
                for _ in range(source.randint(1, 3)):
                    connection.sendall(_noise(source))
            connection.close()
            if number % 100 == 99:
                bystanders.check()
            if number == 399:
                before = running.resident_bytes()
        assert running.resident_bytes() - before < 2 * _MIB
        assert running.end() == 0


def test_data_after_the_end_of_a_connection_is_discarded(tmp_path: Path) -> None:
    """spec/reduction#security: The reducer ignores data after the frame that ended the connection, and
    continues after the peer has disconnected."""
    with reducer(tmp_path) as running:
        worker = Worker(running.port, 0, 1, group="brief")
        worker.start()
        running.process.send_signal(signal.SIGSTOP)
        farewell = proof.text_frame(Kind.ERROR, "it is over")
        worker.connection.sendall(farewell + b"?" * wire.HEADER.size)
        linger = struct.pack("ii", 1, 0)
        worker.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        worker.connection.close()  # Resets the connection.
        running.process.send_signal(signal.SIGCONT)
        with Worker(running.port, 0, 2) as waiting:
            # A status is sent each second, so all earlier connections are closed by now.
            assert [waiting.status()[:10] for _ in range(4)] == ["has waited"] * 4
        assert running.end() == 0


def test_silent_connections_do_not_block_authenticated_workers(tmp_path: Path) -> None:
    """spec/reduction#security: A peer that sends nothing, or one byte at a time, loses its connection if a
    worker with the token needs one."""
    with _attacked_reducer(tmp_path, 8 * _MIB) as running:
        strangers = [_stranger(running.port) for _ in range(100)]
        for stranger in strangers[::2]:
            stranger.sendall(b"T")
        with Worker(running.port, 0, 1) as worker:
            worker.start()
        for stranger in strangers:
            stranger.close()


def test_a_thousand_workers_share_one_group(tmp_path: Path) -> None:
    """spec/reduction#exactness: One process adds the chunks of all workers in their order, and sends the sum
    to all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with reducer(tmp_path) as running, contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(running.port, rank, 1000)) for rank in range(1000)]
        want = np.zeros(2, np.float32)
        for worker in workers:
            worker.start()
            part = np.array([worker.rank, 1 / (worker.rank + 1)], np.float32)
            worker.send_array(part)
            want += part
        assert all(worker.result() == want.tobytes() for worker in workers)


def test_reducer_reads_at_most_a_window_of_data_from_a_worker_without_results(tmp_path: Path) -> None:
    """spec/reduction#flow-control: Chunks without a result fill the window at most. The worker continues when
    the other ranks have sent theirs."""
    chunk, count = bytes(_MIB), 4 * WINDOW // _MIB
    with _attacked_reducer(tmp_path, 3 * WINDOW) as running:
        fast, slow = (Worker(running.port, rank, 2) for rank in range(2))
        for worker in (fast, slow):
            worker.start()
        sent = 0
        with pytest.raises(OSError, match="timed out"):
            while sent < count:
                # The reducer accepts all chunks that fit into the window, eventually.
                fast.connection.settimeout(SECONDS if sent < WINDOW // _MIB else 0.3)
                rest = memoryview(_frame(fast, chunk, sent))
                while rest:
                    rest = rest[fast.connection.send(rest) :]
                sent += 1
        # Other chunks are in the buffers of the sockets, whose size the system limits.
        assert WINDOW // _MIB <= sent < count
        for position in range(sent):
            slow.send(chunk, operation=position)
            assert len(slow.result()) == len(fast.result()) == len(chunk)


def _frame(worker: Worker, chunk: bytes, operation: int) -> bytes:
    return wire.pack(worker.header(chunk, DType.FLOAT32, operation=operation)) + chunk


def test_worker_that_does_not_read_receives_no_further_results(tmp_path: Path) -> None:
    """spec/reduction#flow-control: The reducer does not buffer results that the worker does not accept."""
    chunk, count = bytes(_MIB), 6 * WINDOW // _MIB
    with _attacked_reducer(tmp_path, 4 * WINDOW) as running:
        lazy, keen = (Worker(running.port, rank, 2) for rank in range(2))
        for worker in (lazy, keen):
            worker.start()
        done = 0
        with pytest.raises(OSError, match="timed out"):
            for position in range(count):
                seconds = SECONDS if done < WINDOW // _MIB else 0.5
                lazy.connection.settimeout(seconds)
                lazy.send(chunk, operation=position)
                keen.send(chunk, operation=position)
                keen.frame(seconds)
                done += 1
        assert done * len(chunk) >= WINDOW
