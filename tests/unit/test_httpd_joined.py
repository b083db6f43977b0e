"""What an answer writes to its connection: a short one in one piece, a long one as it comes."""

import asyncio
from typing import cast

from trainshed.httpd.protocol import Joined


class Wire:
    """A transport that keeps what is written to it, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.pieces.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_a_head_waits_for_its_body_in_the_same_turn_of_the_loop() -> None:
    async def story() -> None:
        wire = Wire()
        answer = Joined(cast("asyncio.Transport", wire), asyncio.get_running_loop())
        answer.write(b"head ")
        answer.write(b"body ")
        answer.write(b"more")
        assert wire.pieces == [b"head body ", b"more"]
        await asyncio.sleep(0)
        assert wire.pieces == [b"head body ", b"more"]

    asyncio.run(story())


def test_the_head_of_a_stream_does_not_wait_for_its_first_part() -> None:
    async def story() -> None:
        wire = Wire()
        answer = Joined(cast("asyncio.Transport", wire), asyncio.get_running_loop())
        answer.write(b"head")
        await asyncio.sleep(0)
        assert wire.pieces == [b"head"]
        answer.write(b"part")
        assert wire.pieces == [b"head", b"part"]

    asyncio.run(story())


def test_an_answer_without_a_body_is_written_before_the_connection_closes() -> None:
    async def story() -> None:
        wire = Wire()
        answer = Joined(cast("asyncio.Transport", wire), asyncio.get_running_loop())
        answer.write(b"head")
        answer.close()
        assert answer.is_closing()
        assert wire.pieces == [b"head"]

    asyncio.run(story())
