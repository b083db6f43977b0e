"""Which connection gives way when there are too many."""

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from trainshed.httpd.connections import Connections, Limits


@pytest.mark.parametrize(
    ("holders", "gone"),
    [
        # Issue: one program that read nothing of 4,096 downloads kept all others from storage and metadata.
        ("ababaaa", 0),
        ("abcbaab", -1),
    ],
)
def test_who_has_most_of_all_gives_way_to_others(holders: Sequence[str], gone: int) -> None:
    async def play() -> list[Any]:
        counted = Connections(Limits(connections=len(holders)))
        made = [Mock() for _ in (*holders, "new")]
        for connection, holder in zip(made, holders, strict=False):
            counted.open(connection)
            counted.held(connection, holder)
            counted.active(connection)
        counted.open(made[-1])
        return [made.index(connection) for connection in made if connection.drop.called]

    assert asyncio.run(play()) == [gone % (len(holders) + 1)]
