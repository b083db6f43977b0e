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


def test_an_answer_without_a_body_is_written_before_the_connection_closes() -> None:
    async def story() -> None:
        wire = Wire()
        answer = Joined(cast("asyncio.Transport", wire), asyncio.get_running_loop())
        answer.write(b"head")
        answer.close()
        assert answer.is_closing()
        assert wire.pieces == [b"head"]

    asyncio.run(story())
