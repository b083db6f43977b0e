"""Lines that travel with a file handle each, and what is said after them."""

import os
import socket

from trainshed.replica.system import unix_sockets


def test_a_long_line_and_the_next_that_comes_with_its_last_piece_are_received_one_by_one() -> None:
    """As the order of a program with long arguments, and what hands the slot's lock over."""
    ours, theirs = socket.socketpair()
    for size in (30_000, 40_000, 60_000, 100_000):
        lines = [b"x" * size, b"claimed"]
        for line in lines:
            unix_sockets.send(ours, line + b"\n", ours.fileno())
        receiver = unix_sockets.Receiver(theirs)
        received = [receiver.receive_one(), receiver.receive_one()]
        assert [one and one[0] for one in received] == lines
        for one in received:
            os.close(one[1] if one else -1)
    ours.shutdown(socket.SHUT_WR)
    assert unix_sockets.Receiver(theirs).receive_one() is None
    ours.close()
    theirs.close()


def test_two_lines_that_come_at_once_have_their_own_handles() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    unix_sockets.send(ours, b"one\n", read)
    unix_sockets.send(ours, b"two\n", write)
    receiver = unix_sockets.Receiver(theirs)
    received = receiver.receive()
    while len(received) < 2:
        received += receiver.receive()
    assert [text for text, _ in received] == [b"one", b"two"]
    os.write(received[1][1], b"!")
    assert os.read(received[0][1], 10) == b"!"
    for handle in (read, write, *(handle for _, handle in received)):
        os.close(handle)
    ours.close()
    theirs.close()
