"""TLS for who knows plain sockets only (spec/reduction#security)."""

import contextlib
import socket
import ssl
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.reduction.certificates import Authority, authority
from tests.reduction.workers import SECONDS
from trainshed_reduction import proof, variables
from trainshed_reduction.tunnel import Tunnel

SOME, MUCH = 300_000, 3_000_000
"""More than a pair of sockets holds, and more than all between two users do."""

Ends = tuple[Tunnel, Tunnel]
"""A worker's and a reducer's, of one connection."""
Raw = tuple[ssl.SSLSocket, ssl.SSLSocket]
"""The same without tunnels."""


def _shown(ours: Authority) -> ssl.SSLContext:
    files = {variables.CERT_FILE: str(ours.certificate), variables.KEY_FILE: str(ours.key)}
    context = proof.reducer_tls(files)
    assert context is not None
    return context


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture
def ends(ours: Authority) -> Iterator[Ends]:
    near, far = socket.socketpair()
    shown = _shown(ours)
    secured = shown.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    reducer = Tunnel(secured, secured.do_handshake)
    worker = Tunnel(proof.worker_tls(str(ours.root)).wrap_socket(near))
    for end in (worker, reducer):
        end.settimeout(SECONDS)
    yield worker, reducer
    worker.close()
    reducer.close()


@pytest.fixture
def raw(ours: Authority) -> Iterator[Raw]:
    near, far = socket.socketpair()
    shown = _shown(ours)
    reducer = shown.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    shaking = threading.Thread(target=reducer.do_handshake)
    shaking.start()
    worker = proof.worker_tls(str(ours.root)).wrap_socket(near)
    shaking.join()
    for end in (worker, reducer):
        end.settimeout(SECONDS)
    with worker, reducer:
        yield worker, reducer


def _received(end: socket.socket, most: int = 1 << 30) -> bytes:
    parts: list[bytes] = []
    while most and (data := end.recv(min(most, 1 << 20))):
        parts.append(data)
        most -= len(data)
    return b"".join(parts)


def test_bytes_go_both_ways_at_once(ends: Ends) -> None:
    """spec/reduction#flow-control: more than the pairs of sockets hold, and neither way waits for the
    other."""
    size = 5_000_000
    data = [bytes([number]) * size for number in range(2)]
    senders = [
        threading.Thread(target=end.sendall, args=(what,))
        for end, what in zip(ends, data, strict=True)
    ]
    for sender in senders:
        sender.start()
    assert _received(ends[1], size) == data[0]
    assert _received(ends[0], size) == data[1]
    for sender in senders:
        sender.join()


def test_last_words_are_heard(ends: Ends) -> None:
    """spec/reduction#losses: a worker that leaves says so, and its program may end at once."""
    worker, reducer = ends
    reducer.sendall(b"nobody reads this")
    worker.sendall(b"goodbye")
    leaving = threading.Thread(target=worker.end)
    leaving.start()
    assert _received(reducer) == b"goodbye"
    reducer.close()
    leaving.join()


def test_last_words_are_heard_by_who_talks_first(raw: Raw) -> None:
    """spec/reduction#losses: he says more than there is room for on the way, to who has gone already."""
    worker, secured = raw
    with Tunnel(worker) as leaving:
        leaving.sendall(b"goodbye")
    secured.sendall(bytes(MUCH))
    assert _received(secured) == b"goodbye"


def test_who_speaks_to_nobody_hears_what_was_said(raw: Raw) -> None:
    """spec/reduction#losses: what is said to who has gone is lost, and nothing else."""
    worker, secured = raw
    with Tunnel(secured) as reducer:
        reducer.settimeout(SECONDS)
        worker.sendall(bytes(SOME))
        worker.close()
        with contextlib.suppress(BrokenPipeError):
            reducer.sendall(bytes(MUCH))
        assert _received(reducer) == bytes(SOME)


def test_who_is_gone_is_missed(ends: Ends) -> None:
    """spec/reduction#losses: at once, on the other side."""
    worker, reducer = ends
    reducer.close()
    assert _received(worker) == b""


def test_a_farewell_is_read_by_who_still_sends(ends: Ends) -> None:
    """spec/reduction#reports: the reducer has ended sending, and throws away what comes."""
    worker, reducer = ends
    reducer.sendall(b"it is over")
    reducer.shutdown(socket.SHUT_WR)
    worker.sendall(b"more")
    assert _received(worker) == b"it is over"


def test_who_speaks_no_tls_is_gone(ours: Authority) -> None:
    """spec/reduction#security: nothing of what it says comes through."""
    near, far = socket.socketpair()
    shown = _shown(ours)
    secured = shown.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
    with near, Tunnel(secured, secured.do_handshake) as reducer:
        reducer.settimeout(SECONDS)
        near.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert _received(reducer) == b""


def test_programs_in_python_let_it_go_on(ends: Ends) -> None:
    """spec/reduction#flow-control: once there are connections over TLS Python changes threads more often."""
    assert sys.getswitchinterval() < 0.001
