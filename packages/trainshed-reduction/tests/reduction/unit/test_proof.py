"""Reducer and worker prove to each other that they know the job's token. spec/reduction#security."""

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


def test_a_proof_is_good_for_what_it_was_made_for_only() -> None:
    """spec/reduction#losses: not for another rank or generation; every byte counts, the version too."""
    hello = proof.signed(TOKEN, HELLO, CHALLENGE)
    for at in range(len(hello)):
        other = bytearray(hello)
        other[at] ^= 1
        with pytest.raises(wire.Malformed) if at < 2 else contextlib.nullcontext():
            assert proof.read_signed(TOKEN, Hello, bytes(other), CHALLENGE) is None
    assert proof.read_signed(TOKEN, Hello, hello[:-1], CHALLENGE) is None


def test_a_proof_is_good_once() -> None:
    """spec/reduction#security: an answer to what was said on its connection, nonces included."""
    hello, same = (proof.signed(TOKEN, HELLO, CHALLENGE) for _ in range(2))
    assert proof.read_signed(TOKEN, Hello, hello, b"d" * wire.NONCE) is None
    accept = proof.signed(TOKEN, ACCEPT, CHALLENGE + hello)
    assert proof.read_signed(TOKEN, Accept, accept, CHALLENGE + same) is None


def test_other_tokens_and_sides_prove_nothing() -> None:
    """spec/reduction#security: nor does a worker's proof pass for a reducer's."""
    hello = proof.signed(TOKEN, HELLO, CHALLENGE)
    assert proof.read_signed(b"another", Hello, hello, CHALLENGE) is None
    assert proof.read_signed(TOKEN, Accept, hello, CHALLENGE) is None


def test_other_versions_are_told_so() -> None:
    """spec/reduction: with what to do, before anything else is looked at."""
    former = (wire.VERSION - 1).to_bytes(2, "little") + bytes(134)
    with pytest.raises(wire.Malformed, match="install the same trainshed_reduction on both"):
        proof.read_signed(TOKEN, Hello, former, CHALLENGE)


def test_without_a_token_nothing_is_proved() -> None:
    """spec/reduction#security: an empty one would be everybody's."""
    with pytest.raises(ValueError, match="empty token"):
        proof.signed(b"", HELLO, CHALLENGE)


def test_texts_are_cut_between_letters() -> None:
    """spec/reduction: frames are bounded, and what is left can be read."""
    frame = proof.text_frame(Kind.ERROR, "a" + "ü" * wire.MAX_TEXT)
    text = frame[wire.HEADER.size :]
    assert wire.unpack(frame[: wire.HEADER.size]).nbytes == len(text) == wire.MAX_TEXT - 1
    assert text.decode().endswith("üü")


def _greet(answer: Callable[[socket.socket], None], seconds: float = 60.0) -> Accept:
    """What a worker makes of a reducer that behaves like this."""
    mine, other = socket.socketpair()
    thread = threading.Thread(target=answer, args=(other,))
    thread.start()
    try:
        return proof.greet(mine, TOKEN, HELLO, time.monotonic() + seconds)
    finally:
        mine.close()
        thread.join()
        other.close()


def test_a_worker_believes_no_reducer_without_the_token() -> None:
    """spec/reduction#security: the challenge is mutual."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(proof.frame(Kind.CHALLENGE, CHALLENGE))
        _, hello = proof.read_frame(connection, time.monotonic() + 60)
        accept = proof.signed(b"guessed", ACCEPT, CHALLENGE + hello)
        connection.sendall(proof.frame(Kind.ACCEPT, accept))

    with pytest.raises(proof.Untrusted, match="does not know the job's token"):
        _greet(answer)


def test_a_worker_hears_why_it_is_refused() -> None:
    """spec/reduction: in the reducer's words."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(proof.text_frame(Kind.ERROR, "generation 3 is older than 5"))

    with pytest.raises(proof.Refused, match=r"^generation 3 is older than 5$"):
        _greet(answer)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (proof.frame(Kind.CHALLENGE, b"short"), wire.Malformed),
        (proof.frame(Kind.BYE), wire.Malformed),
        (b"HTTP/1.1 400 Bad Request\r\n" * 4, wire.Malformed),
        (
            wire.pack(wire.Header(Kind.RESULT, 1, 0, 0, 0, 0, 1 << 20, 1 << 20, 4 << 20)),
            wire.Malformed,
        ),
        (proof.frame(Kind.CHALLENGE, CHALLENGE)[:40], ConnectionResetError),
    ],
)
def test_a_worker_stops_where_no_reducer_is(sent: bytes, error: type[Exception]) -> None:
    """spec/reduction: before anything is allocated for what somebody announces."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    with pytest.raises(error):
        _greet(answer)


def test_a_worker_does_not_wait_for_ever() -> None:
    """spec/reduction: every wait has a limit."""
    with pytest.raises(OSError, match="timed out"):
        _greet(lambda _: None, 0.05)
