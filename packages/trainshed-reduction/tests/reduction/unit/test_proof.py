"""Tests of the mutual proof that reducer and worker know the job's token (spec/reduction#security)."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest

from trainshed_reduction import proof, wire
from trainshed_reduction.wire import Accept, Hello, Kind

TOKEN = b"token"
CHALLENGE = b"c" * wire.NONCE
HELLO = Hello(proof.group_digest("group"), 3, 2, 4, 0, 17)
ACCEPT = Accept(2)


def test_change_of_any_byte_of_a_signed_message_makes_its_proof_invalid() -> None:
    """spec/reduction#losses: A proof is invalid for another rank, generation or version."""
    hello = proof.sign(TOKEN, HELLO, CHALLENGE)
    for at in range(len(hello)):
        other = bytearray(hello)
        other[at] ^= 1
        with pytest.raises(wire.Malformed) if at < 2 else contextlib.nullcontext():
            assert proof.read_signed(TOKEN, Hello, bytes(other), CHALLENGE) is None
    assert proof.read_signed(TOKEN, Hello, hello[:-1], CHALLENGE) is None


def test_replayed_proof_is_rejected() -> None:
    """spec/reduction#security: A proof covers the earlier messages of its connection, including nonces."""
    hello, same = (proof.sign(TOKEN, HELLO, CHALLENGE) for _ in range(2))
    assert proof.read_signed(TOKEN, Hello, hello, b"d" * wire.NONCE) is None
    accept = proof.sign(TOKEN, ACCEPT, CHALLENGE + hello)
    assert proof.read_signed(TOKEN, Accept, accept, CHALLENGE + same) is None


def test_proof_with_another_token_or_for_another_message_type_is_rejected() -> None:
    """spec/reduction#security: A worker's proof is not valid as a reducer's."""
    hello = proof.sign(TOKEN, HELLO, CHALLENGE)
    assert proof.read_signed(b"another", Hello, hello, CHALLENGE) is None
    assert proof.read_signed(TOKEN, Accept, hello, CHALLENGE) is None


def test_different_protocol_version_of_a_peer_is_reported_with_a_remedy() -> None:
    """spec/reduction: The version is checked first."""
    former = (wire.VERSION - 1).to_bytes(2, "little") + bytes(134)
    with pytest.raises(wire.Malformed, match="Install the same trainshed_reduction on both"):
        proof.read_signed(TOKEN, Hello, former, CHALLENGE)


def test_empty_token_is_rejected() -> None:
    """spec/reduction#security: Every peer would know an empty token."""
    with pytest.raises(ValueError, match="must not be empty"):
        proof.sign(b"", HELLO, CHALLENGE)


def test_too_long_error_text_is_cut_between_characters() -> None:
    """spec/reduction: Frames are limited, and the rest stays readable."""
    frame = proof.text_frame(Kind.ERROR, "a" + "ü" * wire.MAX_TEXT)
    text = frame[wire.HEADER.size :]
    assert wire.unpack(frame[: wire.HEADER.size]).nbytes == len(text) == wire.MAX_TEXT - 1
    assert text.decode().endswith("üü")


def _greet(answer: Callable[[socket.socket], None], seconds: float = 60.0) -> Accept:
    """Do the worker's side of a handshake with a simulated reducer, `answer`."""
    mine, other = socket.socketpair()
    thread = threading.Thread(target=answer, args=(other,))
    thread.start()
    try:
        return proof.greet(mine, TOKEN, HELLO, time.monotonic() + seconds)
    finally:
        mine.close()
        thread.join()
        other.close()


def test_worker_rejects_a_reducer_without_the_token() -> None:
    """spec/reduction#security: The proof is mutual."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(proof.frame(Kind.CHALLENGE, CHALLENGE))
        _, hello = proof.read_frame(connection, time.monotonic() + 60)
        accept = proof.sign(b"guessed", ACCEPT, CHALLENGE + hello)
        connection.sendall(proof.frame(Kind.ACCEPT, accept))

    with pytest.raises(proof.Untrusted, match="does not know the job's token"):
        _greet(answer)


def test_rejected_worker_receives_the_reason() -> None:
    """spec/reduction: The error contains the reducer's text."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(proof.text_frame(Kind.ERROR, "generation 3 is older than 5"))

    with pytest.raises(proof.WorkerRejected, match=r"^generation 3 is older than 5$"):
        _greet(answer)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (proof.frame(Kind.CHALLENGE, b"short"), wire.Malformed),
        (proof.frame(Kind.BYE), wire.Malformed),
        (b"HTTP/1.1 400 Bad Request\r\n" * 4, wire.Malformed),
        (wire.pack(wire.Header(Kind.RESULT, 1, 0, 0, 0, 0, 1 << 20, 1 << 20, 4 << 20)), wire.Malformed),
        (proof.frame(Kind.CHALLENGE, CHALLENGE)[:40], ConnectionResetError),
    ],
)
def test_worker_rejects_invalid_responses(sent: bytes, error: type[Exception]) -> None:
    """spec/reduction: No memory is allocated for announced lengths."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    with pytest.raises(error):
        _greet(answer)


def test_handshake_has_a_timeout() -> None:
    """spec/reduction: Every wait has a timeout."""
    with pytest.raises(OSError, match="timed out"):
        _greet(lambda _: None, 0.05)
