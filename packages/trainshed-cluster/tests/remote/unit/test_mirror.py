"""Copies of the files that replicas write on nodes. They continue after a lost connection, and on another
node."""

import os
from pathlib import Path

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.engines.streams import FileStreams
from trainshed_cluster.remote.mirror import StreamCopies, StreamSender

UID = JobUid(7)
REPLICA = ReplicaId.parse("workerpool0-0")
SOURCE = StreamSource(UID, 1, REPLICA)


class Node:
    """A node's files of the replica, and its agent."""

    def __init__(self, root: Path, copies: StreamCopies) -> None:
        self.directory = FileStreams(root).directory(SOURCE)
        self._copies = copies
        self._sender = StreamSender(FileStreams(root), UID, 1)
        self.connect()

    def connect(self) -> None:
        self._sender.resume(self._copies.sizes([REPLICA]))
        self._sender.start_log(REPLICA, self._copies.next_line(REPLICA))

    def write(self, file: str, text: str) -> None:
        with (self.directory / file).open("a") as opened:
            opened.write(text)

    def send(self, limit: int = 100) -> None:
        """Send the new bytes. The connection breaks after this number of messages, and the last one is
        lost."""
        for number, part in enumerate(self._sender.changes(REPLICA), 1):
            if number > limit:
                return
            self._copies.append(part)


def test_copy_of_a_log_continues_after_a_disconnection_and_on_another_node(tmp_path: Path) -> None:
    here = FileStreams(tmp_path / "service")
    copies = StreamCopies(here, UID, 1)
    first = Node(tmp_path / "first", copies)
    first.write("000000000000.jsonl", "0\n1\nhalf")
    first.write("usage.jsonl", "a\n")
    first.send(limit=1)
    first.write("usage.jsonl", "b\nhalf")
    first.connect()
    first.send()
    first.send()
    second = Node(tmp_path / "second", copies)
    second.write("000000000002.jsonl", "2\n")
    second.write("usage.jsonl", "c\n")
    second.send()
    second.connect()
    second.write("usage.jsonl", "d\n")
    second.send()
    directory = here.directory(SOURCE)
    assert (directory / "usage.jsonl").read_text() == "a\nb\nc\nd\n"
    assert (directory / "000000000000.jsonl").read_text() == "0\n1\n"
    assert (directory / "000000000002.jsonl").read_text() == "2\n"


def test_log_bytes_that_the_service_lost_are_sent_again_by_the_node(tmp_path: Path) -> None:
    """The service can lose bytes in a power failure, including bytes of an earlier node."""
    here = FileStreams(tmp_path / "service")
    copies = StreamCopies(here, UID, 1)
    for name, line in (("first", "a\nb\n"), ("second", "c\n")):
        node = Node(tmp_path / name, copies)
        node.write("usage.jsonl", line)
        node.send()
    copy = here.directory(SOURCE) / "usage.jsonl"
    assert copy.read_text() == "a\nb\nc\n"
    os.truncate(copy, 2)
    for line in ("d\n", "e\n"):
        node.connect()
        node.write("usage.jsonl", line)
        node.send()
    assert copy.read_text() == "a\nc\nd\ne\n"
