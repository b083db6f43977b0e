"""Reducer and worker prove to each other that they know the job's token. spec/reduction#security."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from trainshed_reduction import proof, wire
from trainshed_reduction.wire import Accept, Hello, Kind

TOKEN = b"token"
CHALLENGE = b"c" * wire.NONCE
HELLO = Hello(b"n" * wire.NONCE, b"", proof.group_digest("group"), 3, 2, 4, 0, 17)
ACCEPT = Accept(b"", 2)


def test_who_knows_the_token_is_believed() -> None:
    """spec/reduction#security: both sides, also after the messages have been over the wire."""
    hello = wire.unpack_hello(wire.pack_hello(proof.prove_worker(TOKEN, CHALLENGE, HELLO)))
    assert proof.is_worker(TOKEN, CHALLENGE, hello)
    accept = wire.unpack_accept(
        wire.pack_accept(proof.prove_reducer(TOKEN, CHALLENGE, hello, ACCEPT))
    )
    assert proof.is_reducer(TOKEN, CHALLENGE, hello, accept)


@pytest.mark.parametrize(
    "change",
    [
        {"group": b"x" * wire.GROUP},
        {"generation": 4},
        {"rank": 1},
        {"world": 5},
        {"received": 18},
        {"nonce": b"m" * wire.NONCE},
    ],
)
def test_a_proof_is_good_for_what_it_was_made_for_only(change: dict[str, Any]) -> None:
    """spec/reduction#losses: not for another rank or generation, nor a second time."""
    hello = proof.prove_worker(TOKEN, CHALLENGE, HELLO)
    assert not proof.is_worker(TOKEN, CHALLENGE, hello._replace(**change))
    accept = proof.prove_reducer(TOKEN, CHALLENGE, hello, ACCEPT)
    assert not proof.is_reducer(TOKEN, CHALLENGE, hello._replace(**change), accept)


def test_other_tokens_nonces_and_answers_prove_nothing() -> None:
    """spec/reduction#security: nor does a worker's proof pass for a reducer's."""
    hello = proof.prove_worker(TOKEN, CHALLENGE, HELLO)
    assert not proof.is_worker(b"another", CHALLENGE, hello)
    assert not proof.is_worker(TOKEN, b"d" * wire.NONCE, hello)
    accept = proof.prove_reducer(TOKEN, CHALLENGE, hello, ACCEPT)
    assert not proof.is_reducer(b"another", CHALLENGE, hello, accept)
    assert not proof.is_reducer(TOKEN, CHALLENGE, hello, accept._replace(threads=3))
    assert not proof.is_reducer(TOKEN, CHALLENGE, hello, accept._replace(proof=hello.proof))


def test_without_a_token_nothing_is_proved() -> None:
    """spec/reduction#security: an empty one would be everybody's."""
    with pytest.raises(ValueError, match="empty token"):
        proof.prove_worker(b"", CHALLENGE, HELLO)


def test_texts_are_cut_between_letters() -> None:
    """spec/reduction: frames are bounded, and what is left can be read."""
    frame = proof.text_frame(Kind.ERROR, "a" + "ü" * wire.MAX_TEXT)
    text = frame[wire.HEADER.size :]
    assert wire.unpack(frame[: wire.HEADER.size]).nbytes == len(text) == wire.MAX_TEXT - 1
    assert text.decode().endswith("üü")


def _greet(answer: Callable[[socket.socket], None], seconds: float = 5.0) -> Accept:
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
        _, payload = proof.read_frame(connection, time.monotonic() + 5)
        accept = proof.prove_reducer(b"guessed", CHALLENGE, wire.unpack_hello(payload), ACCEPT)
        connection.sendall(proof.frame(Kind.ACCEPT, wire.pack_accept(accept)))

    with pytest.raises(proof.Untrusted, match="does not know the job's token"):
        _greet(answer)


def test_a_worker_hears_why_it_is_refused() -> None:
    """spec/reduction: in the reducer's words."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(proof.text_frame(Kind.REFUSE, "generation 3 is older than 5"))

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
